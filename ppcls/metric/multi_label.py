"""Metrics of images that have several classes; a class is predicted if its sigmoid is above 0.5."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from paddle import Tensor


def right_labels(logits: Tensor, label: Tensor) -> Tensor:
    """Counts correct labels.

    Args:
        logits: [B, C], any floating dtype.
        label: [B, C] float; a class of a mixed image is present if its share is above 0.5.

    Returns:
        [1] int64, 0..B * C, on the device of ``logits``.
    """
    return _right(logits, label).sum().reshape([1])


def right_images(logits: Tensor, label: Tensor) -> Tensor:
    """Counts the images whose labels are all correct, [1] int64; arguments as in `right_labels`."""
    return _right(logits, label).min(axis=-1).sum().reshape([1])


def _right(logits: Tensor, label: Tensor) -> Tensor:
    return ((logits.astype("float32") > 0.0) == (label > 0.5)).astype("int64")


def mean_average_precision(
    scores: NDArray[np.float32], labels: NDArray[np.float64], kind: Literal["integral", "11point"]
) -> float:
    """Returns the average precision, averaged over classes; NaN if no class has positives.

    ``integral`` is the sum of ``(R_n - R_(n-1)) * P_n`` over the distinct scores; ``11point`` is the mean of
    the highest precision at recalls of at least 0, 0.1 … 1 (Everingham et al. 2010, section 4.2). The order
    of images with equal scores does not matter.

    Args:
        scores: Scores [N, C]; higher is more likely.
        labels: Labels [N, C], 0 or 1.
        kind: Definition of the average precision.
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
    # The last point belongs to no image and does not count. A recall within rounding of k / 10 reaches it.
    best = [precision[:-1][recall[:-1] >= k / 10 - 1e-12].max() for k in range(11)]
    return float(np.mean(best))


def attribute_measures(
    scores: NDArray[np.float32], labels: NDArray[np.float64], threshold: float
) -> list[float]:
    """Returns the values of `ATTRMetric`; NaN for non-finite scores.

    Args:
        scores: Logits [N, C].
        labels: Labels [N, C], 0 or 1.
        threshold: A class is predicted if its sigmoid is above.
    """
    if not len(scores) or not np.isfinite(scores).all():
        return [float("nan")] * 5
    from scipy.special import expit  # slow to import

    true, predicted = labels > 0.5, expit(scores.astype(np.float64)) > threshold
    recalls = [_shares((predicted == true) & kind, kind, axis=0) for kind in (true, ~true)]
    accuracy, precision, recall = (
        float(_shares(predicted & true, of, axis=1).mean()) for of in (predicted | true, predicted, true)
    )
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return [float(np.mean(recalls)), accuracy, precision, recall, f1]


def _shares(part: NDArray[np.bool_], whole: NDArray[np.bool_], axis: int) -> NDArray[np.float64]:
    """Returns the share of ``whole`` that is in ``part``; 0 if ``whole`` is empty."""
    parts, wholes = part.sum(axis=axis), whole.sum(axis=axis)
    shares: NDArray[np.float64] = np.divide(parts, wholes, out=np.zeros(len(parts)), where=wholes > 0)
    return shares
