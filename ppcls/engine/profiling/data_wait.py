"""How long training waits for data: the time in which the device has nothing to do for the lack of it.

On a CPU that is the time that the host waits. A GPU still works on earlier steps then, so only what is left
of the host's wait once these are done counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol

import paddle

from ppcls.runtime.start import Runtime

_POLL = 0.0005  # seconds; Paddle 2.6 has no clock on the device


class Mark(Protocol):
    """A place among the work that a device was given."""

    def query(self) -> bool:
        """Whether the device is past it."""


class DataWait:
    """Adds up blocks in which the host waits for data.

    Args:
        mark: Marks the end of all work that the device was given so far; None where the host does the work.
        clock: Seconds.
    """

    def __init__(
        self, mark: Callable[[], Mark] | None = None, clock: Callable[[], float] | None = None
    ) -> None:
        self.seconds = 0.0
        self._mark, self._clock = mark, clock or time.perf_counter
        self._watcher = None if mark is None else ThreadPoolExecutor(1, "data-wait")

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts what the device has to wait within the block."""
        began = self._clock()
        if self._mark is None or self._watcher is None:
            yield
            self.seconds += self._clock() - began
            return
        mark = self._mark()
        idle_since = began if mark.query() else None
        watched = None if idle_since is not None else self._watcher.submit(self._watch, mark)
        yield
        ended = self._clock()
        if watched is not None:
            busy = not watched.done()
            idle_since = None if busy else watched.result()
        if idle_since is not None:
            self.seconds += max(0.0, ended - idle_since)

    def _watch(self, mark: Mark) -> float:
        while not mark.query():
            time.sleep(_POLL)
        return self._clock()


def data_wait(runtime: Runtime) -> DataWait:
    """Returns a count at zero, for a run's device."""
    return DataWait(_mark_gpu if runtime.device == "gpu" else None)


def _mark_gpu() -> Mark:
    event = paddle.device.cuda.Event()
    event.record()
    mark: Mark = event
    return mark
