"""Computes weights and frequencies of classes from the labels of the training set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.config.objectives.multi_label import MultiLabelLoss
from ppcls.config.sections.objective import CELoss, ClassWeightedLoss, FocalLoss

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ClassCounts:
    """Numbers of training images, per class and in total.

    Attributes:
        positives: Number of images that have each class, [C]. An image with several classes counts for each
            of them.
        images: Number of all images.
    """

    positives: Floats
    images: int


def count_classes(losses: Sequence[Any], labels: NDArray[Any], classes: int) -> ClassCounts | None:
    """Counts the training images of each class.

    Args:
        losses: Losses of the config.
        labels: Labels of all training images, [N] int64 or [N, C] float32.
        classes: Number of classes.

    Returns:
        None if no loss needs the numbers.
    """
    if not any(
        isinstance(getattr(spec, "class_weight", None), str)
        or getattr(spec, "logit_adjustment", None) is not None
        for spec in losses
    ):
        return None
    several = labels.ndim == 2
    positives = labels.sum(axis=0, dtype=np.float64) if several else np.bincount(labels, minlength=classes)
    return ClassCounts(positives.astype(np.float64), len(labels))


def class_weights(spec: ClassWeightedLoss, counts: ClassCounts | None) -> Floats | None:
    """Returns the weight of each class, [C]; None if the loss has no class weights.

    For `MultiLabelLoss`, and for `FocalLoss` with sigmoid, the weights apply only to positives.

    Raises:
        ValueError: The weights depend on ``counts``, but ``counts`` is None.
    """
    if spec.class_weight is None:
        return None
    if not isinstance(spec.class_weight, str):
        return np.array(spec.class_weight, np.float64)
    if counts is None:
        raise ValueError(f"class_weight: {spec.class_weight} needs the number of images per class, got None")
    positives = counts.positives
    occurs = positives > 0
    beta = spec.class_weight_beta if spec.class_weight == "effective_number" else None
    weights = np.ones(len(positives))  # 1 for classes without images
    if isinstance(spec, MultiLabelLoss) or (isinstance(spec, FocalLoss) and spec.activation == "sigmoid"):
        negatives = _effective(counts.images - positives, beta)
        weights[occurs] = negatives[occurs] / _effective(positives, beta)[occurs]
        return weights
    weights[occurs] = 1.0 / _effective(positives, beta)[occurs]
    weights[occurs] *= positives.sum() / (weights * positives).sum()
    return weights


def _effective(numbers: Floats, beta: float | None) -> Floats:
    """Returns the effective numbers ``(1 - beta^n) / (1 - beta)`` of images; ``n`` if ``beta`` is None."""
    return numbers if beta is None else (1.0 - beta**numbers) / (1.0 - beta)


def logit_offsets(spec: CELoss, counts: ClassCounts | None) -> Floats | None:
    """Returns offsets for the logits, ``tau * log(frequency)``, [C]; None if logits are not adjusted.

    The frequency of a class without images is computed as if the class had one image.

    Raises:
        ValueError: Logits are adjusted, but ``counts`` is None.
    """
    if spec.logit_adjustment is None:
        return None
    if counts is None:
        raise ValueError("logit_adjustment needs the number of images per class, got None")
    offsets: Floats = spec.logit_adjustment * np.log(np.maximum(counts.positives, 1.0) / counts.images)
    return offsets
