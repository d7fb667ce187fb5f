"""Ends a run in time: ``Global.time_limit``."""

from __future__ import annotations

import time

import numpy as np
import psutil

from ppcls.runtime.collectives import all_reduce
from ppcls.runtime.start import Runtime

_MARGIN = 1.1  # an epoch may take longer than the slowest one so far


class TimeLimit:
    """Decides after the training of each epoch whether another epoch would end in time.

    Args:
        seconds: Limit in seconds; None for no limit.
        runtime: Whether the process exists only for this run, whose start then counts; and the ranks.

    Attributes:
        reached: Whether the run ends after the current epoch. Equal on all ranks.
    """

    def __init__(self, seconds: float | None, runtime: Runtime) -> None:
        self._seconds = seconds
        self._world = runtime.world_size
        now = time.time()
        self._start = now if runtime.embedded else min(now, psutil.Process().create_time())
        self._begin: float | None = None
        self._epoch = 0.0  # duration of the slowest epoch with its evaluation, in seconds
        self._close = 0.0  # the same without training
        self._trained = now
        self.reached = False

    def begin_epoch(self) -> None:
        """Is called before the training of an epoch, after the evaluation of the previous one."""
        now = time.time()
        if self._begin is not None:
            self._epoch = max(self._epoch, now - self._begin)
            self._close = max(self._close, now - self._trained)
        self._begin = now

    def end_training(self) -> None:
        """Is called between the training of an epoch and its evaluation. All ranks must call it."""
        self._trained = time.time()
        if self._seconds is None:
            return
        assert self._begin is not None
        epoch = max(self._epoch, self._trained - self._begin + self._close)
        needed = self._trained - self._start + self._close + _MARGIN * epoch
        slowest = float(all_reduce(np.array([needed]), self._world, maximum=True)[0])
        self.reached = slowest > self._seconds
