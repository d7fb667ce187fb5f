from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from running import TOOL, Running, running
from runs import GUARD
from small_classifier import CLASSES, write_config, write_huge_png

from ppcls.cli import export as export_cli
from ppcls.deploy.predictor import Predictor
from ppcls.postprocess.results import Classification
from ppcls.recipe.load import validate


@pytest.fixture(scope="module")
def expected(tree: dict[str, Any], images: list[bytes]) -> list[Classification]:
    return Predictor(validate(tree, "test")).predict(images)


def post(server: Running, *images: bytes, **query: Any) -> httpx.Response:
    with server.client() as client:
        return client.post("/predict", files=[("image", ("a", each)) for each in images], params=query)


def same(answer: httpx.Response, expected: list[Classification]) -> None:
    assert answer.status_code == 200, answer.text
    found = [each["predictions"] for each in answer.json()["results"]]
    assert [[one["class_id"] for one in each] for each in found] == [
        list(each.class_ids) for each in expected
    ]
    assert [[one["name"] for one in each] for each in found] == [list(each.names or ()) for each in expected]
    scores = [[one["score"] for one in each] for each in found]
    np.testing.assert_allclose(scores, [each.scores for each in expected], atol=1e-5)


def test_predict_answers_forms_and_single_images(
    server: Running, images: list[bytes], expected: list[Classification]
) -> None:
    same(post(server, *images), expected)
    with server.client() as client:
        for kind in ("image/png", "application/octet-stream"):
            answer = client.post("/predict", content=images[2], headers={"Content-Type": kind})
            same(answer, expected[2:3])
    (best,) = post(server, images[0], topk=1).json()["results"][0]["predictions"]
    assert best["class_id"] == expected[0].class_ids[0]
    assert best["name"] in CLASSES
    ranked = post(server, images[0], topk=3).json()["results"][0]["predictions"]
    assert len(expected[0].class_ids) == 2, "the default of the model"
    assert [row["class_id"] for row in ranked][:2] == list(expected[0].class_ids)
    assert {row["name"] for row in ranked} == set(CLASSES)


def test_concurrent_requests_get_their_own_answers(
    server: Running, images: list[bytes], expected: list[Classification]
) -> None:
    answers: dict[int, httpx.Response] = {}
    threads = [
        threading.Thread(
            target=lambda at=at: answers.__setitem__(at, post(server, images[at % 6], images[0]))
        )
        for at in range(18)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for at, answer in answers.items():
        same(answer, [expected[at % 6], expected[0]])
    assert len(answers) == 18


def huge(tmp_path: Path) -> bytes:
    write_huge_png(tmp_path / "huge.png")
    return (tmp_path / "huge.png").read_bytes()


def test_bad_images_are_named_with_the_reason(server: Running, images: list[bytes], tmp_path: Path) -> None:
    answer = post(server, images[0], b"", b"no image", images[1][:-60], huge(tmp_path))
    assert answer.status_code == 422
    error = answer.json()
    assert [each["image"] for each in error["images"]] == [1, 2, 3, 4]
    reasons = [each["reason"] for each in error["images"]]
    assert reasons[0] == "the file is empty"
    assert reasons[1] == "not an image that can be decoded"
    assert "200000x200000 pixels are more than DecodeImage's max_pixels" in reasons[3]
    assert error["error"] == "; ".join(f"image {at}: {why}" for at, why in enumerate(reasons, start=1))
    alone = post(server, b"no image")
    assert (alone.status_code, alone.json()["error"]) == (422, "not an image that can be decoded")


@pytest.mark.parametrize(
    ("method", "path", "options", "status", "reason"),
    [
        ("POST", "/predict", {}, 415, "expected Content-Type multipart/form-data"),
        ("POST", "/predict", {"json": {"image": "a.jpg"}}, 415, "got 'application/json'"),
        (
            "POST",
            "/predict",
            {"headers": {"Content-Type": "image/png"}},
            400,
            "the request contains no image",
        ),
        (
            "POST",
            "/predict",
            {"files": [("a", (f"{i}", b"x")) for i in range(7)]},
            413,
            "too many images: expected at most 6",
        ),
        (
            "POST",
            "/predict",
            {"content": b"x" * 52_429, "headers": {"Content-Type": "image/png"}},
            413,
            "the request is too large: expected at most 52428 bytes",
        ),
        (
            "POST",
            "/predict?topk=0",
            {"files": {"a": b"x"}},
            400,
            "topk: expected one integer > 0, got '0'",
        ),
        ("POST", "/predict?topk=4", {"files": {"a": b"x"}}, 422, "topk: expected at most 3, the number of"),
        ("POST", "/predict?topk=1&topk=2", {"files": {"a": b"x"}}, 400, "topk: expected one integer > 0"),
        ("POST", "/predict?topk=__import__('os')", {"files": {"a": b"x"}}, 400, "topk: expected one"),
        ("GET", "/predict", {}, 405, "Method Not Allowed"),
        ("GET", "/../../../../etc/passwd", {}, 404, "Not Found"),
        ("GET", "/%2e%2e/%2e%2e/etc/passwd", {}, 404, "Not Found"),
        ("GET", "/redoc", {}, 404, "Not Found"),
        ("POST", "/predict?model=x", {"files": {"a": b"x"}}, 404, "model: expected one of WideResNet"),
        ("PUT", "/models/x", {}, 403, "this server cannot load models; start it with"),
        ("DELETE", "/models/WideResNet", {}, 403, "this server cannot unload models"),
    ],
)
def test_invalid_requests_are_explained(
    server: Running, method: str, path: str, options: dict[str, Any], status: int, reason: str
) -> None:
    with server.client() as client:
        answer = client.request(method, path, **options)
    assert answer.status_code == status, answer.text
    assert reason in answer.json()["error"]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(st.binary(max_size=400), st.binary(max_size=60).map(lambda tail: b"\x89PNG\r\n\x1a\n" + tail)),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=30),
    st.text(st.characters(min_codepoint=1, max_codepoint=0x2FF), max_size=12),
    st.sampled_from(["form", "image/png", "multipart/form-data; boundary=b", ""]),
)
def test_garbage_is_answered_and_leaves_nothing(
    server: Running, folder: Path, body: bytes, path: str, name: str, kind: str
) -> None:
    with server.client() as client:
        if kind == "form":
            answer = client.post("/predict", files={"image": (f"../../{name}", body)})
        else:
            answer = client.post("/predict", content=body, headers={"Content-Type": kind} if kind else {})
        assert 400 <= answer.status_code < 500, answer.text
        assert answer.json()["error"]
        target = b"/x" + quote(path, safe="/%.;:@&=+$,~").encode()
        assert client.get(httpx.URL(server.address).copy_with(raw_path=target)).status_code == 404
        assert client.get("/health").json()["status"] == "ok"
    assert list(folder.iterdir()) == []


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 5), st.floats(0, 1), st.integers(1, 255), st.booleans())
def test_damaged_image_is_answered(
    server: Running, images: list[bytes], which: int, place: float, change: int, cut: bool
) -> None:
    data = bytearray(images[which])
    at = int(place * (len(data) - 1))
    data[at] ^= change
    answer = post(server, bytes(data[: at + 1] if cut else data))
    assert answer.status_code in (200, 422), answer.text


def test_file_names_of_uploads_are_not_used(server: Running, images: list[bytes], folder: Path) -> None:
    for name in (
        "../../evil.png",
        "/etc/passwd",
        "$(touch evil)",
        "`touch evil`",
        "a;touch evil",
        "x\0y",
        "|id",
    ):
        with server.client() as client:
            assert client.post("/predict", files={"image": (name, images[0])}).status_code == 200
    assert list(folder.iterdir()) == []
    assert not (folder.parent / "evil.png").exists()


def test_invalid_http_is_rejected(server: Running, images: list[bytes]) -> None:
    where = urlsplit(server.address)
    for said in (
        b"\0\xff\0\r\n\r\n",
        b"GET / HTTP/9\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\nContent-Length: 3\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /live HTTP/1.1\r\nHost: x\r\n\r\n",
    ):
        with socket.create_connection((where.hostname, where.port), timeout=GUARD) as connection:
            connection.sendall(said)
            answer = b""
            while part := connection.recv(1000):
                answer += part
            assert b" 400 " in answer.split(b"\r\n")[0]
            assert answer.count(b"HTTP/1.1 ") == 1, "the connection is closed"
    with socket.create_connection((where.hostname, where.port), timeout=GUARD) as connection:
        connection.sendall(
            b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\nContent-Length: 99\r\n\r\nabc"
        )
    assert post(server, images[0]).status_code == 200, "a client that disconnects within a body does no harm"


def test_health_and_metrics_report_requests_and_errors(server: Running, images: list[bytes]) -> None:
    def metrics() -> dict[str, float]:
        with server.client() as client:
            lines = client.get("/metrics").text.splitlines()
        return {
            name: float(value) for name, value in (each.rsplit(" ", 1) for each in lines if each[0] != "#")
        }

    with server.client() as client:
        about = client.get("/health").json()
        assert [client.get(path).json() for path in ("/live", "/ready")] == [{"status": "ok"}] * 2
        described = client.get("/openapi.json").json()
    assert about == {
        "status": "ok",
        "model": "WideResNet",
        "classes": 3,
        "heat_maps": True,
        "max_bytes": 52_428,
        "max_images": 6,
        "timeout": 30.0,
    }
    assert set(described["paths"]["/predict"]["post"]["responses"]) >= {"200", "413", "422", "503", "504"}
    before = metrics()
    assert post(server, *images[:3]).status_code == 200
    assert post(server, b"no image").status_code == 422
    after = metrics()
    grown = {name: after[name] - before.get(name, 0) for name in after}
    assert grown['ppcls_requests_total{status="200"}'] == 1
    assert grown['ppcls_requests_total{status="422"}'] == 1
    model = '{model="WideResNet"}'
    for name in ("images_total", "batch_images_sum", "queue_seconds_count"):
        assert grown[f"ppcls_{name}{model}"] == 3, name
    assert grown[f"ppcls_preparation_seconds_count{model}"] == 4, "the bad image is counted too"
    assert grown[f"ppcls_model_seconds_count{model}"] >= 1
    assert after[f"ppcls_images_in_work{model}"] == 0


@pytest.mark.parametrize("kind", [pytest.param("paddle", marks=pytest.mark.slow), "onnx"])
def test_sigterm_answers_current_requests_of_exported_models(
    tree: dict[str, Any], tmp_path: Path, images: list[bytes], expected: list[Classification], kind: str
) -> None:
    config = write_config(tmp_path / "config.yaml", tree)
    place = ["--format", kind, "-o", f"Global.save_inference_dir={tmp_path / kind}"]
    assert export_cli.export(["-c", str(config), *place]) == 0
    options = ["--max-wait", "1000", "--max-batch", "3", "-o", "Global.device=cpu"]
    with running(tmp_path, "--model", tmp_path / kind, *options) as server:
        same(post(server, *images[:3]), expected[:3])
        answers: list[httpx.Response] = []
        waiting = False
        while not waiting:  # for others to join its batch
            asks = threading.Thread(target=lambda: answers.append(post(server, images[3])))
            asks.start()
            while asks.is_alive() and not waiting:
                with server.client() as client:
                    waiting = bool(re.search("ppcls_images_in_work{.*} 1.0", client.get("/metrics").text))
        server.process.send_signal(signal.SIGTERM)
        asks.join()
        for answer in answers:
            same(answer, expected[3:4])
        said, complained = server.process.communicate(timeout=GUARD)
    assert server.process.returncode == 0
    assert said == "stopped: all requests were answered\n"
    assert not re.findall("Traceback|ERROR|now always track", complained), complained


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--model", "gone"], 2, "error: gone: no such file or folder; expected a checkpoint folder"),
        (["--model", "gone", "--max-batch", "0"], 2, "expected an integer >= 1 and <= 4096, got '0'"),
        (["--model", "gone", "--timeout", "nan"], 2, "expected a number >= 0.1 and <= 3600, got 'nan'"),
        (
            ["--model", "gone", "--max-images", "9", "--max-waiting", "8"],
            2,
            "error: --max-images 9: expected at most --max-waiting (8), because larger requests would always",
        ),
        ([], 2, "expected --model PATH, such as --model runs/pets, or -c CONFIG"),
    ],
)
def test_serve_with_invalid_options_is_an_error(
    tmp_path: Path, options: list[str], code: int, message: str
) -> None:
    done = subprocess.run(
        [sys.executable, str(TOOL), *options], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == code
    assert done.stdout in ("", "loading gone ...\n")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
