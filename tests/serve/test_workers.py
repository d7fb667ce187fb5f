"""Servers with several processes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from running import Running, running
from runs import GUARD
from small_classifier import export_model, forget_files

from ppcls.cli.serve import serve

WORKERS = 2


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def server(model: Path, tmp_path: Path) -> Iterator[Running]:
    options = ["--workers", str(WORKERS), "--max-batch", "2", "--log-format", "json"]
    with running(tmp_path, "--model", model, *options) as started:
        yield started


def worker_processes(server: Running) -> set[int]:
    children = psutil.Process(server.process.pid).children()
    return {child.pid for child in children if "spawn_main" in " ".join(child.cmdline())}


def predict(server: Running, image: bytes) -> httpx.Response:
    """Sends an image over a connection of its own, which the kernel gives to any of the workers."""
    return httpx.post(
        f"{server.address}/predict", content=image, headers={"Content-Type": "image/png"}, timeout=GUARD
    )


def predicted_images(server: Running) -> float:
    metrics = httpx.get(f"{server.address}/metrics", timeout=GUARD).text
    found = re.search(r"^ppcls_images_total\{.*\} (.*)$", metrics, re.MULTILINE)
    assert found is not None
    return float(found[1])


@pytest.mark.slow
def test_workers_share_the_port_and_one_that_is_killed_is_replaced(
    server: Running, images: list[bytes]
) -> None:
    before = worker_processes(server)
    assert len(before) == WORKERS
    answers = [predict(server, images[0]) for _ in range(12)]
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.text for answer in answers}) == 1
    assert predicted_images(server) == 12, "the metrics of all workers are added up"

    killed = min(before)
    os.kill(killed, signal.SIGKILL)
    assert server.process.stderr is not None
    text = f"worker process {killed} ended with exit code -9; restarting it"
    # The runtime may write lines of its own.
    warning = json.loads(next(line for line in server.process.stderr if text in line))
    assert (warning["level"], warning["message"]) == ("warning", text)
    end = time.monotonic() + GUARD
    while len(worker_processes(server)) < WORKERS and time.monotonic() < end:
        time.sleep(0.05)
    assert [predict(server, images[0]).text for _ in range(4)] == [answers[0].text] * 4
    assert predicted_images(server) == 16, "the metrics of the killed worker remain"

    server.process.terminate()
    output, errors = server.process.communicate(timeout=GUARD)
    assert server.process.returncode == 0, errors
    assert json.loads(output)["message"] == "stopped: all requests were answered"
    for line in errors.splitlines():
        assert json.loads(line)["level"]


def test_workers_end_when_their_parent_is_killed(server: Running) -> None:
    workers = [psutil.Process(pid) for pid in worker_processes(server)]
    server.process.kill()
    _, alive = psutil.wait_procs(workers, timeout=GUARD)
    assert not alive


def test_model_that_cannot_be_loaded_ends_all_workers(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "inference.yml").write_bytes((model / "inference.yml").read_bytes())
    forget_files(broken)
    (broken / "inference.onnx").write_bytes(b"no model")
    assert serve(["--model", str(broken), "--workers", "2", "--port", "0"]) == 2
    errors = capfd.readouterr().err
    assert errors.count("not an exported network") == 1
    assert "a worker ended with exit code 2 before it accepted requests" in errors


def test_workers_with_models_folder_is_an_error(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text("x" * 32)
    options: list[Any] = ["--models-folder", model, "--api-key-file", keys, "--workers", "2"]
    assert serve(["--model", str(model), *map(str, options)]) == 2
    assert "--workers 2: expected 1 with --models-folder" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.hostile
def test_other_workers_serve_if_one_cannot_be_replaced(
    model: Path, tmp_path: Path, images: list[bytes]
) -> None:
    copy = shutil.copytree(model, tmp_path / "copy")
    with running(tmp_path, "--model", copy, "--workers", str(WORKERS), "--max-batch", "2") as server:
        copy.rename(tmp_path / "away")
        os.kill(min(worker_processes(server)), signal.SIGKILL)
        assert server.process.stderr is not None
        while not (line := server.process.stderr.readline()).endswith("serve; trying again in 10 s\n"):
            assert line, "the server ended"
        assert "1 of 2 workers serve" in line
        assert predict(server, images[0]).status_code == 200
        (tmp_path / "away").rename(copy)
        end = time.monotonic() + GUARD
        while len(worker_processes(server)) < WORKERS and time.monotonic() < end:
            time.sleep(0.05)
        assert [predict(server, images[0]).status_code for _ in range(4)] == [200] * 4
