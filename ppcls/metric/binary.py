"""Metrics of two classes, the second of which is what is looked for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_curve


def true_at_false_positives(
    scores: NDArray[np.float32], labels: NDArray[np.float64], max_fpr: float
) -> float:
    """Returns the largest share of positives that a threshold finds which takes few negatives for positives.

    Args:
        scores: [N, 2], logits.
        labels: [N], 0 or 1.
        max_fpr: The most of the negatives, 0..1.

    Returns:
        0..1; NaN without positives or without negatives, or for scores that are no numbers.
    """
    if len(np.unique(labels)) < 2 or not np.isfinite(scores).all():
        return float("nan")
    found = roc_curve(labels, scores[:, 1] - scores[:, 0], drop_intermediate=False)
    wrong, right, _ = found  # shares, from the highest threshold to the lowest; the first finds nothing
    return float(right[wrong <= max_fpr].max())
