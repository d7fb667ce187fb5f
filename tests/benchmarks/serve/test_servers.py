"""Servers under load, measured by the command."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cv2
import numpy as np
import pytest
from finished_candidates import finished
from small_classifier import export_model, write_image

from benchmarks.run import main as benchmark
from benchmarks.serve.load import measure_load
from benchmarks.serve.servers import BATCHED, PLAIN, UNBATCHED, compare_servers, read_images
from ppcls.bench.results.schema import read_results
from ppcls.engine.autotune.processes import MeasurementFailed


@pytest.mark.slow
def test_benchmark_serve_measures_all_servers_with_each_number_of_clients(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = export_model(tmp_path)
    image = write_image(tmp_path / "image.png", 0)
    options = ["--clients", "1", "3", "--rounds", "1", "--requests", "6", "--warm-up", "1"]
    command = ["serve", "--model", str(model), "--images", str(image), *options]
    assert benchmark([*command, "--out", str(tmp_path / "out")]) == 0
    rows = read_results(tmp_path / "out").rows
    found = [(row.labels["server"], row.labels["clients"]) for row in rows]
    assert found == [(server, count) for count in (1, 3) for server in (BATCHED, UNBATCHED, PLAIN)]
    for row in rows:
        times = [row.metrics[name].median for name in ("p50", "p95", "p99")]
        assert 0 < times[0] <= times[1] <= times[2]
        assert row.metrics["images/s"].median > 0


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """Answers every request of one client with the same bytes."""
    ready, stop = threading.Event(), threading.Event()
    address: list[str] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (head := await reader.read(1000)) and head:
            writer.write(answer)
        writer.close()

    async def serve() -> None:
        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        address.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        ready.set()
        while not stop.is_set():
            await asyncio.sleep(0.01)
        server.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    ready.wait()
    try:
        yield address[0]
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 503 x\r\nContent-Length: 4\r\n\r\nbusy", "expected status 200, got HTTP/1.1 503 x: busy"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", ""),
        (b"HTTP/1.1 200 OK\r\n\r\n", "expected a response with the header Content-Length"),
    ],
)
def test_load_counts_answers_and_reports_failures(answer: bytes, reason: str) -> None:
    with answering(answer) as address:
        if not reason:
            assert measure_load(address, [b"x"], 2, 1.0, requests=5)["requests"] == 6, "three per client"
            return
        with pytest.raises(MeasurementFailed) as failed:
            measure_load(address, [b"x"], 1, 1.0, requests=5)
    assert failed.value.reason == reason


def test_conclusions_compare_servers_with_equal_clients() -> None:
    rates = {BATCHED: 30.0, UNBATCHED: 20.0, PLAIN: 10.0}
    measured = [
        finished(server, server, [{"images_per_second": rate}], labels={"clients": 8})
        for server, rate in rates.items()
    ]
    other = finished(PLAIN, PLAIN, [{"images_per_second": 1.0}], labels={"clients": 1})
    (text,) = compare_servers([*measured, other])
    ratios = f"1.5 times those of {UNBATCHED}, 3.0 times those of {PLAIN}"
    assert text == f"Images/s of {BATCHED} with 8 client(s): {ratios}."


def test_generated_images_are_jpegs() -> None:
    pixels = cv2.imdecode(np.frombuffer(read_images([])[3], np.uint8), cv2.IMREAD_COLOR)
    assert pixels.shape == (375, 500, 3)
