"""Collects the results of an evaluation per sample: confusion matrix, confidences, and mistakes."""

from __future__ import annotations

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor

from ppcls.data.loaders.batch import Batch
from ppcls.metric.single_label import MAX_CONFUSION_CLASSES
from ppcls.report.record import Mistake, Outcomes
from ppcls.runtime.collectives import all_reduce, gather_rows

BINS = 100  # number of bins of the confidence
_BLOCK = 1024  # number of tensors at which they are concatenated


class OutcomeCollector:
    """Collects the results per sample of one evaluation. Only `outcomes` waits for the device.

    Args:
        classes: Number of classes.
    """

    def __init__(self, classes: int) -> None:
        self._classes = classes
        self._rows: list[Tensor] = []  # [N, 4] float32 each: label, predicted class, loss, confidence
        self._positions: list[NDArray[np.int64]] = []

    def add(self, logits: Tensor, batch: Batch) -> None:
        """Adds the valid samples of a batch.

        Args:
            logits: Logits of the valid samples, [valid, C], of any floating-point dtype.
        """
        label = batch.label[: batch.valid]
        if label.ndim == 2:
            label = label.argmax(axis=-1)
        z = logits.astype("float32")
        top, predicted = paddle.topk(z, 1, axis=-1)  # like the metric, for the same choice among equal logits
        z = z - top
        spread = z.exp().sum(axis=-1).log()
        loss = spread - paddle.take_along_axis(z, label.unsqueeze(-1), axis=-1).squeeze(-1)
        columns = [label.astype("float32"), predicted.squeeze(-1).astype("float32"), loss, (-spread).exp()]
        append_rows(self._rows, paddle.stack(columns, axis=1))
        positions = batch.positions if batch.positions is not None else np.full(len(batch.label), -1)
        self._positions.append(positions[: batch.valid])

    def outcomes(self, world: int) -> Outcomes:
        """Returns the results over all ranks. They are equal on all ranks."""
        rows = np.zeros((0, 4))
        positions = np.zeros(0, np.int64)
        if self._rows:
            rows = paddle.concat(self._rows).numpy().astype(np.float64)
            positions = np.concatenate(self._positions)
        classes = self._classes if self._classes <= MAX_CONFUSION_CLASSES else 0
        counts = np.concatenate([_count_confusion(rows, classes), _count_confidences(rows)])
        mistakes = _find_mistakes(rows, positions)
        counts = all_reduce(counts, world)
        gathered = np.concatenate(gather_rows(mistakes, world))
        mistakes = _find_mistakes(gathered[:, :4], gathered[:, 4].astype(np.int64))
        size = classes * classes
        return Outcomes(
            confusion=counts[:size].reshape(classes, classes) if classes else None,
            confidences=counts[size:].reshape(2, BINS),
            mistakes=tuple(
                Mistake(int(position), int(label), int(predicted), float(loss), float(confidence))
                for label, predicted, loss, confidence, position in mistakes.tolist()
            ),
        )


def append_rows(rows: list[Tensor], more: Tensor) -> None:
    """Appends a tensor to ``rows``. Concatenates the tensors when there are 1,024 of them."""
    rows.append(more)
    if len(rows) == _BLOCK:
        rows[:] = [paddle.concat(rows)]


def _count_confusion(rows: NDArray[np.float64], classes: int) -> NDArray[np.int64]:
    """Returns the flattened confusion matrix, one row per true class: [classes * classes] int64."""
    label, predicted = rows[:, :2].astype(np.int64).T
    if not classes:
        return np.zeros(0, np.int64)
    known = (predicted >= 0) & (predicted < classes)  # non-finite logits can give an invalid class
    return np.bincount(label[known] * classes + predicted[known], minlength=classes**2).astype(np.int64)


def _count_confidences(rows: NDArray[np.float64]) -> NDArray[np.int64]:
    """Returns histograms of the confidence, first of wrong, then of correct predictions: [2 * BINS] int64."""
    finite = rows[np.isfinite(rows).all(axis=1)]
    bins = np.clip((finite[:, 3] * BINS).astype(np.int64), 0, BINS - 1)
    correct = finite[:, 0] == finite[:, 1]
    return np.bincount(correct * BINS + bins, minlength=2 * BINS).astype(np.int64)


def _find_mistakes(rows: NDArray[np.float64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns the wrong predictions in descending order of their losses, [M, 5] float64.

    The columns are label, predicted class, loss, confidence and position.
    """
    wrong = np.concatenate([rows, positions[:, None].astype(np.float64)], axis=1)
    wrong = wrong[(rows[:, 0] != rows[:, 1]) & (positions >= 0)]
    losses = np.nan_to_num(wrong[:, 2], nan=np.inf, posinf=np.inf)
    # Predictions with equal losses are sorted by position, so the number of ranks has no effect.
    ordered: NDArray[np.float64] = wrong[np.lexsort((wrong[:, 4], -losses))]
    return ordered
