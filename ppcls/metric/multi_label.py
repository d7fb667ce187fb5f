"""Metrics of images that are of several classes; a class is predicted where its sigmoid is above 0.5."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from paddle import Tensor
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
