"""Finds suspicious labels by confident learning (Northcutt et al. 2021), from predictions of held-out images.

The library cleanlab has the same method, but its licence (AGPL) does not fit that of ppcls.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def find_suspicious_labels(probabilities: Floats, labels: NDArray[np.int64]) -> list[tuple[int, int, float]]:
    """Returns the pictures whose labels are probably wrong, the most suspicious first.

    A label is suspicious if the model predicts another class for which its probability is at least the mean
    that pictures with that label have.

    Args:
        probabilities: Probabilities of each class, by a model that was not fitted on the picture,
            [N, classes]; NaN for pictures without a prediction.
        labels: Labels, [N], 0..classes - 1.

    Returns:
        The position of each picture, the class that the model suggests, and the probability of that class
        minus that of the label.
    """
    known = np.flatnonzero(np.isfinite(probabilities).all(axis=1))
    classes = probabilities.shape[1]
    thresholds = np.ones(classes, np.float64)
    for label in np.unique(labels[known]).tolist():
        thresholds[label] = probabilities[known[labels[known] == label], label].mean()
    confident = np.where(probabilities[known] >= thresholds, probabilities[known], -1)
    suggested = confident.argmax(axis=1)
    rows = np.arange(len(known))
    margins = probabilities[known, suggested] - probabilities[known, labels[known]]
    wrong = (suggested != labels[known]) & (confident[rows, suggested] >= 0) & (margins > 0)
    order = np.flatnonzero(wrong)[np.argsort(-margins[wrong], kind="stable")]
    return [(int(known[row]), int(suggested[row]), float(margins[row])) for row in order]
