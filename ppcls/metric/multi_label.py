"""Metrics of images that are of several classes; a class is predicted where its sigmoid is above 0.5."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from paddle import Tensor
from scipy.special import expit
from sklearn.metrics import precision_recall_curve


def right_labels(logits: Tensor, label: Tensor) -> Tensor:
    """Counts the labels that are right.

    Args:
        logits: [B, C], any floating dtype.
        label: [B, C] float; of mixed images it is the larger share that counts.

    Returns:
        [1] int64, 0..B * C, on the device of ``logits``.
    """
    return _right(logits, label).sum().reshape([1])


def right_images(logits: Tensor, label: Tensor) -> Tensor:
    """Counts the images whose labels are all right: [1] int64; the arguments are those of `right_labels`."""
    return _right(logits, label).min(axis=-1).sum().reshape([1])


def _right(logits: Tensor, label: Tensor) -> Tensor:
    return ((logits.astype("float32") > 0.0) == (label > 0.5)).astype("int64")


def mean_average_precision(
    scores: NDArray[np.float32], labels: NDArray[np.float64], kind: Literal["integral", "11point"]
) -> float:
    """Returns the mean over classes of the average precision; NaN where no class has positives.

    ``integral`` adds ``(R_n - R_(n-1)) * P_n`` over the different scores; ``11point`` is the mean of the
    highest precision at recalls of at least 0, 0.1 … 1 (Everingham et al. 2010, section 4.2). Images of equal
    score stand and fall together, so their order does not matter.

    Args:
        scores: [N, C]; higher is more likely.
        labels: [N, C], 0 or 1.
        kind: Which of the two.
    """
    found = [_average_precision(scores[:, k], labels[:, k], kind) for k in np.flatnonzero(labels.any(axis=0))]
    return float(np.mean(found)) if found else float("nan")


def _average_precision(score: NDArray[np.float32], label: NDArray[np.float64], kind: str) -> float:
    if not np.isfinite(score).all():
        return float("nan")
    precision, recall, _ = precision_recall_curve(label, score)  # recall falls from 1 to 0
    if kind == "integral":
        return float(-(np.diff(recall) * precision[:-1]).sum())
    # The last point is no image's, so it counts for none; a recall within rounding of k / 10 reaches it.
    best = [precision[:-1][recall[:-1] >= k / 10 - 1e-12].max() for k in range(11)]
    return float(np.mean(best))


def attribute_measures(
    scores: NDArray[np.float32], labels: NDArray[np.float64], threshold: float
) -> list[float]:
    """Returns the values of `ATTRMetric`; NaN for scores that are not numbers.

    Args:
        scores: [N, C], logits.
        labels: [N, C], 0 or 1.
        threshold: A class is told where its sigmoid is above.
    """
    if not len(scores) or not np.isfinite(scores).all():
        return [float("nan")] * 5
    true, told = labels > 0.5, expit(scores.astype(np.float64)) > threshold
    recalls = [_shares((told == true) & kind, kind, axis=0) for kind in (true, ~true)]
    accuracy, precision, recall = (
        float(_shares(told & true, of, axis=1).mean()) for of in (told | true, told, true)
    )
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return [float(np.mean(recalls)), accuracy, precision, recall, f1]


def _shares(part: NDArray[np.bool_], whole: NDArray[np.bool_], axis: int) -> NDArray[np.float64]:
    """Returns how many of ``whole`` are in ``part``; 0 of none."""
    found, all_of_them = part.sum(axis=axis), whole.sum(axis=axis)
    shares: NDArray[np.float64] = np.divide(
        found, all_of_them, out=np.zeros(len(found)), where=all_of_them > 0
    )
    return shares
