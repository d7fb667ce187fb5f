"""The servers that ``benchmarks/run.py serve`` compares."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from benchmarks.serve.load import measure_load
from ppcls.bench.measure.runner import Candidate, Effort
from ppcls.bench.results.schema import Label
from ppcls.engine.autotune.processes import MeasurementFailed, started_process
from ppcls.report.summary.rounding import format_ratio_with_range
from ppcls.runtime.launch import ppcls_command

BATCHED = "ppcls serve"
UNBATCHED = "ppcls serve, without batching"
PLAIN = "plain FastAPI"
# number of generated images, and their height and width
_IMAGES = 16
_SIZE = (375, 500)


class RunningServers(ExitStack):
    """Starts servers when they are first measured, and stops all of them at the end of the ``with`` block.

    Args:
        commands: Command line of each server. A line of its output contains ``served on ADDRESS``.
    """

    def __init__(self, commands: Mapping[str, Sequence[str]]) -> None:
        super().__init__()
        self._commands = commands
        self._addresses: dict[str, str] = {}

    def address(self, server: str) -> str:
        """Returns the address of a server, which is started if necessary.

        Raises:
            MeasurementFailed: The server did not start.
        """
        if server not in self._addresses:
            command = self._commands[server]
            process = self.enter_context(started_process(command, stdout=subprocess.PIPE, text=True))
            assert process.stdout is not None  # because of PIPE
            lines = (line.partition(" served on ") for line in process.stdout)
            rest = next((rest for _, separator, rest in lines if separator), None)
            if rest is None:
                raise MeasurementFailed("the server did not start; see its output above")
            self._addresses[server] = rest.split()[0]
        return self._addresses[server]


def server_commands(model: Path, clients: Sequence[int], *, trust: bool = False) -> dict[str, Sequence[str]]:
    """Returns the command lines of the servers for a model, with limits that allow all clients."""
    trusted = ["--trust"] if trust else []
    limits = ["--max-connections", str(max(512, 4 * max(clients))), "--max-waiting", str(max(256, *clients))]
    batched = ppcls_command("serve", "--model", str(model), "--port", "0", *limits, *trusted)
    return {
        BATCHED: batched,
        UNBATCHED: [*batched, "--max-batch", "1", "--max-wait", "0"],
        PLAIN: [sys.executable, str(Path(__file__).with_name("plain_server.py")), str(model), *trusted],
    }


def make_candidates(
    servers: RunningServers, model: str, clients: Sequence[int], images: Sequence[bytes], effort: Effort
) -> list[Candidate[str]]:
    """Returns one candidate per server and number of clients. The key of a candidate is the server's name."""

    def measure(server: str, count: int) -> dict[str, Any]:
        address = servers.address(server)
        measure_load(address, images, count, effort.seconds, max(effort.warm_up, count))
        return measure_load(address, images, count, effort.seconds, effort.counted)

    candidates = []
    for count in clients:
        for server in (BATCHED, UNBATCHED, PLAIN):
            labels: dict[str, Label] = {"model": model, "server": server, "clients": count}
            name = f"{server}, clients: {count}"
            candidates.append(Candidate(server, name, partial(measure, server, count), labels))
    return candidates


def read_images(paths: Sequence[Path]) -> list[bytes]:
    """Returns encoded images: the contents of the files or, without paths, JPEGs of 500x375 pixels."""
    if paths:
        from ppcls.data.images.paths import find_images

        return [file.read_bytes() for file in find_images(paths)]
    random = np.random.default_rng(0)
    coarse = random.integers(0, 256, (_IMAGES, 24, 32, 3), np.uint8)
    pictures = [cv2.resize(image, _SIZE[::-1], interpolation=cv2.INTER_CUBIC) for image in coarse]
    return [cv2.imencode(".jpg", picture)[1].tobytes() for picture in pictures]


def compare_servers(measured: Sequence[Candidate[str]]) -> Iterator[str]:
    """Yields one sentence per number of clients, which compares ppcls serve with the other servers."""
    done = [each for each in measured if each.samples]
    for batched in [each for each in done if each.key == BATCHED]:
        clients = batched.labels["clients"]
        others = [each for each in done if each.labels["clients"] == clients and each is not batched]
        ratios = [
            f"{format_ratio_with_range(batched.ratio(other).values, 'times')} those of {other.key}"
            for other in others
        ]
        if ratios:
            yield f"Images/s of {BATCHED} with {clients} client(s): {', '.join(ratios)}."
