"""What one evaluation counts and gathers, on the device until all ranks have theirs."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor

from ppcls.data.loaders.batch import Batch
from ppcls.metric.build import Metrics, Rows
from ppcls.outputs import Outputs

_BLOCK = 1024  # batches whose rows are put into one tensor


class Tally:
    """Sums and rows of the real samples of one rank; only `result` waits for the device.

    Args:
        metrics: What is to be known.
        queries: Images at positions below this look among those from it on; None: each among all others.
    """

    def __init__(self, metrics: Metrics, queries: int | None = None) -> None:
        self._metrics, self._queries = metrics, queries
        self._sums = paddle.zeros([2 + metrics.width], "float64")  # loss, images, counts
        self._rows: dict[str, list[Tensor]] = {name: [] for name in metrics.gathered}
        self._labels: list[Tensor] = []
        self._positions: list[NDArray[np.int64]] = []

    def add(self, loss: Tensor, outputs: Outputs, batch: Batch) -> None:
        """Takes a batch of which at least one row is real.

        Args:
            loss: Mean over its real rows, a scalar.
            outputs: What the model gave of these, [valid, ...] each.
            batch: That they are of.
        """
        label = batch.label[: batch.valid]
        loss = loss.astype("float64").reshape([1]) * batch.valid
        images = paddle.full([1], batch.valid, "float64")
        counts = self._metrics.counts(outputs, label).astype("float64")
        self._sums = self._sums + paddle.concat([loss, images, counts])
        if not self._rows:
            return
        for name, rows in self._rows.items():
            _append(rows, (outputs[name] if isinstance(outputs, dict) else outputs).astype("float32"))
        _append(self._labels, label.astype("float64").reshape([batch.valid, -1]))  # exact up to 2^53
        positions = batch.positions if batch.positions is not None else np.zeros(len(batch.label), np.int64)
        self._positions.append(positions[: batch.valid])

    def result(self, world: int) -> tuple[float, int, dict[str, float]]:
        """Returns mean loss, images and metrics over all ranks, the same on each."""
        if world > 1:
            paddle.distributed.all_reduce(self._sums)
        loss, images, *counts = np.asarray(self._sums.numpy()).tolist()
        rows = self._all_rows(world) if self._rows else None
        return loss / images, round(images), self._metrics.values(np.array(counts), images, rows)

    def _all_rows(self, world: int) -> dict[str, Rows]:
        """Returns outputs and labels of all ranks, in the order of the samples whatever the ranks."""
        positions = np.concatenate([np.zeros(0, np.int64), *self._positions])
        positions = _over_ranks(positions[:, None], world)[:, 0]
        order = np.argsort(positions, kind="stable")
        queries = None if self._queries is None else int((positions < self._queries).sum())
        labels = _over_ranks(_joined(self._labels, "float64"), world)[order]
        return {
            name: Rows(_over_ranks(_joined(rows, "float32"), world)[order], labels, queries)
            for name, rows in self._rows.items()
        }


def _append(rows: list[Tensor], more: Tensor) -> None:
    rows.append(more)
    if len(rows) == _BLOCK:
        rows[:] = [paddle.concat(rows)]


def _joined(rows: list[Tensor], dtype: str) -> NDArray[Any]:
    return np.asarray(paddle.concat(rows).numpy()) if rows else np.zeros((0, 0), dtype)


def _over_ranks(own: NDArray[Any], world: int) -> NDArray[Any]:
    """Returns the rows of all ranks, [N, D]; one that has none may not know D."""
    if world == 1:
        return own
    shapes: list[Tensor] = []
    paddle.distributed.all_gather(shapes, paddle.to_tensor(own.shape, "int64"))
    counts, widths = np.stack([each.numpy() for each in shapes]).T
    padded = np.zeros((counts.max(), widths.max()), own.dtype)
    padded[: len(own), : own.shape[1]] = own
    gathered: list[Tensor] = []
    paddle.distributed.all_gather(gathered, paddle.to_tensor(padded))
    return np.concatenate([each.numpy()[:count] for each, count in zip(gathered, counts, strict=True)])
