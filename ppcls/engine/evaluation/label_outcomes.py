"""Collects the results of an evaluation with several labels per sample, by label and by sample."""

from __future__ import annotations

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor
from paddle.nn import functional as F

from ppcls.data.loaders.batch import Batch
from ppcls.engine.evaluation.outcomes import append_rows
from ppcls.metric.functional.multi_label import label_hits
from ppcls.report.record import LabelMistake, LabelOutcomes
from ppcls.runtime.collectives import all_reduce, gather_rows

_SHOWN = 4  # maximum number of wrong labels of a sample that are shown


class LabelOutcomeCollector:
    """Collects the results per sample of one evaluation. Only `outcomes` waits for the device.

    Args:
        classes: Number of labels.
    """

    def __init__(self, classes: int) -> None:
        self._classes = classes
        self._shown = min(_SHOWN, classes)
        self._counts = paddle.zeros([3 * classes], "int64")
        # [N, 2 + 2 * shown] float32 each: loss, number of wrong labels, their ids, their probabilities
        self._rows: list[Tensor] = []
        self._positions: list[NDArray[np.int64]] = []

    def add(self, logits: Tensor, batch: Batch) -> None:
        """Adds the valid samples of a batch.

        Args:
            logits: Logits of the valid samples, [valid, C], of any floating-point dtype.
        """
        label = (batch.label[: batch.valid] > 0.5).astype("float32")
        z = logits.astype("float32")
        self._counts = self._counts + label_hits(z, label)
        costs = F.binary_cross_entropy_with_logits(z, label, reduction="none")
        probability = F.sigmoid(z)
        wrong = ((probability > 0.5) != (label > 0.5)).astype("float32")
        _, ids = paddle.topk(wrong * (1.0 + costs), self._shown, axis=-1)  # wrong labels first
        columns = [
            costs.sum(axis=-1, keepdim=True),
            wrong.sum(axis=-1, keepdim=True),
            ids.astype("float32"),
            paddle.take_along_axis(probability, ids, axis=-1),
        ]
        append_rows(self._rows, paddle.concat(columns, axis=1))
        positions = batch.positions if batch.positions is not None else np.full(len(batch.label), -1)
        self._positions.append(positions[: batch.valid])

    def outcomes(self, world: int) -> LabelOutcomes:
        """Returns the results over all ranks. They are equal on all ranks."""
        rows = np.zeros((0, 2 + 2 * self._shown))
        positions = np.zeros(0, np.int64)
        if self._rows:
            rows = paddle.concat(self._rows).numpy().astype(np.float64)
            positions = np.concatenate(self._positions)
        mistakes = _find_mistakes(np.concatenate([rows, positions[:, None].astype(np.float64)], axis=1))
        counts = all_reduce(self._counts.numpy(), world)
        mistakes = _find_mistakes(np.concatenate(gather_rows(mistakes, world)))
        correct, predicted, true = counts.reshape(3, self._classes)
        return LabelOutcomes(correct, predicted, true, tuple(map(self._mistake, mistakes)))

    def _mistake(self, row: NDArray[np.float64]) -> LabelMistake:
        loss, wrong, *labels, position = row.tolist()
        count = min(round(wrong), self._shown)
        ids = labels[:count]
        probabilities = labels[self._shown : self._shown + count]
        shown = tuple((round(label), share) for label, share in zip(ids, probabilities, strict=True))
        return LabelMistake(round(position), shown, round(wrong), loss)


def _find_mistakes(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the samples with wrong labels in descending order of their losses.

    Args:
        rows: Loss, number of wrong labels, ids, probabilities and position of each sample.
    """
    rows = rows[(rows[:, 1] > 0) & (rows[:, -1] >= 0)]
    losses = np.nan_to_num(rows[:, 0], nan=np.inf, posinf=np.inf)
    ordered: NDArray[np.float64] = rows[np.lexsort((rows[:, -1], -losses))]
    return ordered
