"""Losses and metrics for images with any number of labels."""

from __future__ import annotations

from typing import ClassVar, Literal

from ppcls.config.base.fields import Decay, Fraction, NonNegative, Positive
from ppcls.config.sections.objective import ClassWeight, ClassWeightedLoss, Labels, LossSpec, MetricSpec


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


class AccuracyScore(MetricSpec):
    """Share of correct labels, or of images whose labels are all correct.

    A class is predicted if its sigmoid probability is larger than 0.5.
    """

    labels: ClassVar[Labels] = "several"
    base: Literal["sample", "label"] = "label"
    """Unit to count: `label` for the share of correct labels, `sample` for the share of images whose labels
    are all correct."""

    @property
    def names(self) -> tuple[str, ...]:
        """Name of the metric, which depends on ``base``."""
        return ("AccuracyScore" if self.base == "label" else "AccuracyScore_sample",)


class HammingDistance(MetricSpec):
    """Share of wrong labels. Lower is better.

    A class is predicted if its sigmoid probability is larger than 0.5.
    """

    labels: ClassVar[Labels] = "several"
    lower_is_better: ClassVar[bool] = True


class MultiLabelMAP(MetricSpec):
    """Mean average precision: mean over classes of the average precision.

    Classes without positive samples are ignored.
    """

    labels: ClassVar[Labels] = "several"
    whole_dataset: ClassVar[bool] = True
    map_type: Literal["integral", "11point"] = "integral"
    """Definition of average precision: `integral`: area under the stepwise precision-recall curve; `11point`:
    mean of the highest precisions at recalls of at least 0, 0.1 … 1 (PASCAL VOC 2007)."""


class ATTRMetric(MetricSpec):
    """Metrics of attribute recognition: ``mA`` and four averages over images.

    For ``mA`` (Deng et al. 2014), the recalls of the positives and of the negatives of each class are
    averaged, then these means are averaged over the classes. The recall is 0 if there are no such samples.
    For the other metrics (Li et al. 2016, RAP), let P be the set of predicted classes of an image and T the
    set of true classes. ``instance_accuracy``, ``instance_precision`` and ``instance_recall`` are the means
    over images of ``|P & T|`` divided by ``|P | T|``, ``|P|`` and ``|T|``. A quotient with the divisor 0
    counts as 0. ``instance_f1`` is the harmonic mean of instance precision and recall.
    """

    labels: ClassVar[Labels] = "several"
    whole_dataset: ClassVar[bool] = True
    threshold: Fraction = 0.5
    """Probability threshold, 0 to 1. A class is predicted if its sigmoid probability is larger."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the five metrics."""
        return ("mA", *(f"instance_{measure}" for measure in ("accuracy", "precision", "recall", "f1")))
