"""Losses and metrics of images that are of several classes at once, or of none."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from ppcls.config.base.fields import Decay, Fraction, NonNegative, Positive
from ppcls.config.sections.objective import Labels, LossSpec, MetricSpec


class MultiLabelLoss(LossSpec):
    """Mean binary cross-entropy of each class's sigmoid; one class an image is taken as one-hot."""

    epsilon: Decay | None = Field(
        None, description="label smoothing: the target is (1 - epsilon) * label + epsilon / classes"
    )
    size_sum: bool = Field(False, description="add the classes of an image up, instead of their mean")
    weight_ratio: bool = Field(
        False,
        description="weigh a class's rarer labels more, by its share of positives in the data set; needs "
        "label_ratio there",
    )


class MultiLabelAsymmetricLoss(LossSpec):
    """Asymmetric loss (Ridnik et al. 2021): easy negatives count little, very easy ones nothing."""

    gamma_pos: NonNegative = Field(1.0, description="focusing exponent of positives")
    gamma_neg: NonNegative = Field(4.0, description="focusing exponent of negatives")
    clip: Decay | None = Field(0.05, description="probability up to which negatives don't count")
    epsilon: Positive = Field(1e-8, description="least probability whose logarithm is taken")
    disable_focal_loss_grad: bool = Field(True, description="take the focusing factors as constants")
    reduction: Literal["sum", "mean"] = Field(
        "sum",
        description="over the classes of an image; over images it is always the mean, so that gradients do "
        "not depend on the batch size (PaddleClas's `sum` adds images up, too)",
    )


class AccuracyScore(MetricSpec):
    """Share of labels that are right (``base: label``), or of images with all of theirs right (``sample``).

    A class is predicted where its sigmoid is above 0.5.
    """

    labels: ClassVar[Labels] = "several"
    base: Literal["sample", "label"] = "label"

    @property
    def names(self) -> tuple[str, ...]:
        """One, which says what is counted."""
        return ("AccuracyScore" if self.base == "label" else "AccuracyScore_sample",)


class HammingDistance(MetricSpec):
    """Share of labels that are wrong; the lower the better. The threshold is that of ``AccuracyScore``."""

    labels: ClassVar[Labels] = "several"
    lower_is_better: ClassVar[bool] = True


class MultiLabelMAP(MetricSpec):
    """Mean over classes of the average precision, exact over all samples; classes without any don't count."""

    labels: ClassVar[Labels] = "several"
    whole: ClassVar[bool] = True
    map_type: Literal["integral", "11point"] = Field(
        "integral",
        description="`integral`: area under the steps of precision over recall; `11point`: mean of the best "
        "precision at recalls of at least 0, 0.1 … 1 (PASCAL VOC 2007)",
    )


class ATTRMetric(MetricSpec):
    """How attributes of images are recognized: ``mA``, and what is right of each image, on average.

    ``mA`` (Deng et al. 2014) is the mean over classes of the mean recall of their positives and negatives; a
    recall of none is 0. ``instance_accuracy``, ``_precision`` and ``_recall`` (Li et al. 2016, RAP) are means
    over images of what is told and true as a share of what is either, of what is told, and of what is true;
    a share of nothing is 0. ``instance_f1`` is the harmonic mean of the latter two.
    """

    labels: ClassVar[Labels] = "several"
    whole: ClassVar[bool] = True
    threshold: Fraction = Field(0.5, description="a class is told where its sigmoid is above")

    @property
    def names(self) -> tuple[str, ...]:
        """Five."""
        return ("mA", *(f"instance_{each}" for each in ("accuracy", "precision", "recall", "f1")))
