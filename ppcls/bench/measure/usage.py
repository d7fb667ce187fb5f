"""What a stretch of work took of the machine: CPU time of this process and its children, the GPU's load."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from threading import Event, Thread

import psutil

from ppcls.runtime.hardware import Card, CardLoad

_EVERY = 0.5  # seconds between two looks at the GPU, which tells means of about as long


@dataclass(frozen=True)
class Usage:
    """What was taken.

    Attributes:
        cpu_seconds: Of all threads, and of child processes.
        gpu_load: Median share of the time in which a kernel ran, 0..1; None without a GPU, or
            where the driver doesn't tell.
        jpeg_load: The same of the GPU's JPEG decoder; None where it has none, or doesn't tell.
        gpu_memory: The most that was used of the card, by all its users, in MiB; None without a GPU.
    """

    cpu_seconds: float
    gpu_load: float | None = None
    jpeg_load: float | None = None
    gpu_memory: int | None = None


class Meter:
    """Measures from `start` to `stop`.

    Args:
        card: The GPU; None for the CPU alone.
    """

    def __init__(self, card: Card | None = None) -> None:
        self._card = card
        self._process = psutil.Process()
        self._began, self._children = 0.0, dict[int, float]()
        self._seen: list[CardLoad] = []
        self._stop = Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Begins."""
        if self._card is not None:
            self._seen, self._stop = [], Event()
            self._thread = Thread(target=self._look, args=(self._card, self._stop), daemon=True)
            self._thread.start()
        self._children, self._began = self._of_children(), time.process_time()

    def stop(self) -> Usage:
        """Returns what was taken since `start`."""
        own = time.process_time() - self._began
        # A child that is new spent all its time here.
        children = sum(spent - self._children.get(pid, 0.0) for pid, spent in self._of_children().items())
        if self._thread is None:
            return Usage(own + children)
        self._stop.set()
        self._thread.join()
        gpu, jpeg = [load.gpu for load in self._seen], [load.jpeg for load in self._seen]
        return Usage(own + children, _median(gpu), _median(jpeg), max(load.used for load in self._seen))

    def _of_children(self) -> dict[int, float]:
        """Returns the CPU seconds of each child process so far."""
        found = {}
        for child in self._process.children(recursive=True):
            try:
                times = child.cpu_times()
            except psutil.NoSuchProcess:  # it has just ended
                continue
            found[child.pid] = times.user + times.system
        return found

    def _look(self, card: Card, stop: Event) -> None:
        while True:
            self._seen.append(card.load())
            if stop.wait(_EVERY):
                return


def _median(shares: list[float | None]) -> float | None:
    known = [each for each in shares if each is not None]
    return statistics.median(known) if known else None
