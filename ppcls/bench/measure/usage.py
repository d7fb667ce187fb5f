"""Resource usage of a stretch of work: CPU time of this process and its children, load of the GPU."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from threading import Event, Thread

import psutil

from ppcls.runtime.hardware import Card, CardLoad

_INTERVAL = 0.5  # seconds between two queries of the GPU, which reports means over about as long


@dataclass(frozen=True)
class ResourceUsage:
    """Resources used.

    Attributes:
        cpu_seconds: CPU time of all threads and child processes.
        gpu_load: Median share of the time in which a kernel ran, 0..1; None without a GPU, or if the driver
            does not report it.
        jpeg_load: The same for the GPU's JPEG decoder.
        gpu_memory: Peak memory of the card, by all its users, in MiB; None without a GPU.
    """

    cpu_seconds: float
    gpu_load: float | None = None
    jpeg_load: float | None = None
    gpu_memory: int | None = None


class UsageMeter:
    """Measures resource usage from `start` to `stop`.

    Args:
        card: GPU to query; None to measure the CPU only.
    """

    def __init__(self, card: Card | None = None) -> None:
        self._card = card
        self._process = psutil.Process()
        self._began, self._children = 0.0, dict[int, float]()
        self._loads: list[CardLoad] = []
        self._stop = Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Starts measuring."""
        if self._card is not None:
            self._loads, self._stop = [], Event()
            self._thread = Thread(target=self._query, args=(self._card, self._stop), daemon=True)
            self._thread.start()
        self._children, self._began = self._children_seconds(), time.process_time()

    def stop(self) -> ResourceUsage:
        """Returns the usage since `start`."""
        seconds = time.process_time() - self._began
        # A child that is new spent all its time since `start`.
        for pid, spent in self._children_seconds().items():
            seconds += spent - self._children.get(pid, 0.0)
        if self._thread is None:
            return ResourceUsage(seconds)
        self._stop.set()
        self._thread.join()
        gpu, jpeg = [load.gpu for load in self._loads], [load.jpeg for load in self._loads]
        return ResourceUsage(seconds, _median(gpu), _median(jpeg), max(load.used for load in self._loads))

    def _children_seconds(self) -> dict[int, float]:
        """Returns the CPU seconds of each child process so far."""
        seconds = {}
        for child in self._process.children(recursive=True):
            try:
                times = child.cpu_times()
            except psutil.NoSuchProcess:  # it has just ended
                continue
            seconds[child.pid] = times.user + times.system
        return seconds

    def _query(self, card: Card, stop: Event) -> None:
        while True:
            self._loads.append(card.load())
            if stop.wait(_INTERVAL):
                return


def _median(shares: list[float | None]) -> float | None:
    known = [share for share in shares if share is not None]
    return statistics.median(known) if known else None
