"""Measures how long training waits for data: the time in which the device has no work.

On a CPU that is the time that the host waits. A GPU may still be busy with earlier steps while the host
waits, so only the time after they are done counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol

import paddle

from ppcls.runtime.start import Runtime

_POLL = 0.0005  # seconds; Paddle 2.6 has no device timer


class DeviceEvent(Protocol):
    """A point in the device's queue of work."""

    def query(self) -> bool:
        """Returns whether the device has reached it."""


class DataWait:
    """Adds up the time of blocks that wait for data.

    Args:
        record: Records an event after all work submitted so far; None if the host does the work.
        clock: Returns the time in seconds.
    """

    def __init__(
        self, record: Callable[[], DeviceEvent] | None = None, clock: Callable[[], float] | None = None
    ) -> None:
        self.seconds = 0.0
        self._record, self._clock = record, clock or time.perf_counter
        self._watcher = None if record is None else ThreadPoolExecutor(1, "data-wait")

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the time in which the device is idle during the block."""
        start = self._clock()
        if self._record is None or self._watcher is None:
            yield
            self.seconds += self._clock() - start
            return
        event = self._record()
        idle_since = start if event.query() else None
        watch = None if idle_since is not None else self._watcher.submit(self._wait_for, event)
        yield
        end = self._clock()
        if watch is not None:
            idle_since = watch.result() if watch.done() else None
        if idle_since is not None:
            self.seconds += max(0.0, end - idle_since)

    def _wait_for(self, event: DeviceEvent) -> float:
        while not event.query():
            time.sleep(_POLL)
        return self._clock()


def build_data_wait(runtime: Runtime) -> DataWait:
    """Returns a counter for a run's device."""
    return DataWait(_record_gpu_event if runtime.device == "gpu" else None)


def _record_gpu_event() -> DeviceEvent:
    event = paddle.device.cuda.Event()
    event.record()
    recorded: DeviceEvent = event
    return recorded
