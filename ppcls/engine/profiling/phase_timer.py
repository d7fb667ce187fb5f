"""Times the phases of training steps.

A GPU works on while the host goes ahead, so a phase's time on the host says nothing. In timed steps the host
waits for Paddle's GPU before and after each phase; the times are then the device's.

Ranks exchange gradients during backward. In every other timed step they do so after it, which takes the
exchange's time alone and backward's time without it: the difference to backward with it is what it costs.
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
from ppcls.runtime.start import Runtime


def _unmarked(_: Phase) -> AbstractContextManager[None]:
    return nullcontext()


class PhaseTimer(StepHooks):
    """Times the phases of all steps that it is told of.

    Args:
        runtime: Rank and device.
        mark: Its context is around each phase.

    Attributes:
        fresh: Whether the next batch begins an update.
        overlap: Whether ranks exchange gradients during the backward pass of the current update.
        steps: Timed so far.
    """

    def __init__(
        self, runtime: Runtime, mark: Callable[[Phase], AbstractContextManager[None]] = _unmarked
    ) -> None:
        self._runtime, self._mark = runtime, mark
        self.fresh, self.overlap, self._began = True, True, 0.0
        self._times = np.zeros(len(COLUMNS))
        self._seconds: list[NDArray[np.float64]] = []
        self._after: list[bool] = []

    @property
    def steps(self) -> int:
        """Steps timed so far."""
        return len(self._seconds)

    @contextmanager
    def __call__(self, phase: Phase) -> Iterator[None]:
        """Times a phase."""
        self._runtime.synchronize()
        began = time.perf_counter()
        with self._mark(phase):
            yield
            self._runtime.synchronize()
        self._times[COLUMNS.index(phase)] += time.perf_counter() - began

    def begin_batch(self) -> None:
        """Begins a step where one is due; also again, where the epoch had no batch left for it."""
        self._runtime.synchronize()
        if self.fresh:
            self._times = np.zeros(len(COLUMNS))
            self.overlap = self._runtime.world_size == 1 or self.steps % 2 == 0
        self._began = time.perf_counter()

    def end_batch(self, update: bool) -> None:
        """Takes a batch's time, and ends the step where it ends."""
        self._runtime.synchronize()
        self._times[-1] += time.perf_counter() - self._began
        if update:
            self._times[-1] -= self._times[:-1].sum()
            self._seconds.append(self._times)
            self._after.append(not self.overlap)
            self.overlap = True
        self.fresh = update

    def eager_step(self, state: TrainState, batch: Batch, hooks: StepHooks) -> paddle.Tensor:
        """Runs `train_step` eagerly, because only then its phases can be timed."""
        return train_step(state, batch, hooks, overlap=self.overlap)

    def measured(self, first: int, images: int, ordinary: float | None) -> StepTimes:
        """Returns the times of all ranks; each must ask.

        Args:
            first: Step that was the first one timed.
            images: Of a full step, over all ranks.
            ordinary: Mean seconds of a step that nobody times; None where none was.
        """
        return StepTimes(
            seconds=self._of_all_ranks(np.stack(self._seconds)),
            after=np.array(self._after),
            first=first,
            images=images,
            on_gpu=self._runtime.device == "gpu",
            ordinary=ordinary,
        )

    def _of_all_ranks(self, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns [ranks, steps, 6] from [steps, 6] of this rank."""
        if self._runtime.world_size == 1:
            return seconds[None]
        gathered: list[paddle.Tensor] = []
        paddle.distributed.all_gather(gathered, paddle.to_tensor(seconds))
        return np.stack([np.asarray(each.numpy()) for each in gathered])
