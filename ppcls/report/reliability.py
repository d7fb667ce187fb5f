"""Computes the reliability diagram of the report: accuracy against confidence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_BINS = 10


@dataclass(frozen=True)
class ReliabilityBin:
    """The images whose predicted class has a probability in one interval.

    Attributes:
        confidence: Mean probability of the predicted class, 0..1. It is computed from a histogram, so it is
            accurate to half a histogram bin.
        accuracy: Share of correct predictions, 0..1.
        images: Number of images, at least 1.
    """

    confidence: float
    accuracy: float
    images: int


def reliability_bins(confidences: NDArray[np.int64]) -> list[ReliabilityBin]:
    """Returns the bins of the diagram that have images, in ascending order of confidence.

    Args:
        confidences: See `Outcomes.confidences`. The number of bins must be a multiple of 10.
    """
    width = confidences.shape[1]
    centres = (np.arange(width) + 0.5) / width
    bins = []
    for part in np.split(np.arange(width), _BINS):
        wrong, correct = confidences[:, part]
        images = int((wrong + correct).sum())
        if images:
            mean = float(((wrong + correct) * centres[part]).sum() / images)
            bins.append(ReliabilityBin(mean, float(correct.sum() / images), images))
    return bins


def expected_calibration_error(bins: list[ReliabilityBin]) -> float:
    """Returns the mean over images of the difference between accuracy and confidence of their bin."""
    images = sum(bin_.images for bin_ in bins)
    gaps = sum(abs(bin_.accuracy - bin_.confidence) * bin_.images for bin_ in bins)
    return gaps / images if images else float("nan")
