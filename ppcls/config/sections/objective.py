"""What is trained for and what is measured: the items of ``Loss`` and ``Metric`` in YAML."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from ppcls.config.base.fields import Count, Decay, Fraction, Keyed, Number, Section, Spec
from ppcls.registry import LOSSES, METRICS

Labels = Literal["one", "several", "any"]  # that an image may have


class LossSpec(Spec):
    """A loss.

    Attributes:
        weight: Factor of this loss in the sum of losses.
    """

    labels: ClassVar[Labels] = "any"
    multi_model: ClassVar[bool] = False  # whether it is of several models, of `Arch.name: DistillationModel`
    whole: ClassVar[bool] = False  # see MetricSpec
    on_embeddings: ClassVar[bool] = False  # whether it takes labels that the model has no class for
    weight: Number = 1.0


class MetricSpec(Spec):
    """A metric."""

    labels: ClassVar[Labels] = "one"
    multi_model: ClassVar[bool] = False
    lower_is_better: ClassVar[bool] = False
    whole: ClassVar[bool] = False  # whether it is of all samples at once, so nothing to tell while training

    @property
    def names(self) -> tuple[str, ...]:
        """Of its numbers."""
        return (self.kind,)


class CELoss(LossSpec):
    """Mean cross-entropy of the softmax.

    Attributes:
        epsilon: Label smoothing (Szegedy et al. 2016, section 7): the share of the uniform distribution in
            the target.
    """

    labels: ClassVar[Labels] = "one"
    epsilon: Decay | None = None


class BCELoss(LossSpec):
    """Mean binary cross-entropy of each class's sigmoid; a class is there or is not (Wightman et al. 2021).

    Attributes:
        epsilon: Label smoothing.
        target_threshold: A class whose share of the smoothed label is above it counts as there: of mixed
            images both classes may.
    """

    epsilon: Decay | None = None
    target_threshold: Decay = 0.2


class TopkAcc(MetricSpec):
    """Share of samples whose label is among the ``k`` highest logits, for each ``k`` of ``topk``."""

    topk: tuple[Count, ...] = (1, 5)

    @property
    def names(self) -> tuple[str, ...]:
        """Such as ``("top1", "top5")``."""
        return tuple(f"top{k}" for k in self.topk)

    @field_validator("topk", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, int) else value

    @field_validator("topk")
    @classmethod
    def _distinct(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or len(set(value)) != len(value):
            raise ValueError(f"topk must be one or more distinct integers, got {list(value)}")
        return value


MAX_CONFUSION_CLASSES = 1000  # of a confusion matrix: so many squared are added up at each batch


class PerClassRecall(MetricSpec):
    """Recall of each class, the share of its images that are taken for it: their mean, and the lowest.

    The mean is the balanced accuracy: each class counts as much, however many images it has. Classes without
    images don't count.
    """

    whole: ClassVar[bool] = True
    each: bool = Field(False, description="tell `recall_0`, `recall_1` … of all classes, too")

    @property
    def names(self) -> tuple[str, ...]:
        """Two, and perhaps those of classes."""
        return ("recall_mean", "recall_min")


class ConfusionMatrix(MetricSpec):
    """Precision, recall and F1 by the confusion matrix: means over classes that occur or are predicted.

    As scikit-learn's with ``average="macro"``; what has no images, or no predictions, counts 0. At most
    1,000 classes. ``tools/eval.py --confusion FILE`` writes the matrix.
    """

    whole: ClassVar[bool] = True

    @property
    def names(self) -> tuple[str, ...]:
        """Three."""
        return ("macro_precision", "macro_recall", "macro_f1")


class TprAtFpr(MetricSpec):
    """Of two classes, the largest share of the second's images that a threshold finds at few false alarms."""

    whole: ClassVar[bool] = True
    max_fpr: Fraction = Field(
        0.001, description="the most false alarms, as a share of the first class's images"
    )


Losses = tuple[Annotated[LossSpec, Keyed(LOSSES)], ...]
Metrics = tuple[Annotated[MetricSpec, Keyed(METRICS)], ...]


class Loss(Section):
    """Losses, added up by their weights."""

    Train: Losses = Field((CELoss(),), min_length=1)
    Eval: Losses = Field((CELoss(),), min_length=1)


class Metric(Section):
    """What is counted while training and in evaluation; the first of Eval decides which model is best."""

    Train: Metrics = ()
    Eval: Metrics = Field((TopkAcc(),), min_length=1)

    @field_validator("Train", mode="before")
    @classmethod
    def _none_at_all(cls, value: object) -> object:
        return () if value is None else value
