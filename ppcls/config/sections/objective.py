"""The sections ``Loss`` and ``Metric``, and the losses and metrics for one label per image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator
from typing_extensions import Self

from ppcls.config.base.fields import (
    Bound,
    Count,
    Decay,
    Fraction,
    Keyed,
    NonNegative,
    Number,
    Part,
    Positive,
    Section,
    Spec,
    error_at,
)
from ppcls.registry import LOSSES, METRICS

Labels = Literal["one", "several", "any"]  # how many labels an image may have
MAX_CONFUSION_CLASSES = 1000  # a confusion matrix has this many squared entries, added up for each batch


class LossSpec(Spec):
    """A loss.

    Attributes:
        labels: Number of labels per image that the loss accepts.
        multi_model: Whether the loss needs several models, as in ``Arch.name: DistillationModel``.
        whole_dataset: See `MetricSpec`.
        on_embeddings: Whether the loss compares embeddings, with any numbers as labels.
        has_weights: Whether the loss has trainable layers of its own.
    """

    labels: ClassVar[Labels] = "any"
    multi_model: ClassVar[bool] = False
    whole_dataset: ClassVar[bool] = False
    on_embeddings: ClassVar[bool] = False
    has_weights: ClassVar[bool] = False
    weight: Number = 1.0
    """Factor of this loss in the sum of losses."""


class MetricSpec(Spec):
    """A metric.

    Attributes:
        labels: Number of labels per image that the metric accepts.
        multi_model: Whether the metric needs several models, as in ``Arch.name: DistillationModel``.
        lower_is_better: Whether smaller values are better.
        whole_dataset: Whether the metric needs all samples at once, so that batches have no value.
    """

    labels: ClassVar[Labels] = "one"
    multi_model: ClassVar[bool] = False
    lower_is_better: ClassVar[bool] = False
    whole_dataset: ClassVar[bool] = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the values that the metric reports."""
        return (self.kind,)


ClassWeight = tuple[NonNegative, ...] | Literal["balanced", "effective_number"]


class ClassWeightedLoss(LossSpec):
    """A loss whose classes can have weights of their own.

    Weighted losses are divided by the number of images, not by the sum of their weights. So they do not
    depend on the number of processes or on the size of batches.
    """

    class_weight: ClassWeight | None = None
    """Weight of each class: a list, or computed from the training data. `balanced`: inversely proportional to
    the number of images; `effective_number`: a weaker correction by the effective number of images (Cui et
    al. 2019). Computed weights have the mean 1 over the training images."""
    class_weight_beta: Decay = 0.999
    """Beta of `effective_number`: 0 gives all classes the same weight, values close to 1 approach
    `balanced`."""


class CELoss(ClassWeightedLoss):
    """Mean cross-entropy of the softmax."""

    ignored: ClassVar[Mapping[str, str]] = {"reduction": "the loss is the mean over the batch"}
    labels: ClassVar[Labels] = "one"
    epsilon: Decay | None = None
    """Label smoothing (Szegedy et al. 2016, section 7): share of the uniform distribution in the target."""
    logit_adjustment: NonNegative | None = None
    """Factor tau of the logarithms of the class frequencies, which are added to the logits in training (Menon
    et al. 2021). 1 optimizes the balanced accuracy."""


class FocalLoss(ClassWeightedLoss):
    """Focal loss (Lin et al. 2017): images that are classified with confidence have a small weight."""

    gamma: NonNegative = 2.0
    """Focusing exponent; 0 is the cross-entropy."""
    activation: Literal["softmax", "sigmoid"] = "softmax"
    """`softmax` for one label per image, `sigmoid` for any number of labels."""
    alpha: Part | None = None
    """Weight of the positives of each class, with 1 - alpha for its negatives. Only for `sigmoid`."""
    epsilon: Decay | None = None
    """Label smoothing: share of the uniform distribution in the target."""

    @model_validator(mode="after")
    def _check_alpha(self) -> Self:
        if self.alpha is not None and self.activation == "softmax":
            raise error_at("needs activation: sigmoid; write class_weight for softmax", "alpha")
        return self


class BCELoss(LossSpec):
    """Mean binary cross-entropy of each class's sigmoid (Wightman et al. 2021)."""

    epsilon: Decay | None = None
    """Label smoothing: share of the uniform distribution in the target."""
    target_threshold: Decay = 0.2
    """Classes whose share of the smoothed label is larger count as present. Mixed images may have two."""


def _to_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, int) else value


class TopkAcc(MetricSpec):
    """Share of samples whose label is among the ``k`` highest logits, for each ``k`` of ``topk``."""

    topk: tuple[Count, ...] = (1, 5)
    """One or more values of k."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names such as ``("top1", "top5")``."""
        return tuple(f"top{k}" for k in self.topk)

    _to_tuple = field_validator("topk", mode="before")(_to_tuple)

    @field_validator("topk")
    @classmethod
    def _check_distinct(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or len(set(value)) != len(value):
            raise ValueError(f"expected one or more distinct integers, got {list(value)}")
        return value


class PerClassRecall(MetricSpec):
    """Mean and smallest recall of all classes.

    The mean is the balanced accuracy: each class has the same weight, however many images it has. Classes
    without images are ignored.
    """

    whole_dataset: ClassVar[bool] = True
    each: bool = False
    """Also report the recall of each class, as `recall_0`, `recall_1` …"""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the two values for all classes together."""
        return ("recall_mean", "recall_min")


class ConfusionMatrix(MetricSpec):
    """Precision, recall and F1 from the confusion matrix, averaged over classes that occur or are predicted.

    They equal scikit-learn's with ``average="macro"``. Classes without images, or without predictions, count
    as 0. At most 1,000 classes. ``tools/eval.py --confusion FILE`` writes the matrix.
    """

    whole_dataset: ClassVar[bool] = True
    each: bool = False
    """Also report precision and F1 of each class, as `precision_0`, `f1_0` …"""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the three averages."""
        return ("macro_precision", "macro_recall", "macro_f1")


class CalibrationError(MetricSpec):
    """Expected calibration error, ``ece`` (Guo et al. 2017, section 2). Lower is better.

    Images are grouped by the probability of their predicted class into bins of equal width. The error is the
    mean over images of the difference between accuracy and mean probability of their bin.
    """

    lower_is_better: ClassVar[bool] = True
    whole_dataset: ClassVar[bool] = True
    bins: Annotated[int, Bound(gt=0, le=1000)] = 15
    """Number of bins."""

    @property
    def names(self) -> tuple[str, ...]:
        """Name of the value."""
        return ("ece",)


class TprAtFpr(MetricSpec):
    """With two classes, the largest recall of the second at a limited rate of false alarms."""

    whole_dataset: ClassVar[bool] = True
    max_fpr: Fraction = 0.001
    """Largest accepted false positive rate, the share of the first class's images that are predicted as the
    second."""


class SSL(Section):
    """Semi-supervised training with DataLoader.UnLabelTrain (FixMatch, Sohn et al. 2020).

    The model predicts weakly augmented unlabelled images. Where it is confident, its prediction is the label
    for the strongly augmented view of the same image.
    """

    ignored: ClassVar[Mapping[str, str]] = {"tempture": "temperature is the key, which PaddleClas misspells"}
    threshold: Fraction = 0.95
    """Smallest probability of a predicted class that becomes a label."""
    temperature: Positive = 1.0
    """Divisor of the logits before the softmax of these probabilities."""
    weight: NonNegative = 1.0
    """Factor of the loss of unlabelled images."""


class Loss(Section):
    """Losses, which are added up with their weights."""

    Train: tuple[Annotated[LossSpec, Keyed(LOSSES)], ...] = Field((CELoss(),), min_length=1)
    """Losses of training."""
    Eval: tuple[Annotated[LossSpec, Keyed(LOSSES)], ...] = Field((CELoss(),), min_length=1)
    """Losses of evaluation."""


class Metric(Section):
    """Metrics of training and evaluation."""

    Train: tuple[Annotated[MetricSpec, Keyed(METRICS)], ...] = ()
    """Metrics of training."""
    Eval: tuple[Annotated[MetricSpec, Keyed(METRICS)], ...] = Field((TopkAcc(),), min_length=1)
    """Metrics of evaluation. The first one determines the best model."""

    @field_validator("Train", mode="before")
    @classmethod
    def _accept_none(cls, value: object) -> object:
        return () if value is None else value
