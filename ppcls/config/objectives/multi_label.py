"""Losses and metrics for images with any number of labels."""

from __future__ import annotations

from typing import ClassVar, Literal

from ppcls.config.base.fields import Decay, Fraction, NonNegative, Positive
from ppcls.config.sections.objective import ClassWeight, ClassWeightedLoss, Labels, LossSpec, MetricSpec


class MultiLabelLoss(ClassWeightedLoss):
    """Mean binary cross-entropy of each class's sigmoid. Single labels are converted to one-hot."""

    class_weight: ClassWeight | None = None
    """Weight of the positives of each class: a list, or computed from the training data. `balanced`: number
    of negatives divided by number of positives; `effective_number`: the same quotient of effective numbers
    (Cui et al. 2019)."""
    epsilon: Decay | None = None
    """Label smoothing: the target is (1 - epsilon) * label + epsilon / classes."""
    size_sum: bool = False
    """Use the sum over the classes of an image instead of the mean."""
    weight_ratio: bool = False
    """Give rarer labels of a class a larger weight, according to its share of positives in the data set,
    which needs `label_ratio` there."""


class MultiLabelAsymmetricLoss(LossSpec):
    """Asymmetric loss (Ridnik et al. 2021): easy negatives have a small weight, very easy ones none."""

    gamma_pos: NonNegative = 1.0
    """Focusing exponent of positives."""
    gamma_neg: NonNegative = 4.0
    """Focusing exponent of negatives."""
    clip: Decay | None = 0.05
    """Probability below which negatives are ignored."""
    epsilon: Positive = 1e-8
    """Smallest argument of the logarithm."""
    disable_focal_loss_grad: bool = True
    """Treat the focusing factors as constants."""
    reduction: Literal["sum", "mean"] = "sum"
    """Whether the losses of an image's classes are added or averaged. Images are always averaged, so that
    gradients do not depend on the batch size; PaddleClas's `sum` also adds images."""


class AccuracyScore(MetricSpec):
    """Share of correct labels (``base: label``), or of images whose labels are all correct (``sample``).

    A class is predicted if its sigmoid is larger than 0.5.
    """

    labels: ClassVar[Labels] = "several"
    base: Literal["sample", "label"] = "label"
    """What is counted: images (`sample`) or labels."""

    @property
    def names(self) -> tuple[str, ...]:
        """Name of the value, which depends on ``base``."""
        return ("AccuracyScore" if self.base == "label" else "AccuracyScore_sample",)


class HammingDistance(MetricSpec):
    """Share of wrong labels. Lower is better. Classes are predicted as in ``AccuracyScore``."""

    labels: ClassVar[Labels] = "several"
    lower_is_better: ClassVar[bool] = True


class MultiLabelMAP(MetricSpec):
    """Mean over classes of the average precision over all samples. Classes without samples are ignored."""

    labels: ClassVar[Labels] = "several"
    whole_dataset: ClassVar[bool] = True
    map_type: Literal["integral", "11point"] = "integral"
    """`integral`: area under the precision-recall steps; `11point`: mean of the best precision at recalls of
    at least 0, 0.1 … 1 (PASCAL VOC 2007)."""


class ATTRMetric(MetricSpec):
    """Metrics of attribute recognition: ``mA`` and four averages over images.

    ``mA`` (Deng et al. 2014) is the mean over classes of the mean recall of their positives and negatives;
    the recall of none is 0. With P the predicted and T the true classes of an image, ``instance_accuracy``,
    ``_precision`` and ``_recall`` (Li et al. 2016, RAP) are means over images of ``|P & T|`` divided by ``|P
    | T|``, ``|P|`` and ``|T|``, or 0 where the divisor is 0. ``instance_f1`` is the harmonic mean of the
    latter two.
    """

    labels: ClassVar[Labels] = "several"
    whole_dataset: ClassVar[bool] = True
    threshold: Fraction = 0.5
    """Classes whose sigmoid is larger are predicted."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the five values."""
        return ("mA", *(f"instance_{measure}" for measure in ("accuracy", "precision", "recall", "f1")))
