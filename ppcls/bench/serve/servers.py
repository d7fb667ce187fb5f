"""The servers that ``ppcls benchmark serve`` compares, and the results."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from ppcls.bench.measure.processes import end_process
from ppcls.bench.measure.runner import Candidate, Effort, MeasurementFailed, Measurements
from ppcls.bench.results.schema import ChartSpec, ResultRow
from ppcls.bench.serve.load import measure_load
from ppcls.errors import UserError

EFFORT = Effort(warm_up=20, timeout=600.0)
BATCHED, UNBATCHED, PLAIN = "ppcls serve", "ppcls serve, without batching", "plain FastAPI"
_ROOT = Path(__file__).resolve().parents[3]
_COMMAND = (
    f"import sys; sys.path.insert(0, {str(_ROOT)!r}); from ppcls.cli.main import main; sys.exit(main())"
)
_IMAGES, _SIZE = 16, (375, 500)  # random pictures, and their height and width
_PERCENTILES = ("p50", "p95", "p99")


@dataclass(frozen=True)
class ServerLoad:
    """A server and the number of its clients.

    Attributes:
        model: Name of the model.
        server: Which server.
        clients: Number of clients that send requests at the same time.
    """

    model: str
    server: str
    clients: int


class RunningServers:
    """Starts each server when it is first measured, and stops all of them at the end of the ``with`` block.

    Args:
        model: Path of the model.
        options: Further options of ``ppcls serve``.
    """

    def __init__(self, model: Path, options: Sequence[str]) -> None:
        run = [sys.executable, "-c", _COMMAND, "serve", "--model", str(model), "--port", "0", *options]
        self._commands = {
            BATCHED: run,
            UNBATCHED: [*run, "--max-batch", "1", "--max-wait", "0"],
            PLAIN: [sys.executable, str(Path(__file__).with_name("plain_server.py")), str(model)],
        }
        self._addresses: dict[str, str] = {}
        self._processes = ExitStack()

    def __enter__(self) -> RunningServers:
        return self

    def __exit__(self, *_: object) -> None:
        self._processes.close()

    def address(self, server: str) -> str:
        """Returns the address of a server.

        Raises:
            MeasurementFailed: It did not start.
        """
        if server not in self._addresses:
            self._addresses[server] = self._processes.enter_context(_started(self._commands[server]))
        return self._addresses[server]


@contextmanager
def _started(command: Sequence[str]) -> Iterator[str]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own command
    try:
        assert process.stdout is not None
        _, separator, rest = process.stdout.readline().partition(" served on ")
        if not separator:
            raise MeasurementFailed("the server did not start; see its output above")
        yield rest.split()[0]
    finally:
        end_process(process)


def make_candidates(
    servers: RunningServers, model: str, clients: Sequence[int], images: Sequence[bytes], effort: Effort
) -> list[Candidate[ServerLoad]]:
    """Returns one candidate per server and number of clients."""
    keys = [ServerLoad(model, server, count) for count in clients for server in (BATCHED, UNBATCHED, PLAIN)]
    return [
        Candidate(
            key, f"{key.server}, clients: {key.clients}", partial(_measure, servers, key, images, effort)
        )
        for key in keys
    ]


def _measure(
    servers: RunningServers, key: ServerLoad, images: Sequence[bytes], effort: Effort
) -> dict[str, Any]:
    address = servers.address(key.server)
    measure_load(address, images, key.clients, effort.seconds, max(effort.warm_up, key.clients))
    return measure_load(address, images, key.clients, effort.seconds, effort.counted)


def read_images(paths: Sequence[Path]) -> list[bytes]:
    """Returns the bytes of image files, or of generated JPEGs of 500x375 pixels if there are no paths."""
    if paths:
        from ppcls.data.images.paths import find_images

        return [file.read_bytes() for file in find_images(paths)]
    random = np.random.default_rng(0)
    coarse = random.integers(0, 256, (_IMAGES, 24, 32, 3), np.uint8)
    pictures = [cv2.resize(image, _SIZE[::-1], interpolation=cv2.INTER_CUBIC) for image in coarse]
    return [cv2.imencode(".jpg", picture)[1].tobytes() for picture in pictures]


def make_rows(measured: Sequence[Measurements[ServerLoad]]) -> list[ResultRow]:
    """Returns one row per server and number of clients."""
    return [
        ResultRow(
            asdict(measurement.key),
            {
                **{name: measurement.quantity(name, "ms", "less", 1e3) for name in _PERCENTILES},
                "images/s": measurement.rate(),
            }
            if measurement.samples
            else {},
            measurement.note,
        )
        for measurement in measured
    ]


def make_charts() -> list[ChartSpec]:
    """Returns charts of throughput and latency by the number of clients."""
    charts = [("Throughput", "images/s"), ("Median latency", "p50"), ("99th percentile of latency", "p99")]
    return [ChartSpec(title, metric, "clients", ("server",)) for title, metric in charts]


def find_conclusions(measured: Sequence[Measurements[ServerLoad]]) -> Iterator[str]:
    """Yields the speed with batching relative to the others, one sentence per number of clients."""
    by_key = {measurement.key: measurement for measurement in measured if measurement.samples}
    for key, measurement in by_key.items():
        if key.server != BATCHED:
            continue
        others = [other for other in by_key if other.clients == key.clients and other.server != BATCHED]
        ratios = [f"{measurement.ratio(by_key[other]).median:.2f} times {other.server}" for other in others]
        if ratios:
            yield f"Images/s of {BATCHED} with {key.clients} client(s): {', '.join(ratios)}."


def need_server_packages() -> None:
    """Checks that the packages of the server are installed.

    Raises:
        UserError: If not.
    """
    try:
        import fastapi  # noqa: F401
    except ImportError as error:
        raise UserError(f"benchmark serve: {error}; pip install 'ppcls[serve]'") from None
