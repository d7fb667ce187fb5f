from __future__ import annotations

import asyncio
import importlib
import itertools
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from runs import GUARD
from starlette.types import Receive, Scope, Send

from ppcls.deploy.predictor import Predictor
from ppcls.errors import UserError
from ppcls.recipe.load import validate
from ppcls.serve.app import build_app
from ppcls.serve.limits import RequestLimits
from ppcls.serve.models import ServedModels
from ppcls.serve.pools import TimedPool
from ppcls.serve.service import BatchingOptions, load

Ask = Callable[[httpx.AsyncClient, threading.Event], Awaitable[Any]]


@pytest.fixture
def ask(tree: dict[str, Any]) -> Callable[..., Any]:
    """Runs requests against a model whose thread is busy until the event is set."""

    def run(act: Ask, timeout: float, max_wait: float = 0.0) -> Any:
        from ppcls.deploy.models.source import source_of_config

        free = threading.Event()
        with TimedPool(1, "model") as worker:
            predictor = load(source_of_config(validate(tree, "test")), 4)
            batching = BatchingOptions(max_batch=4, max_wait=max_wait, max_waiting=4, timeout=timeout)
            models = ServedModels({"small": predictor}, worker, batching)
            app = build_app(models, RequestLimits(max_bytes=50_000, max_images=4, timeout=timeout))
            numbers = itertools.count(1)

            async def app_with_many_clients(scope: Scope, receive: Receive, send: Send) -> None:
                await app({**scope, "client": (f"10.0.0.{next(numbers)}", 1)}, receive, send)

            async def go() -> Any:
                models.start()
                worker.submit(free.wait)
                transport = httpx.ASGITransport(app_with_many_clients, raise_app_exceptions=False)
                try:
                    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
                        return await act(client, free)
                finally:
                    free.set()
                    await models.stop()

            return asyncio.run(go())

    return run


async def post(client: httpx.AsyncClient, *images: bytes) -> httpx.Response:
    return await client.post("/predict", files=[("a", ("a", each)) for each in images])


def test_too_many_images_are_rejected_until_others_are_answered(
    ask: Callable[..., Any], images: list[bytes]
) -> None:
    async def act(client: httpx.AsyncClient, free: threading.Event) -> list[httpx.Response]:
        first = asyncio.create_task(post(client, *images[:3]))
        while 'ppcls_images_in_work{model="small"} 3.0' not in (await client.get("/metrics")).text:
            await asyncio.sleep(0.01)
        refused = await post(client, *images[:2])
        last = asyncio.create_task(post(client, images[0]))
        await asyncio.sleep(0)
        free.set()
        answers = [await first, refused, await last]
        return [*answers, await post(client, *images[:4])]

    first, refused, last, again = ask(act, 60.0)
    assert [each.status_code for each in (first, last, again)] == [200, 200, 200]
    assert [len(each.json()["results"]) for each in (first, last, again)] == [3, 1, 4]
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "1"
    assert refused.json() == {"error": "the server is busy: 3 of 4 images are in use; try again later"}


def test_slow_answer_times_out(ask: Callable[..., Any], images: list[bytes]) -> None:
    async def act(client: httpx.AsyncClient, free: threading.Event) -> tuple[httpx.Response, str]:
        late = await post(client, images[0])
        free.set()
        return late, (await client.get("/metrics")).text

    late, metrics = ask(act, 0.3)
    assert late.status_code == 504
    assert late.json() == {"error": "the request was not answered within 0.3 s"}
    assert 'ppcls_images_in_work{model="small"} 0.0' in metrics


def test_internal_error_is_counted_and_shows_no_details(
    ask: Callable[..., Any], images: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: object, image: object) -> None:
        raise KeyError("secret")

    monkeypatch.setattr("ppcls.serve.preparation.run", fail)

    async def act(client: httpx.AsyncClient, free: threading.Event) -> tuple[httpx.Response, str]:
        free.set()
        return await post(client, images[0]), (await client.get("/metrics")).text

    answer, metrics = ask(act, 60.0)
    assert (answer.status_code, answer.json()) == (
        500,
        {"error": "internal error; see the log of the server"},
    )
    assert 'ppcls_requests_total{status="500"} 1.0' in metrics
    assert 'ppcls_images_in_work{model="small"} 0.0' in metrics


def test_nonfinite_scores_are_a_server_error(
    ask: Callable[..., Any], images: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Predictor, batch: object) -> None:
        raise UserError(f"{self.source.file}: the model's scores are not finite")

    monkeypatch.setattr("ppcls.deploy.predictor.Predictor.run", fail)

    async def act(client: httpx.AsyncClient, free: threading.Event) -> httpx.Response:
        free.set()
        return await post(client, images[0])

    answer = ask(act, 60.0)
    assert (answer.status_code, answer.json()) == (500, {"error": "small: the model's scores are not finite"})


def test_model_thread_parses_no_images_and_single_images_do_not_wait(
    ask: Callable[..., Any], images: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared_by: list[str] = []
    for name in ("ppcls.data.transforms.numpy_ops.basic.decode", "ppcls.serve.preparation.decode"):
        owner, _, function = name.rpartition(".")
        whole = getattr(importlib.import_module(owner), function)

        def note_thread(*arguments: Any, whole: Any = whole) -> Any:
            prepared_by.append(threading.current_thread().name)
            return whole(*arguments)

        monkeypatch.setattr(name, note_thread)

    async def act(client: httpx.AsyncClient, free: threading.Event) -> list[httpx.Response]:
        free.set()
        heat_map = await client.post("/explain?class_id=0", files=[("a", ("a", images[0]))])
        return [heat_map, *[await post(client, *images[:count]) for count in (1, 2, 1)]]

    answers = ask(act, 60.0, max_wait=1000.0)
    assert [each.status_code for each in answers] == [200] * 4
    assert [name.split("_")[0] for name in prepared_by] == ["prepare"] * 6


def test_heat_map_of_a_large_image_is_that_of_a_small_one(
    ask: Callable[..., Any], images: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act(client: httpx.AsyncClient, free: threading.Event) -> list[httpx.Response]:
        free.set()
        answers = []
        for most in (1 << 24, 1):
            monkeypatch.setattr("ppcls.serve.preparation._LARGE", most)
            answers.append(await client.post("/explain?class_id=0", files=[("a", ("a", images[0]))]))
        return answers

    small, large = ask(act, 60.0)
    assert small.status_code == large.status_code == 200
    assert small.content == large.content


def test_server_is_not_ready_while_its_model_hangs(ask: Callable[..., Any], images: list[bytes]) -> None:
    async def act(client: httpx.AsyncClient, free: threading.Event) -> int:
        unanswered = await post(client, images[0])
        # On a slow machine the model's call may start after the request began, and an image may take longer
        # than the timeout.
        async with asyncio.timeout(GUARD):
            while (await client.get("/ready")).status_code != 503:
                await asyncio.sleep(0.01)
            free.set()
            while (await post(client, images[0])).status_code != 200:
                await asyncio.sleep(0.01)
            while (await client.get("/ready")).status_code != 200:
                await asyncio.sleep(0.01)
        return unanswered.status_code

    assert ask(act, 0.5) == 504


def test_large_or_bad_image_of_idle_server_is_answered(
    ask: Callable[..., Any], images: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act(client: httpx.AsyncClient, free: threading.Event) -> list[httpx.Response]:
        free.set()
        usual = await post(client, images[0])
        monkeypatch.setattr("ppcls.serve.preparation._LARGE", 1)
        return [usual, await post(client, images[0]), await post(client, b"no image")]

    usual, large, bad = ask(act, 60.0)
    assert usual.status_code == large.status_code == 200
    assert usual.json() == large.json()
    assert (bad.status_code, bad.json()["error"]) == (422, "not an image that can be decoded")
