"""Clients that send images to a server. Each client waits for a response before it sends the next image."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from benchmarks.latency import latency_sample
from ppcls.engine.autotune.processes import MeasurementFailed

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


def measure_load(
    address: str, images: Sequence[bytes], clients: int, seconds: float, requests: int | None = None
) -> dict[str, Any]:
    """Measures a server under the load of several clients at the same time.

    Args:
        address: URL of the server.
        images: Encoded images to send.
        clients: Number of clients.
        seconds: Duration of the measurement, if ``requests`` is None.
        requests: Total number of requests.

    Returns:
        ``p50``, ``p95`` and ``p99`` in seconds, ``images_per_second`` and the number of ``requests``.

    Raises:
        MeasurementFailed: The status of a response is not 200, or the server closed a connection.
    """
    where = urlsplit(address)
    bodies = [_request(where.netloc, image) for image in images]
    latencies: list[float] = []
    end = time.perf_counter() + seconds if requests is None else float("inf")
    requests_per_client = float("inf") if requests is None else -(-requests // clients)

    async def ask_until_end(number: int) -> None:
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        try:
            sent = 0
            while sent < requests_per_client and time.perf_counter() < end:
                start = time.perf_counter()
                await _ask(reader, writer, bodies[(number + sent) % len(bodies)])
                latencies.append(time.perf_counter() - start)
                sent += 1
        finally:
            writer.close()

    async def run() -> None:
        await asyncio.gather(*map(ask_until_end, range(clients)))

    began = time.perf_counter()
    try:
        asyncio.run(run())
    except (OSError, EOFError) as error:
        raise MeasurementFailed(f"the server closed a connection: {error}") from None
    return latency_sample(latencies, time.perf_counter() - began, 1, (50, 95, 99))


def _request(host: str, image: bytes) -> bytes:
    head = f"POST /predict HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/octet-stream\r\n"
    return f"{head}Content-Length: {len(image)}\r\n\r\n".encode() + image


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> None:
    writer.write(request)
    await writer.drain()
    head = await reader.readuntil(b"\r\n\r\n")
    length = _LENGTH.search(head)
    if length is None:
        raise MeasurementFailed("expected a response with the header Content-Length")
    body = await reader.readexactly(int(length[1]))
    if head.split(b" ", 2)[1] != b"200":
        status = head.split(b"\r\n")[0].decode("latin-1")
        raise MeasurementFailed(f"expected status 200, got {status}: {body[:200].decode('utf-8', 'replace')}")
