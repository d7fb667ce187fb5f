"""Collects the values of the training log: sums of losses and metrics on the device, times on the host."""

from __future__ import annotations

import math
import time
from contextlib import AbstractContextManager

import numpy as np
import paddle
from numpy.typing import NDArray

from ppcls.data.loaders.batch import Batch
from ppcls.engine.core.state import TrainState
from ppcls.engine.health.non_finite import NonFiniteMonitor, UpdateRange
from ppcls.engine.profiling.data_wait import build_data_wait
from ppcls.report.record import StepRecord
from ppcls.runtime.collectives import all_gather

_BLOCK = 1024  # number of tensors at which they are concatenated


class Meter:
    """Collects losses, metrics and times of training. Only `check` and `record` wait for the device."""

    def __init__(self, state: TrainState, epochs: int, monitor: NonFiniteMonitor) -> None:
        self._state = state
        self._epochs = epochs
        self._monitor = monitor
        self._wait = build_data_wait(state.runtime)
        state.precision.outcomes()  # discards the outcomes of earlier updates
        self._clear_unchecked()
        self.reset()

    def reset(self) -> None:
        """Starts a new log interval."""
        width = self._state.metrics.width if self._state.metrics is not None else 0
        self._totals = np.zeros(2 + width)  # loss, counts of the metrics, images with a finite loss
        self._images = 0
        self._wait.seconds = 0.0
        self._start = time.perf_counter()
        self._first_update = self._state.update

    def _clear_unchecked(self) -> None:
        self._sums: list[paddle.Tensor] = []  # [1 + counts] each; the first may be many batches concatenated
        self._valid: list[int] = []
        self._ends: list[bool] = []
        self._step = self._state.step
        self._update = self._state.update

    def waiting(self) -> AbstractContextManager[None]:
        """Returns a context whose duration counts as waiting for data."""
        return self._wait.waiting()

    def add(self, sums: paddle.Tensor, batch: Batch) -> None:
        """Adds ``sums``, the result of `train_step` for ``batch``."""
        self._sums.append(sums)
        self._valid.append(batch.valid)
        self._ends.append(batch.update)
        if len(self._sums) == _BLOCK:
            self._sums = [paddle.concat(self._sums)]

    def check(self, epoch: int) -> None:
        """Checks the losses and gradients since the last check. The last batch must have ended an update.

        Args:
            epoch: Current epoch, from 1.

        Raises:
            UserError: See `NonFiniteMonitor.check`.
        """
        if not self._sums:
            return
        ranks = self._all_gather()
        self._monitor.check(
            UpdateRange(
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
        self._clear_unchecked()

    def record(self, epoch: int, step: int, seconds_left: float = math.inf) -> StepRecord:
        """Returns the record of the log interval over all ranks, and starts a new interval.

        Args:
            epoch: Current epoch, from 1.
            step: Number of finished updates of the epoch.
            seconds_left: Seconds until the run must end; infinite without a limit.

        Returns:
            The record. Its loss and metrics ignore batches with a non-finite loss. They are NaN if no loss is
            finite.

        Raises:
            UserError: See `NonFiniteMonitor.check`.
        """
        self.check(epoch)
        images = float(self._totals[-1])
        metrics = self._state.metrics
        seconds = time.perf_counter() - self._start
        update = self._state.update
        per_epoch = self._state.updates_per_epoch
        remaining = (self._epochs - epoch + 1) * per_epoch - step
        expected = remaining * seconds / max(1, update - self._first_update)
        record = StepRecord(
            epoch=epoch,
            epochs=self._epochs,
            step=step,
            steps_per_epoch=per_epoch,
            update=update,
            loss=float(self._totals[0]) / images if images else math.nan,
            metrics=metrics.values(self._totals[1:-1], images) if metrics is not None else {},
            learning_rate=self._state.learning_rate(update - 1),
            images_per_second=self._images / seconds,
            data_wait=self._wait.seconds / seconds,
            eta_seconds=min(expected, max(0.0, seconds_left)),
            images=round(images),
        )
        self.reset()
        return record

    def _all_gather(self) -> NDArray[np.float64]:
        """Returns the sums of each batch on each rank: [ranks, batches, loss + counts + images]."""
        images = paddle.to_tensor(self._valid, dtype="float32").unsqueeze(1)
        sums = paddle.concat(self._sums).reshape([len(self._valid), -1])
        sums = paddle.concat([sums, images], axis=1)
        return np.stack(all_gather(sums, self._state.runtime.world_size)).astype(np.float64)
