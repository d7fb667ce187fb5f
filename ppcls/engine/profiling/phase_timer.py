"""Times the phases of training updates.

A GPU executes work later than the host launches it. In timed updates, the host therefore waits for the GPU
before and after each phase.

Ranks usually exchange gradients during the backward pass. In every second timed update, they exchange
gradients after the backward pass, so that both can be timed separately.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np
import paddle
from numpy.typing import NDArray

from ppcls.data.loaders.batch import Batch
from ppcls.engine.core.hooks import Phase, StepHooks
from ppcls.engine.core.state import TrainState
from ppcls.engine.core.step import train_step
from ppcls.report.step_times import COLUMNS, StepTimes
from ppcls.runtime.collectives import all_gather
from ppcls.runtime.start import Runtime


def _no_mark(_: Phase) -> AbstractContextManager[None]:
    return nullcontext()


class PhaseTimer(StepHooks):
    """Times the phases of all updates.

    Args:
        mark: Function that returns a context for a phase, for example to mark the phase in a trace.

    Attributes:
        fresh: Whether the next batch is the first one of an update.
        overlap: Whether ranks exchange gradients during the backward pass of the current update.
    """

    def __init__(
        self, runtime: Runtime, mark: Callable[[Phase], AbstractContextManager[None]] = _no_mark
    ) -> None:
        self._runtime = runtime
        self._mark = mark
        self.fresh = True
        self.overlap = True
        self._start = 0.0
        self._times = np.zeros(len(COLUMNS))
        self._seconds: list[NDArray[np.float64]] = []
        self._after: list[bool] = []

    @property
    def steps(self) -> int:
        """Number of timed updates."""
        return len(self._seconds)

    @contextmanager
    def __call__(self, phase: Phase) -> Iterator[None]:
        """Returns a context that times a phase."""
        self._runtime.synchronize()
        start = time.perf_counter()
        with self._mark(phase):
            yield
            self._runtime.synchronize()
        self._times[COLUMNS.index(phase)] += time.perf_counter() - start

    def begin_batch(self) -> None:
        """Starts the time of a batch and, if `fresh`, of an update.

        The loop calls it again if the epoch had no batch left.
        """
        self._runtime.synchronize()
        if self.fresh:
            self._times = np.zeros(len(COLUMNS))
            self.overlap = self._runtime.world_size == 1 or self.steps % 2 == 0
        self._start = time.perf_counter()

    def end_batch(self, update: bool) -> None:
        """Adds the time of a batch. The last batch of an update ends the times of the update."""
        self._runtime.synchronize()
        self._times[-1] += time.perf_counter() - self._start
        if update:
            self._times[-1] -= self._times[:-1].sum()
            self._seconds.append(self._times)
            self._after.append(not self.overlap)
            self.overlap = True
        self.fresh = update

    def eager_step(self, state: TrainState, batch: Batch, hooks: StepHooks) -> paddle.Tensor:
        """Runs `train_step` without CUDA graphs, because the phases of a captured step can't be timed."""
        return train_step(state, batch, hooks, overlap=self.overlap)

    def measured(self, first: int, images: int, ordinary: float | None) -> StepTimes:
        """Returns the times of all ranks. All ranks must call it.

        Args:
            first: Number of the first timed update.
            images: Number of images of a full update over all ranks.
            ordinary: Mean seconds of an update without timed phases; None if unknown.
        """
        return StepTimes(
            seconds=np.stack(all_gather(np.stack(self._seconds), self._runtime.world_size)),
            after=np.array(self._after),
            first=first,
            images=images,
            on_gpu=self._runtime.device == "gpu",
            ordinary=ordinary,
        )
