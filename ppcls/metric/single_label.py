"""Metrics of images that have one class."""

from __future__ import annotations

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor

Floats = NDArray[np.float64]


def topk_correct(logits: Tensor, label: Tensor, topk: tuple[int, ...]) -> Tensor:
    """Counts the rows whose label is among the ``k`` highest logits; ties are resolved as in `paddle.topk`.

    Args:
        logits: [B, C], any floating dtype.
        label: [B] int64; or [B, C] float, shares of each class, of which the largest is the label.
        topk: Values of k in 1..C.

    Returns:
        [len(topk)] int64, on the device of ``logits``.
    """
    if label.ndim == 2:
        label = label.argmax(axis=-1)
    predicted = paddle.topk(logits.astype("float32"), max(topk), axis=-1)[1]
    hit = (predicted == label.unsqueeze(-1)).astype("int64")
    return paddle.stack([hit[:, :k].sum() for k in topk])


def class_hits(logits: Tensor, label: Tensor) -> Tensor:
    """Counts correct predictions and images per class; arguments as in `topk_correct`.

    Returns:
        [2 * C] int64, on the device of ``logits``: correct predictions, then images.
    """
    label, predicted = _classes(logits, label)
    classes = logits.shape[-1]
    right = paddle.where(predicted == label, label, paddle.full_like(label, classes))
    return paddle.concat(
        [paddle.bincount(each, minlength=classes + 1)[:classes] for each in (right, label)]
    ).astype("int64")


def confusion(logits: Tensor, label: Tensor) -> Tensor:
    """Counts pairs of label and prediction: [C * C] int64, label first; arguments as in `topk_correct`."""
    label, predicted = _classes(logits, label)
    classes = logits.shape[-1]
    # Non-finite logits may have no highest one: such rows have no predicted class.
    known = (predicted >= 0) & (predicted < classes)
    pair = paddle.where(known, label * classes + predicted, paddle.full_like(label, classes**2))
    return paddle.bincount(pair, minlength=classes**2 + 1)[: classes**2].astype("int64")


def _classes(logits: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """Returns labels and predictions, [B] int64 each."""
    if label.ndim == 2:
        label = label.argmax(axis=-1)
    return label, paddle.topk(logits.astype("float32"), 1, axis=-1)[1].squeeze(-1)


def recalls(counts: Floats) -> Floats:
    """Maps sums of `class_hits`, [2 * C], to recalls [C]; NaN for classes without images."""
    right, images = counts.reshape(2, -1)
    found: Floats = np.divide(right, images, out=np.full(len(images), np.nan), where=images > 0)
    return found


def macro_averages(counts: Floats) -> list[float]:
    """Maps sums of `confusion`, [C * C], to precision, recall and F1, averaged over classes.

    Classes that neither occur nor are predicted do not count. A quotient with denominator 0 is 0.
    """
    classes = round(len(counts) ** 0.5)
    matrix = counts.reshape(classes, classes)
    right, images, predictions = matrix.diagonal(), matrix.sum(axis=1), matrix.sum(axis=0)
    occurs = images + predictions > 0
    shares = [(right, predictions), (right, images), (2 * right, images + predictions)]
    return [float(_quotient(above[occurs], below[occurs]).mean()) for above, below in shares]


def _quotient(above: Floats, below: Floats) -> Floats:
    found: Floats = np.divide(above, below, out=np.zeros(len(above)), where=below > 0)
    return found


def true_at_false_positives(
    scores: NDArray[np.float32], labels: NDArray[np.float64], max_fpr: float
) -> float:
    """Returns the highest true positive rate of a threshold whose false positive rate is at most ``max_fpr``.

    Args:
        scores: Logits [N, 2] of two classes, of which the second is positive.
        labels: Labels [N], 0 or 1.
        max_fpr: Highest false positive rate, 0..1.

    Returns:
        0..1; NaN without positives or negatives, or for non-finite scores.
    """
    if len(np.unique(labels)) < 2 or not np.isfinite(scores).all():
        return float("nan")
    # Rates from the highest threshold to the lowest; the first one finds nothing.
    from sklearn.metrics import roc_curve  # slow to import

    false, true, _ = roc_curve(labels, scores[:, 1] - scores[:, 0], drop_intermediate=False)
    return float(true[false <= max_fpr].max())
