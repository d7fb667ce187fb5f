"""Measures how long training waits for data, that is, how long the device has no work.

On a CPU, this is the time that the host waits. On a GPU, earlier steps may still run while the host waits, so
only the time after the end of these steps counts.
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
    """Interface of an event, which marks a point in the device's queue of work."""

    def query(self) -> bool:
        """Returns whether the device has reached this point."""


class DataWait:
    """Adds up the time that the device is idle while the host waits for data.

    Args:
        record: Function that records an event after all submitted work; None if the host does the work.
        clock: Function that returns the time in seconds; None for `time.perf_counter`.

    Attributes:
        seconds: Idle time so far.
    """

    def __init__(
        self, record: Callable[[], DeviceEvent] | None = None, clock: Callable[[], float] | None = None
    ) -> None:
        self.seconds = 0.0
        self._record = record
        self._clock = clock or time.perf_counter
        self._watcher = None if record is None else ThreadPoolExecutor(1, "data-wait")

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Returns a context in which the host waits for data. Adds the time in which the device is idle."""
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
    """Returns a `DataWait` for the device of a run."""
    return DataWait(_record_gpu_event if runtime.device == "gpu" else None)


def _record_gpu_event() -> DeviceEvent:
    event = paddle.device.cuda.Event()
    event.record()
    recorded: DeviceEvent = event
    return recorded
