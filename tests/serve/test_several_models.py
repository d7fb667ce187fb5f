"""A server of several models over HTTPS, with API keys, request ids and a log in JSON."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from certificates import write_certificate
from running import Running, running
from runs import GUARD
from small_classifier import CLASSES, NAME, config_tree, write_config, write_names, write_weights

from ppcls.cli import export as export_cli
from ppcls.cli import serve as serve_cli
from ppcls.deploy.models.source import find_source
from ppcls.serve.limits import RequestError
from ppcls.serve.models import LoadableModels, ServedModels
from ppcls.serve.pools import TimedPool
from ppcls.serve.service import BatchingOptions, load

KEY = "0123456789abcdef-second"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two exported models: a WideResNet, and another one with other weights and image size."""
    folder = tmp_path_factory.mktemp("models")
    for name, kind in (("first", NAME), ("second", "MobileNetV3_small_x0_35")):
        weights = write_weights(folder / f"{name}.safetensors", kind)
        tree = config_tree(weights, write_names(folder / "names.txt"), name=kind)
        config = write_config(folder / f"{name}.yaml", tree)
        options = ["--format", "onnx", "-o", f"Global.save_inference_dir={folder / name}"]
        assert export_cli.export(["-c", str(config), *options]) == 0
    return folder


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def protected(models: Path, certificate: tuple[Path, Path], tmp_path: Path) -> Iterator[Running]:
    keys = tmp_path / "keys.txt"
    keys.write_text(f"# of two clients\n{'x' * 32}\n\n{KEY}\n")
    options = ["--model", f"first={models / 'first'}", "--model", f"other={models / 'second'}"]
    options += ["--tls-cert", str(certificate[0]), "--tls-key", str(certificate[1])]
    options += ["--api-key-file", str(keys), "--models-folder", str(models)]
    with running(tmp_path, *options, "--access-log", "--log-format", "json") as server:
        yield server


def test_models_are_chosen_loaded_replaced_and_unloaded(protected: Running, images: list[bytes]) -> None:
    def classes(**query: Any) -> list[int]:
        answer = client.post("/predict", files={"image": images[0]}, params=query)
        assert answer.status_code == 200, answer.text
        scored = answer.json()["results"][0]["predictions"]
        return [answer.json()["model"], *[round(row["score"], 4) for row in scored]]

    assert protected.address.startswith("https://127.0.0.1:")
    with protected.client() as client:
        client.headers["Authorization"] = f"Bearer {KEY}"
        assert [row["name"] for row in client.get("/models").json()["models"]] == ["first", "other"]
        assert classes()[0] == classes(model="first")[0] == NAME
        other = classes(model="other")
        assert other[0] == "MobileNetV3_small_x0_35"
        loaded = client.put("/models/second")
        assert loaded.json() == {
            "name": "second",
            "model": other[0],
            "classes": len(CLASSES),
            "heat_maps": False,
        }
        assert classes(model="second") == other
        assert client.put("/models/second").status_code == 200, "replaces it"
        assert 'ppcls_images_total{model="second"} 1.0' in client.get("/metrics").text
        for name in ("second", "other"):
            assert client.delete(f"/models/{name}").json() == {"status": "ok"}
            assert f'model="{name}"' not in client.get("/metrics").text
        assert client.delete("/models/first").status_code == 409
        missing = client.post("/predict", files={"image": images[0]}, params={"model": "second"})
        assert (missing.status_code, missing.json()) == (
            404,
            {"error": "model: expected one of first, got 'second'"},
        )
        for name in ("gone", "..", "%2e%2e", "names.txt"):
            assert client.put(f"/models/{name}").status_code in (404, 405), name
        assert client.get("/ready").status_code == 200


@pytest.mark.slow
def test_the_models_that_are_not_used_leave(models: Path, tmp_path: Path) -> None:
    names = [f"m{number}" for number in range(6)]
    for name in names:
        shutil.copytree(models / "second", tmp_path / name)

    async def load_all() -> None:
        with TimedPool(1, "model") as worker:
            loaded = load(find_source(models / "first"), 4)
            loadable = LoadableModels(tmp_path, max_models=3)
            served = ServedModels({"first": loaded}, worker, BatchingOptions(4, 0.0, 4), loadable)
            served.start()
            predictors = []
            for number, name in enumerate(names):
                predictors.append(weakref.ref((await served.load(name)).predictor))
                served.find("m0")
                assert len(served.services) <= 3
                assert [*served.services] == [*dict.fromkeys(["first", "m0", name])], number
            # Without a garbage collection, which may come late
            assert [reference() is not None for reference in predictors] == [True, *[False] * 4, True]
            await served.load("m0")  # replaces itself
            assert [*served.services] == ["first", "m0", "m5"]
            await served.stop()

    asyncio.run(load_all())


def test_error_names_no_folder_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "real" / "damaged"
    model.mkdir(parents=True)
    (model / "inference.yml").write_text("{}", encoding="utf-8")
    (model / "inference.onnx").write_bytes(b"damaged")
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    with TimedPool(1, "model") as worker:
        for folder in (tmp_path / "real", tmp_path / "link", Path("real"), Path("link"), Path("./real")):
            served = ServedModels({}, worker, BatchingOptions(1, 0.0, 1), LoadableModels(folder))
            with pytest.raises(RequestError) as caught:
                asyncio.run(served.load("damaged"))
            assert str(caught.value).startswith("damaged/inference."), folder
            assert str(tmp_path) not in str(caught.value)


@pytest.mark.parametrize("own_thread", [True, False])
def test_other_models_answer_while_one_is_loaded(
    models: Path, images: list[bytes], tmp_path: Path, own_thread: bool
) -> None:
    """The batches that warm up a model take turns with those of requests."""
    for number in range(3):
        shutil.copytree(models / "second", tmp_path / f"m{number}")

    async def count_answers() -> list[int]:
        with TimedPool(1, "model") as worker, TimedPool(1, "loader") as loader:
            loaded = {"first": load(find_source(models / "first"), 4)}
            served = ServedModels(
                loaded,
                worker,
                BatchingOptions(4, 0.0, 4),
                LoadableModels(tmp_path),
                loader if own_thread else None,
            )
            served.start()
            counts = []
            for number in range(3):
                loading = asyncio.create_task(served.load(f"m{number}"))
                await asyncio.sleep(0)
                counts.append(0)
                while not loading.done():
                    await served.services["first"].predict(images[:1])
                    counts[-1] += 1
                assert loading.result() is served.services[f"m{number}"]
            await served.stop()
            return counts

    # One answer per model if requests waited for all batches that warm it up, of which a busy machine runs 2
    assert sum(asyncio.run(count_answers())) >= 6


def test_requests_need_an_api_key_and_are_logged_with_their_id(
    protected: Running, images: list[bytes]
) -> None:
    with protected.client() as client:
        for path in ("/", "/docs", "/live", "/ready"):
            assert client.get(path).status_code == 200, path
        for headers in ({}, {"X-API-Key": KEY[:-1]}, {"Authorization": f"Basic {KEY}"}):
            answer = client.get("/health", headers=headers)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        valid = {"X-API-Key": KEY, "X-Request-ID": "order-7"}
        assert client.get("/openapi.json", headers=valid).headers["x-request-id"] == "order-7"
        answer = client.post("/predict", files={"image": b"no image"}, headers=valid)
        assert (answer.status_code, answer.headers["x-request-id"]) == (422, "order-7")
        invented = client.get("/live", headers={"X-Request-ID": 'a b"c'}).headers["x-request-id"]
        assert len(invented) == 32
    protected.process.send_signal(signal.SIGTERM)
    _, log = protected.process.communicate(timeout=GUARD)
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    by_path = {line["path"]: line for line in lines if "path" in line}
    found = by_path["/predict"]
    assert (
        found.items()
        >= {
            "level": "info",
            "method": "POST",
            "status": 422,
            "request_id": "order-7",
            "client": "127.0.0.1",
        }.items()
    )
    assert found["seconds"] >= 0
    assert by_path["/live"]["request_id"] == invented
    assert KEY not in log


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--api-key-file", "none"], "--api-key-file none: cannot be read: No such file or directory"),
        (
            ["--api-key-file", "short"],
            "expected one key per line, of at least 16 characters, found a key of 5",
        ),
        (["--models-folder", "."], "--models-folder .: expected a folder, and --api-key-file to protect it"),
        (["--tls-key", "short"], "--tls-key needs --tls-cert, the certificate of this key"),
        (["--tls-cert", "short"], "--tls-cert short: expected a certificate and its private key without a"),
        (
            ["--model", "{first}"],
            f"two models are named {NAME}; give each a name: --model NAME=",
        ),
    ],
)
def test_invalid_protection_is_an_error_before_models_load(
    models: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("short").write_text("short\n")
    first = str(models / "first")
    filled = [option.format(first=first) for option in options]
    assert serve_cli.serve(["--model", first, "--port", "0", *filled]) == 2
    assert message in capsys.readouterr().err


def test_request_id_of_a_failure_is_in_its_log_line(
    tree: dict[str, Any], images: list[bytes], tmp_path: Path
) -> None:
    config = write_config(tmp_path / "config.yaml", tree)
    code = "from ppcls.serve import preparation\npreparation.run = lambda *_: 1 / 0"
    with running(tmp_path, "-c", config, before=code) as server:
        headers = {"X-Request-ID": "order-8", "Content-Type": "image/png"}
        answer = httpx.post(f"{server.address}/predict", content=images[0], headers=headers, timeout=GUARD)
        server.process.send_signal(signal.SIGTERM)
        _, log = server.process.communicate(timeout=GUARD)
    assert (answer.status_code, answer.headers.get("x-request-id")) == (500, "order-8")
    assert "ERROR: Exception in ASGI application" in log
    assert "ZeroDivisionError" in log
    assert "[request order-8]" in log
