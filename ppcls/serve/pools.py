"""Pools of threads that know for how long their calls run. Python cannot stop a thread that hangs.

A pool of Python starts a thread when a call finds no idle one. If there is no memory for it, the request
fails whose turn it is. Therefore all threads start with their pool.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class TimedPool(ThreadPoolExecutor):
    """A pool of threads that measures its calls.

    Args:
        threads: Number of threads, which are started at once.
        name: Name of the threads.

    Raises:
        MemoryError: The system has no memory for the threads.
    """

    def __init__(self, threads: int, name: str) -> None:
        super().__init__(threads, name)
        self._starts: dict[object, float] = {}
        all_started = threading.Barrier(threads + 1)
        try:
            for _ in range(threads):  # each call blocks its thread, so the next one starts another
                super().submit(all_started.wait)
        except RuntimeError as error:
            all_started.abort()
            self.shutdown(wait=False)
            raise MemoryError(f"{name}: {error}") from None
        all_started.wait()

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Runs a function in a thread; see `ThreadPoolExecutor`."""

        def timed() -> _T:
            call = object()
            self._starts[call] = time.monotonic()
            try:
                return fn(*args, **kwargs)
            finally:
                del self._starts[call]

        return super().submit(timed)

    @property
    def longest(self) -> float:
        """Seconds since the start of the oldest call that still runs, 0 if none runs."""
        # A copy, because the threads of the pool change the dictionary meanwhile.
        starts = list(self._starts.values())
        return time.monotonic() - min(starts) if starts else 0.0
