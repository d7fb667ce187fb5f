"""Losses for images with any number of labels."""

from __future__ import annotations

from functools import partial
from typing import Literal

from ppcls.config.base.fields import Decay, NonNegative, Positive
from ppcls.loss.base import ClassStatistics, LogitsLoss, Loss
from ppcls.loss.class_weights import ClassWeight, ClassWeightedLoss


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

    @property
    def weights_positives(self) -> bool:
        """True: the weights apply only to the positives of each class."""
        return True

    @property
    def needs_shares(self) -> bool:
        """Whether the loss needs the share of images that have each class."""
        return self.weight_ratio

    def build(self, data: ClassStatistics) -> LogitsLoss:
        """Returns the binary cross-entropy; see `Loss.build`."""
        from ppcls.loss.functional import classification as functional

        return partial(
            functional.binary_cross_entropy,
            smoothing=self.epsilon or 0.0,
            size_sum=self.size_sum,
            positives=functional.per_class(data.share) if self.weight_ratio else None,
            weights=functional.per_class(self.class_weights(data)),
        )


class MultiLabelAsymmetricLoss(Loss):
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

    @property
    def sums_over_images(self) -> bool:
        """Whether PaddleClas sums the loss over the images of a batch; see `Loss.sums_over_images`."""
        return self.reduction == "sum"

    def build(self, data: ClassStatistics) -> LogitsLoss:
        """Returns the asymmetric loss; see `Loss.build`."""
        from ppcls.loss.functional.classification import AsymmetricFocus, asymmetric_loss

        focus = AsymmetricFocus(
            self.gamma_pos, self.gamma_neg, self.clip or 0.0, self.disable_focal_loss_grad
        )
        return partial(asymmetric_loss, focus=focus, epsilon=self.epsilon, mean=self.reduction == "mean")
