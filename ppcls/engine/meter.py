"""What happened between two log lines: sums on the device, times on the host."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import paddle

from ppcls.data.batch import Batch
from ppcls.engine.state import TrainState
from ppcls.errors import UserError
from ppcls.report.record import StepRecord


class Meter:
    """Collects training's sums and times; only `check` and `record` wait for the device.

    Args:
        state: The run.
        epochs: Of the whole run.
        updates_per_epoch: Optimizer updates an epoch.
    """

    def __init__(self, state: TrainState, epochs: int, updates_per_epoch: int) -> None:
        self._state, self._epochs, self._updates_per_epoch = state, epochs, updates_per_epoch
        self.reset()

    def reset(self) -> None:
        """Begins a new stretch."""
        self._sums: paddle.Tensor | None = None
        self._images, self._waited = 0, 0.0
        self._began, self._first_update = time.perf_counter(), self._state.update

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the block as waiting for data."""
        began = time.perf_counter()
        yield
        self._waited += time.perf_counter() - began

    def add(self, sums: paddle.Tensor, batch: Batch) -> None:
        """Takes what `train_step` returned for ``batch``."""
        self._sums = sums if self._sums is None else self._sums + sums
        self._images += batch.valid

    def check(self, epoch: int) -> None:
        """Raises UserError where the loss is not finite any more; the stretch goes on."""
        if self._sums is not None:
            self._totals(epoch)

    def record(self, epoch: int, step: int) -> StepRecord:
        """Reads the stretch over all ranks and begins a new one.

        Args:
            epoch: Running epoch, from 1.
            step: Updates done in the epoch.

        Raises:
            UserError: The loss is not finite any more.
        """
        loss, *counts, images = self._totals(epoch)
        seconds = time.perf_counter() - self._began
        update = self._state.update
        names = self._state.metrics.names if self._state.metrics is not None else ()
        remaining = self._epochs * self._updates_per_epoch - (epoch - 1) * self._updates_per_epoch - step
        record = StepRecord(
            epoch=epoch,
            epochs=self._epochs,
            step=step,
            steps_per_epoch=self._updates_per_epoch,
            update=update,
            loss=loss / images,
            metrics={name: count / images for name, count in zip(names, counts, strict=True)},
            learning_rate=self._state.schedule(update - 1),
            images_per_second=images / seconds,
            data_wait=self._waited / seconds,
            eta_seconds=remaining * seconds / max(1, update - self._first_update),
        )
        self.reset()
        return record

    def _totals(self, epoch: int) -> list[float]:
        """Returns the sums over all ranks: loss, counts of the metrics, images."""
        assert self._sums is not None
        totals = paddle.concat([self._sums, paddle.full([1], self._images, dtype="float32")])
        if self._state.runtime.world > 1:
            paddle.distributed.all_reduce(totals)
        sums: list[float] = np.asarray(totals.numpy(), np.float64).tolist()
        if not np.isfinite(sums[0]):
            raise UserError(
                f"the loss is {sums[0]} between updates {self._first_update + 1} and {self._state.update} "
                f"(epoch {epoch}); no checkpoint was written since. "
                "Lower Optimizer.lr.learning_rate, warm up, or give clip_norm"
            )
        return sums
