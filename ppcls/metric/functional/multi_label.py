"""Formulas of metrics for images with several classes.

A class counts as predicted if its sigmoid is above 0.5, or above the threshold of `attribute_measures`.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor


def count_labels(logits: Tensor, label: Tensor) -> Tensor:
    """Counts correct labels.

    Args:
        logits: [B, C], any floating dtype.
        label: [B, C] float. Values above 0.5 are positive.

    Returns:
        Number of correct labels and of all labels, [2] int64, on the device of ``logits``.
    """
    right = _right(logits, label).sum().reshape([1])
    return paddle.concat([right, paddle.full([1], label.size, "int64")])


def right_images(logits: Tensor, label: Tensor) -> Tensor:
    """Returns the number of images whose labels are all correct, [1] int64.

    See `count_labels` for the arguments.
    """
    return _right(logits, label).min(axis=-1).sum().reshape([1])


def label_hits(logits: Tensor, label: Tensor, threshold: float = 0.5) -> Tensor:
    """Counts correct positives, predicted positives and positives of each class, [3 * C] int64.

    Args:
        logits: [B, C], any floating dtype.
        label: [B, C] float. Values above 0.5 are positive.
        threshold: A class counts as predicted if its sigmoid is above this threshold.
    """
    positive = label > 0.5
    predicted = paddle.nn.functional.sigmoid(logits.astype("float32")) > threshold
    kinds = [predicted & positive, predicted, positive]
    return paddle.concat([kind.astype("int64").sum(axis=0) for kind in kinds])


def label_measures(counts: NDArray[np.float64]) -> tuple[list[NDArray[np.float64]], NDArray[np.bool_]]:
    """Returns precision, recall and F1 of each class, and which classes occur or are predicted.

    A quotient with denominator 0 is 0.

    Args:
        counts: Sum of the results of `label_hits`, [3 * C].
    """
    hits, predictions, positives = counts.reshape(3, -1)
    quotients = [(hits, predictions), (hits, positives), (2 * hits, predictions + positives)]
    shares = [
        np.divide(above, below, out=np.zeros(len(above)), where=below > 0) for above, below in quotients
    ]
    return shares, predictions + positives > 0


def summarize_labels(counts: NDArray[np.float64], each: bool) -> list[float]:
    """Returns precision, recall and F1, averaged over the classes that occur or are predicted.

    If ``each`` is True, the three values of each class follow; NaN for a class that neither occurs nor is
    predicted.

    Args:
        counts: Sum of the results of `label_hits`, [3 * C].
    """
    shares, known = label_measures(counts)
    values = [float(share[known].mean()) if known.any() else float("nan") for share in shares]
    if each:
        values += [value for share in shares for value in np.where(known, share, np.nan).tolist()]
    return values


def _right(logits: Tensor, label: Tensor) -> Tensor:
    # Not `sigmoid(z) > 0.5`, which is False in float32 for logits up to 6e-8: the sigmoid rounds to 0.5.
    return ((logits.astype("float32") > 0.0) == (label > 0.5)).astype("int64")


def mean_average_precision(
    scores: NDArray[np.float32], labels: NDArray[np.float64], kind: Literal["integral", "11point"]
) -> float:
    """Returns the mean of the average precisions of all classes that have positives.

    The result does not depend on the order of images with equal scores.

    Args:
        scores: [N, C]. A higher score means that the class is more likely.
        labels: [N, C], 0 or 1.
        kind: Definition of the average precision. ``integral``: the sum of ``(R_n - R_(n-1)) * P_n`` over the
            distinct scores, with recall ``R`` and precision ``P``. ``11point``: the mean, over the recalls 0,
            0.1, …, 1, of the highest precision at this recall or above (Everingham et al. 2010, section 4.2).

    Returns:
        A value in 0..1; NaN if no class has positives, or if scores are not finite.
    """
    precisions = [
        _average_precision(scores[:, k], labels[:, k], kind) for k in np.flatnonzero(labels.any(axis=0))
    ]
    return float(np.mean(precisions)) if precisions else float("nan")


def _average_precision(score: NDArray[np.float32], label: NDArray[np.float64], kind: str) -> float:
    if not np.isfinite(score).all():
        return float("nan")
    from sklearn.metrics import precision_recall_curve  # slow to import

    precision, recall, _ = precision_recall_curve(label, score)  # recall decreases from 1 to 0
    if kind == "integral":
        return float(-(np.diff(recall) * precision[:-1]).sum())
    # Ignores the last point, because it does not correspond to an image. The tolerance allows for rounding
    # errors of the recall.
    best = [precision[:-1][recall[:-1] >= k / 10 - 1e-12].max() for k in range(11)]
    return float(np.mean(best))


def attribute_measures(
    scores: NDArray[np.float32], labels: NDArray[np.float64], threshold: float
) -> list[float]:
    """Returns the five values of `ATTRMetric`; NaN if scores are not finite.

    Args:
        scores: Logits, [N, C].
        labels: [N, C], 0 or 1.
        threshold: A class counts as predicted if its sigmoid is above this threshold.
    """
    if not len(scores) or not np.isfinite(scores).all():
        return [float("nan")] * 5
    from scipy.special import expit  # slow to import

    true = labels > 0.5
    predicted = expit(scores.astype(np.float64)) > threshold
    recalls = [_shares((predicted == true) & kind, kind, axis=0) for kind in (true, ~true)]
    accuracy, precision, recall = (
        float(_shares(predicted & true, of, axis=1).mean()) for of in (predicted | true, predicted, true)
    )
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return [float(np.mean(recalls)), accuracy, precision, recall, f1]


def _shares(part: NDArray[np.bool_], whole: NDArray[np.bool_], axis: int) -> NDArray[np.float64]:
    """Returns the size of ``part`` divided by that of ``whole`` along an axis; 0 if ``whole`` is empty."""
    parts = part.sum(axis=axis)
    wholes = whole.sum(axis=axis)
    shares: NDArray[np.float64] = np.divide(parts, wholes, out=np.zeros(len(parts)), where=wholes > 0)
    return shares
