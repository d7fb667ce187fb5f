"""Losses for images with any number of labels."""

from __future__ import annotations

from typing import Literal

from ppcls.config.base.fields import Decay, NonNegative, Positive
from ppcls.config.sections.objective import ClassWeight, ClassWeightedLoss, LossSpec


class MultiLabelLoss(ClassWeightedLoss):
    """Mean over classes of the binary cross-entropy of sigmoid probabilities.

    If images have a single label, it is converted to one-hot.
    """

    class_weight: ClassWeight | None = None
    """Weights of the positives of each class: a list with one weight per class, or a rule that computes them
    from the training data. `balanced`: number of negatives divided by number of positives;
    `effective_number`: the same ratio of effective numbers (Cui et al. 2019). Default: no weights."""
    epsilon: Decay | None = None
    """Label smoothing: the target is (1 - epsilon) * label + epsilon / classes; default: 0."""
    size_sum: bool = False
    """Use the sum over the classes of an image instead of the mean."""
    weight_ratio: bool = False
    """Weight positives and negatives of a class by the share of positives in the data set, so that the rarer
    of the two has the larger weight. Needs `label_ratio: True` in the data set."""


class MultiLabelAsymmetricLoss(LossSpec):
    """Asymmetric loss (Ridnik et al. 2021), which gives less weight to easy negatives than to positives."""

    gamma_pos: NonNegative = 1.0
    """Focusing exponent of positives. With 0, all positives have the same weight."""
    gamma_neg: NonNegative = 4.0
    """Focusing exponent of negatives. With 0, all negatives have the same weight."""
    clip: Decay | None = 0.05
    """Probability, 0 to 1, below which negatives are ignored; null to ignore none."""
    epsilon: Positive = 1e-8
    """Lower limit of the argument of the logarithm."""
    disable_focal_loss_grad: bool = True
    """Compute no gradients of the focusing factors, which are then constants."""
    reduction: Literal["sum", "mean"] = "sum"
    """Reduction over the classes of an image: `sum` or `mean`. Over images, the loss is always the mean, so
    gradients do not depend on the batch size. In PaddleClas, `sum` also applies to the images."""
