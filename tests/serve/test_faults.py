"""Faults of a running server, as its clients see them: statuses, /ready and headers."""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier

import httpx
import numpy as np
import onnx
import psutil
import pytest
from onnx import helper, numpy_helper
from PIL import Image
from running import running
from runs import GUARD
from small_classifier import export_model, forget_files
from sockets import exchange

pytestmark = pytest.mark.hostile
PNG = {"Content-Type": "image/png"}


def large_image() -> bytes:
    file = io.BytesIO()
    Image.new("L", (4200, 4200), 7).save(file, "PNG")
    return file.getvalue()


def test_ready_is_true_after_decoders_were_killed_again_and_again(exported: Path, tmp_path: Path) -> None:
    image = large_image()
    with running(tmp_path, "--model", exported) as server, server.client() as client:
        assert client.post("/predict", content=image, headers=PNG).status_code == 200
        for signal_number in (signal.SIGKILL, signal.SIGSEGV) * 2:
            for child in psutil.Process(server.process.pid).children(recursive=True):
                os.kill(child.pid, signal_number)
            status = client.post("/predict", content=image, headers=PNG).status_code
            # The fault is repaired at once, or the server says that it is not.
            assert status == client.get("/ready").status_code
            assert status == 200


def test_ready_is_false_while_no_decoder_can_be_started(exported: Path, tmp_path: Path) -> None:
    image = large_image()
    with running(tmp_path, "--model", exported) as server, server.client() as client:
        assert client.post("/predict", content=image, headers=PNG).status_code == 200
        process = psutil.Process(server.process.pid)
        for child in process.children(recursive=True):
            child.kill()
        limits = process.rlimit(psutil.RLIMIT_NOFILE)
        process.rlimit(psutil.RLIMIT_NOFILE, (process.num_fds(), limits[1]))  # so no pipe can be opened
        answer = client.post("/predict", content=image, headers=PNG)
        assert (answer.status_code, client.get("/ready").status_code) == (503, 503)
        process.rlimit(psutil.RLIMIT_NOFILE, limits)
        end = time.monotonic() + GUARD
        while client.get("/ready").status_code == 503:
            assert time.monotonic() < end
            time.sleep(0.1)
        assert client.post("/predict", content=image, headers=PNG).status_code == 200


def wait_for(client: httpx.Client, status: int, image: bytes | None = None) -> None:
    """Waits until /ready, or the prediction of an image, has a status."""
    end = time.monotonic() + GUARD
    while True:
        answer = client.post("/predict", content=image, headers=PNG) if image else client.get("/ready")
        if answer.status_code == status:
            return
        assert time.monotonic() < end, answer.text
        time.sleep(0.2)


@pytest.mark.slow
def test_processes_that_hang_are_replaced_or_make_the_server_unready(exported: Path, tmp_path: Path) -> None:
    """A stopped process hangs as one in an endless loop of C++ code does: it neither answers nor ends."""
    large = large_image()
    with running(tmp_path, "--model", exported, "--timeout", "10") as server, server.client() as client:
        wait_for(client, 200, large)
        main = psutil.Process(server.process.pid)
        decoders = [process for process in main.children(recursive=True) if process.parent() != main]
        assert decoders
        for process in decoders:
            process.suspend()
        assert client.post("/predict", content=large, headers=PNG).status_code == 504
        wait_for(client, 200, large)  # by another process
        assert client.get("/ready").status_code == 200
        # Now also the process from which others are forked, so none can be started.
        helpers = main.children(recursive=True)
        for process in helpers:
            process.suspend()
        assert client.post("/predict", content=large, headers=PNG).status_code == 504
        wait_for(client, 503)
        assert client.post("/predict", content=large, headers=PNG).status_code == 503
        assert client.post("/predict", content=plain(7), headers=PNG).status_code == 200
        for process in helpers:
            with suppress(psutil.NoSuchProcess):
                process.resume()
        wait_for(client, 200)
        wait_for(client, 200, large)


# Makes the model fail for black images, and hang for white ones.
FAULTY = """
import time
from ppcls.deploy.predictor import Predictor
run = Predictor.run
def faulty(self, images):
    if images[0].max() < 0:
        raise RuntimeError("a bug")
    if images[0].min() > 0:
        time.sleep(900)
    return run(self, images)
Predictor.run = faulty
"""


def plain(colour: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (32, 32), colour).save(file, "PNG")
    return file.getvalue()


def first_unready(client: httpx.Client) -> httpx.Response:
    """Waits until /ready reports the hanging model: its time starts a little later than the request's."""
    end = time.monotonic() + GUARD
    while (answer := client.get("/ready")).status_code == 200:
        assert time.monotonic() < end
        time.sleep(0.05)
    return answer


def test_all_answers_forbid_browsers_to_guess_their_type(exported: Path, tmp_path: Path) -> None:
    options = [
        "--model",
        exported,
        "--timeout",
        "3",
        "--max-mib",
        "0.05",
        "--max-waiting",
        "2",
        "--max-images",
        "2",
    ]
    origin = {"Origin": "https://evil.example"}
    both = b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
    with running(tmp_path, *options, before=FAULTY) as server, server.client() as client:
        answers = [
            (200, client.get("/")),
            (200, client.get("/docs")),
            (200, client.get("/openapi.json")),
            (200, client.get("/metrics")),
            (200, client.get("/live")),
            (307, client.get("/live/")),
            (400, client.post("/predict", content=b"", headers=PNG)),
            (400, client.get("/live", headers={"Host": "evil.example"})),
            (403, client.post("/predict", content=b"x", headers={**PNG, **origin})),
            (403, client.put("/models/x")),
            (404, client.get("/<script>alert(1)</script>")),
            (404, client.post("/predict?model=%3Cb%3E", content=b"x", headers=PNG)),
            (405, client.get("/predict")),
            (405, client.request("TRACE", "/live")),
            (413, client.post("/predict", content=bytes(60_000), headers=PNG)),
            (415, client.post("/predict", content=b"<html>", headers={"Content-Type": "text/html"})),
            (422, client.post("/predict", content=b"<html>", headers=PNG)),
            (500, client.post("/predict", content=plain(0), headers=PNG)),
            (504, client.post("/predict", content=plain(255), headers=PNG)),
            (503, first_unready(client)),
        ]
        raw = [
            (
                400,
                exchange(
                    server.address, b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 20_000 + b"\r\n\r\n"
                ),
            ),
            (400, exchange(server.address, b"\x16\x03\x01 no HTTP\r\n\r\n")),
            (400, exchange(server.address, head + both)),
            (408, exchange(server.address, head + b"Content-Length: 9\r\n\r\nx")),
        ]
    assert [answer.status_code for _, answer in answers] == [status for status, _ in answers]
    assert [int(text.split()[1]) for _, text in raw] == [status for status, _ in raw]
    for status, answer in answers:
        assert answer.headers.get_list("X-Content-Type-Options") == ["nosniff"], (status, answer.text)
    for status, text in raw:
        assert text.lower().count(b"\r\nx-content-type-options: nosniff\r\n") == 1, (status, text)
    # Only the pages are HTML. Names that clients send are in JSON.
    pages = [answer.url.path for _, answer in answers if "html" in answer.headers.get("Content-Type", "")]
    assert pages == ["/", "/docs"]


def hang_in_loop(file: Path, for_any_image: bool) -> None:
    """Changes a model so that ONNX Runtime is busy for weeks, in C++: for bright images, or all."""
    model = onnx.load(str(file))
    graph = model.graph
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["condition"], ["next_condition"]),
            helper.make_node("Neg", ["scores"], ["next_scores"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("step", onnx.TensorProto.INT64, []),
            helper.make_tensor_value_info("condition", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("next_condition", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("next_scores", onnx.TensorProto.FLOAT, None),
        ],
    )
    last = next(node for node in graph.node if graph.output[0].name in node.output)
    last.output[list(last.output).index(graph.output[0].name)] = "before_loop"
    numbers = {"steps": np.float32(1e15), "least": np.float32(1 if for_any_image else 0)}
    graph.initializer.extend(
        numpy_helper.from_array(np.array(value), name) for name, value in numbers.items()
    )
    graph.initializer.append(numpy_helper.from_array(np.array(True), "always"))
    graph.node.extend(
        [
            helper.make_node("ReduceMax", [graph.input[0].name], ["brightest"], keepdims=0),
            helper.make_node("Max", ["brightest", "least"], ["factor"]),
            helper.make_node("Mul", ["factor", "steps"], ["product"]),
            helper.make_node("Cast", ["product"], ["count"], to=onnx.TensorProto.INT64),
            helper.make_node("Loop", ["count", "always", "before_loop"], [graph.output[0].name], body=body),
        ]
    )
    onnx.save(model, str(file))


@pytest.mark.slow
def test_ready_is_false_while_a_model_hangs_in_c(tmp_path: Path) -> None:
    exported = export_model(tmp_path)
    forget_files(exported)
    (tmp_path / "models").mkdir()
    shutil.copytree(exported, tmp_path / "models" / "hangs")
    hang_in_loop(exported / "inference.onnx", for_any_image=False)
    hang_in_loop(tmp_path / "models" / "hangs" / "inference.onnx", for_any_image=True)
    key = "k" * 32
    (tmp_path / "keys.txt").write_text(key)
    options = ["--trust", "--model", exported, "--models-folder", tmp_path / "models", "--timeout", "2"]
    for load in (False, True):
        with running(tmp_path, *options, "--api-key-file", tmp_path / "keys.txt") as server:
            with server.client() as client:
                client.headers["X-API-Key"] = key
                assert client.post("/predict", content=plain(7), headers=PNG).status_code == 200
                assert client.get("/ready").status_code == 200
                if load:
                    with suppress(httpx.TimeoutException):
                        client.put("/models/hangs", timeout=1)
                else:
                    assert client.post("/predict", content=plain(255), headers=PNG).status_code == 504
                assert first_unready(client).status_code == 503
                assert client.get("/live").status_code == 200
                assert client.post("/predict", content=plain(7), headers=PNG).status_code == 504
            server.process.terminate()
            _, errors = server.process.communicate(timeout=GUARD)
            assert server.process.returncode == 1
            assert re.search("threads did not end within [0-9.]+ s after the signal", errors)


@pytest.mark.slow
def test_sigterm_answers_all_requests_after_a_paddle_model_was_loaded(tmp_path: Path) -> None:
    """Paddle replaces the handler of SIGTERM when it is imported, here in a thread of the running server."""
    exported = export_model(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "other").mkdir()
    export_model(tmp_path / "other", "paddle").rename(tmp_path / "models" / "paddle")
    (tmp_path / "keys.txt").write_text("k" * 32)
    options = ["--model", exported, "--models-folder", tmp_path / "models"]
    with (
        running(tmp_path, *options, "--api-key-file", tmp_path / "keys.txt") as server,
        ThreadPoolExecutor(60) as pool,
    ):
        headers = {"X-API-Key": "k" * 32, **PNG}
        with server.client() as client:
            assert client.put("/models/paddle", headers=headers).status_code == 200
        connected = Barrier(61)

        def ask(number: int) -> int:
            with server.client() as client:
                assert client.get("/live").status_code == 200
                connected.wait()
                image = plain(number)
                return client.post("/predict?model=paddle", content=image, headers=headers).status_code

        asked = [pool.submit(ask, number) for number in range(60)]
        connected.wait()
        time.sleep(0.05)
        server.process.terminate()
        output, errors = server.process.communicate(timeout=GUARD)
        # A connection may be closed before its request arrives. No accepted request is lost.
        answers = [each.result() for each in asked if not isinstance(each.exception(), httpx.TransportError)]
        refused = sum(isinstance(each.exception(), httpx.TransportError) for each in asked)
    assert server.process.returncode == 0, errors
    assert output == "stopped: all requests were answered\n"
    assert set(answers) <= {200, 503}
    assert answers.count(200) > 0
    assert answers.count(200) + answers.count(503) + refused == 60
