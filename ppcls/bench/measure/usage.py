"""Measures resource usage: CPU time of this process and its children, and load and memory of the GPU."""

from __future__ import annotations

import statistics
import time
from threading import Event, Thread

import psutil

from ppcls.runtime.hardware import Card, CardLoad

_INTERVAL = 0.5  # seconds between two queries of the GPU, which reports means over about this duration


class UsageMeter:
    """Measures resource usage from `start` to `stop`.

    Args:
        card: GPU to query; None to measure the CPU only.
    """

    def __init__(self, card: Card | None = None) -> None:
        self._card = card
        self._process = psutil.Process()
        self._began = 0.0
        self._children = dict[int, float]()
        self._loads: list[CardLoad] = []
        self._stop = Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Starts measuring."""
        if self._card is not None:
            self._loads = []
            self._stop = Event()
            self._thread = Thread(target=self._query, args=(self._card, self._stop), daemon=True)
            self._thread.start()
        self._children = self._children_seconds()
        self._began = time.process_time()

    def stop(self) -> dict[str, float]:
        """Returns the usage since `start`.

        ``cpu_seconds`` is the CPU time of all threads and child processes. With a GPU, ``gpu_memory`` is the
        peak memory of all processes on it in MiB. If the driver reports the loads, ``gpu_load`` is the median
        share of the time in which a kernel runs, and ``jpeg_load`` the median load of the JPEG decoder, if it
        is used.
        """
        seconds = time.process_time() - self._began
        # All CPU time of a child that is not in `_children` was used after `start`.
        for pid, spent in self._children_seconds().items():
            seconds += spent - self._children.get(pid, 0.0)
        usage = {"cpu_seconds": seconds}
        if self._thread is None:
            return usage
        self._stop.set()
        self._thread.join()
        usage["gpu_memory"] = max(load.used for load in self._loads)
        if gpu := [load.gpu for load in self._loads if load.gpu is not None]:
            usage["gpu_load"] = statistics.median(gpu)
        if any(jpeg := [load.jpeg for load in self._loads if load.jpeg is not None]):
            usage["jpeg_load"] = statistics.median(jpeg)
        return usage

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
