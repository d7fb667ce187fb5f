"""What happened between two log lines: sums on the device, times on the host."""

from __future__ import annotations

import math
import time
from contextlib import AbstractContextManager

import numpy as np
import paddle
from numpy.typing import NDArray

from ppcls.data.loaders.batch import Batch
from ppcls.engine.core.state import TrainState
from ppcls.engine.health.bad_steps import BadSteps, Stretch
from ppcls.engine.profiling.data_wait import data_wait
from ppcls.report.record import StepRecord

_BLOCK = 1024  # batches whose sums are gathered into one tensor


class Meter:
    """Collects training's sums and times; only `check` and `record` wait for the device.

    Args:
        state: The run.
        epochs: Of the whole run.
        updates_per_epoch: Optimizer updates an epoch.
        bad_steps: Is told of each update.
    """

    def __init__(self, state: TrainState, epochs: int, updates_per_epoch: int, bad_steps: BadSteps) -> None:
        self._state, self._epochs, self._updates_per_epoch = state, epochs, updates_per_epoch
        self._bad_steps = bad_steps
        self._wait = data_wait(state.runtime)
        state.precision.outcomes()  # of updates before these
        self._begin_look()
        self.reset()

    def reset(self) -> None:
        """Begins a new stretch."""
        self._totals = np.zeros(2 + self._counts)  # loss, metrics' counts, images whose loss is finite
        self._images, self._wait.seconds = 0, 0.0
        self._began, self._first_update = time.perf_counter(), self._state.update

    @property
    def _counts(self) -> int:
        return self._state.metrics.width if self._state.metrics is not None else 0

    def _begin_look(self) -> None:
        """Forgets the batches that the host has looked at."""
        self._sums: list[paddle.Tensor] = []  # [1 + counts] each, the first perhaps of many batches
        self._valid: list[int] = []
        self._ends: list[bool] = []
        self._step, self._update = self._state.step, self._state.update

    def waiting(self) -> AbstractContextManager[None]:
        """Counts the block as waiting for data."""
        return self._wait.waiting()

    def add(self, sums: paddle.Tensor, batch: Batch) -> None:
        """Takes what `train_step` returned for ``batch``."""
        self._sums.append(sums)
        self._valid.append(batch.valid)
        self._ends.append(batch.update)
        if len(self._sums) == _BLOCK:
            self._sums = [paddle.concat(self._sums)]

    def check(self, epoch: int) -> None:
        """Looks at the batches since the last look, which end an update; the stretch goes on.

        Args:
            epoch: Running epoch, from 1.

        Raises:
            UserError: As `BadSteps.take`.
        """
        if not self._sums:
            return
        ranks = self._over_ranks()
        self._bad_steps.take(
            Stretch(
                epoch=epoch - 1,
                step=self._step,
                update=self._update,
                ends=np.array(self._ends),
                losses=ranks[:, :, 0],
                gradients=self._state.precision.outcomes(),
            )
        )
        good = np.isfinite(ranks[:, :, 0]).all(axis=0)
        self._totals += ranks[:, good].sum(axis=(0, 1))
        self._images += round(ranks[:, :, -1].sum())
        self._begin_look()

    def record(self, epoch: int, step: int) -> StepRecord:
        """Reads the stretch over all ranks and begins a new one.

        Args:
            epoch: Running epoch, from 1.
            step: Updates done in the epoch.

        Returns:
            The stretch; its loss and metrics are those of the batches whose loss was finite, NaN without one.

        Raises:
            UserError: As `BadSteps.take`.
        """
        self.check(epoch)
        images, metrics = float(self._totals[-1]), self._state.metrics
        seconds = time.perf_counter() - self._began
        update = self._state.update
        remaining = self._epochs * self._updates_per_epoch - (epoch - 1) * self._updates_per_epoch - step
        record = StepRecord(
            epoch=epoch,
            epochs=self._epochs,
            step=step,
            steps_per_epoch=self._updates_per_epoch,
            update=update,
            loss=float(self._totals[0]) / images if images else math.nan,
            metrics=metrics.values(self._totals[1:-1], images) if metrics is not None else {},
            learning_rate=self._state.schedule(update - 1),
            images_per_second=self._images / seconds,
            data_wait=self._wait.seconds / seconds,
            eta_seconds=remaining * seconds / max(1, update - self._first_update),
        )
        self.reset()
        return record

    def _over_ranks(self) -> NDArray[np.float64]:
        """Returns each rank's sums of each batch: [ranks, batches, loss + counts + images]."""
        images = paddle.to_tensor(self._valid, dtype="float32").unsqueeze(1)
        sums = paddle.concat(self._sums).reshape([len(self._valid), -1])
        own = paddle.concat([sums, images], axis=1)
        ranks = [own]
        if self._state.runtime.world_size > 1:
            ranks = []
            paddle.distributed.all_gather(ranks, own)
        return np.asarray(paddle.stack(ranks).numpy(), np.float64)
