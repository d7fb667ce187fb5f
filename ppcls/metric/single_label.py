"""Metrics for images with one class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import field_validator
from pydantic_core import InitErrorDetails

from ppcls.config.base.facts import RunFacts
from ppcls.config.base.fields import Bound, Count, Fraction
from ppcls.config.base.problems import problem
from ppcls.config.base.tree import STUDENT
from ppcls.metric.base import AcceptedLabels, DatasetMetric, Metric

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from paddle import Tensor

    from ppcls.metric.build import CountMetric
    from ppcls.metric.functional.retrieval import Search
    from ppcls.outputs import Outputs

MAX_CONFUSION_CLASSES = 1000  # largest number of classes of a confusion matrix, which needs classes^2 entries


class TopkAcc(Metric):
    """Top-k accuracy: share of samples whose label is among the ``k`` highest logits."""

    maximum: ClassVar[float | None] = 1.0
    topk: tuple[Count, ...] = (1, 5)
    """One value of k, or a list of values."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names such as ``("top1", "top5")``."""
        return tuple(f"top{k}" for k in self.topk)

    @field_validator("topk", mode="before")
    @classmethod
    def _to_tuple(cls, value: Any) -> Any:
        return (value,) if isinstance(value, int) else value

    @field_validator("topk")
    @classmethod
    def _check_distinct(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or len(set(value)) != len(value):
            raise ValueError(f"expected one or more distinct integers, got {list(value)}")
        return value

    def problems(self, facts: RunFacts, part: str) -> Iterator[InitErrorDetails]:
        """Yields the conflicts of all metrics, and values of k that exceed the number of classes."""
        yield from super().problems(facts, part)
        for k in self.topk:
            if k > facts.class_num:
                yield problem(f"expected at most Arch.class_num ({facts.class_num}), got {k}", "topk")

    def select_logits(self, outputs: Outputs) -> Tensor:
        """Returns the logits among the outputs of the model, [B, C]."""
        from ppcls.outputs import get_logits

        return get_logits(outputs)

    def build(self, classes: int, search: Search) -> CountMetric:  # noqa: ARG002
        """Returns the object that counts the samples whose label is among the ``k`` highest logits."""
        from ppcls.metric.build import CountMetric, shares_of_images
        from ppcls.metric.functional.single_label import topk_correct

        return CountMetric(
            self.names,
            len(self.topk),
            lambda outputs, label: topk_correct(self.select_logits(outputs), label, self.topk),
            shares_of_images,
        )


class DistillationTopkAcc(TopkAcc):
    """``TopkAcc`` of one model. In evaluation, the model must be the student."""

    multi_model: ClassVar[bool] = True
    model_key: str
    """Name of the model."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of `TopkAcc`. For models other than the student, they start with the name of the model."""
        plain = super().names
        return plain if self.model_key == STUDENT else tuple(f"{self.model_key}_{name}" for name in plain)

    def problems(self, facts: RunFacts, part: str) -> Iterator[InitErrorDetails]:
        """Yields the conflicts of `TopkAcc`, and a model that is unknown or not evaluated."""
        yield from super().problems(facts, part)
        if not facts.models:
            yield problem("needs several models; expected Arch.name: DistillationModel")
        elif self.model_key not in facts.models:
            known = ", ".join(facts.models)
            yield problem(f"Arch.models has no model {self.model_key!r}; expected {known}")
        elif part == "Eval" and self.model_key != facts.student:
            text = f"only {facts.student!r} is evaluated; expected a loss or metric of only this model"
            yield problem(text)

    def select_logits(self, outputs: Outputs) -> Tensor:
        """Returns the logits of the model, [B, C]. In evaluation, only the outputs of the student exist."""
        return outputs[self.model_key] if isinstance(outputs, dict) else outputs


class PerClassRecall(Metric):
    """Mean and minimum of the recalls of all classes.

    The mean is the balanced accuracy, in which each class has the same weight. Classes without images are
    ignored.
    """

    maximum: ClassVar[float | None] = 1.0
    whole_dataset: ClassVar[bool] = True
    each: bool = False
    """Also report the recall of each class, as `recall_0`, `recall_1` and so on."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the mean and the minimum."""
        return ("recall_mean", "recall_min")

    def all_names(self, classes: int) -> tuple[str, ...]:
        """Returns the names of the mean, the minimum and, with ``each``, of the recalls of all classes."""
        return (*self.names, *(f"recall_{k}" for k in range(classes if self.each else 0)))

    def build(self, classes: int, search: Search) -> CountMetric:  # noqa: ARG002
        """Returns the object that counts correct predictions and images per class."""
        from ppcls.metric.build import CountMetric, from_logits
        from ppcls.metric.functional.single_label import class_hits, summarize_recalls

        return CountMetric(
            self.all_names(classes),
            2 * classes,
            from_logits(class_hits),
            lambda counts, _: summarize_recalls(counts, self.each),
        )


class ConfusionMatrix(Metric):
    """Precision, recall and F1 from the confusion matrix, averaged over classes that occur or are predicted.

    The values equal those of scikit-learn with ``average="macro"``. The recall of a class without images, and
    the precision of a class without predictions, is 0. Supports at most 1,000 classes. ``tools/eval.py
    --confusion FILE`` writes the matrix.
    """

    maximum: ClassVar[float | None] = 1.0
    whole_dataset: ClassVar[bool] = True
    each: bool = False
    """Also report precision and F1 of each class, as `precision_0`, `f1_0` and so on."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the three averages."""
        return ("macro_precision", "macro_recall", "macro_f1")

    def all_names(self, classes: int) -> tuple[str, ...]:
        """Returns the names of the averages and, with ``each``, of precision and F1 of all classes."""
        per_class = (f"{name}_{k}" for name in ("precision", "f1") for k in range(classes))
        return (*self.names, *(per_class if self.each else ()))

    def problems(self, facts: RunFacts, part: str) -> Iterator[InitErrorDetails]:
        """Yields the conflicts of all metrics, and a matrix that is too large."""
        yield from super().problems(facts, part)
        if facts.class_num > MAX_CONFUSION_CLASSES:
            yield problem(
                f"expected at most {MAX_CONFUSION_CLASSES} classes, but Arch.class_num is {facts.class_num}"
            )

    def build(self, classes: int, search: Search) -> CountMetric:  # noqa: ARG002
        """Returns the object that counts the confusion matrix."""
        from ppcls.metric.build import CountMetric, from_logits
        from ppcls.metric.functional.single_label import class_precision_and_f1, confusion, macro_averages

        return CountMetric(
            self.all_names(classes),
            classes**2,
            from_logits(confusion),
            lambda counts, _: [
                *macro_averages(counts),
                *(class_precision_and_f1(counts) if self.each else ()),
            ],
        )


class CalibrationError(Metric):
    """Expected calibration error, ``ece`` (Guo et al. 2017, section 2). Lower is better.

    The images are divided into bins of equal width by the probability of the predicted class. The error of a
    bin is the absolute difference between its accuracy and its mean probability. The metric is the mean error
    over all images.
    """

    maximum: ClassVar[float | None] = 1.0
    lower_is_better: ClassVar[bool] = True
    whole_dataset: ClassVar[bool] = True
    bins: Annotated[int, Bound(gt=0, le=1000)] = 15
    """Number of bins into which the probabilities from 0 to 1 are divided."""

    @property
    def names(self) -> tuple[str, ...]:
        """Name of the metric."""
        return ("ece",)

    def build(self, classes: int, search: Search) -> CountMetric:  # noqa: ARG002
        """Returns the object that counts images by the probability of their predicted class."""
        from ppcls.metric.build import CountMetric, from_logits
        from ppcls.metric.functional.single_label import calibration_counts, calibration_error

        return CountMetric(
            self.names,
            3 * self.bins,
            from_logits(partial(calibration_counts, bins=self.bins)),
            lambda counts, _: [calibration_error(counts)],
        )


class TprAtFpr(DatasetMetric):
    """For two classes, the largest recall of the second class at a limited false positive rate."""

    labels: ClassVar[AcceptedLabels] = "one"
    max_fpr: Fraction = 0.001
    """Maximum false positive rate, 0 to 1: share of the images of the first class that are predicted as the
    second class."""

    def problems(self, facts: RunFacts, part: str) -> Iterator[InitErrorDetails]:
        """Yields the conflicts of all metrics, and another number of classes than two."""
        yield from super().problems(facts, part)
        if facts.class_num != 2:
            yield problem(f"expected two classes, but Arch.class_num is {facts.class_num}")

    def compute(self, scores: NDArray[Any], labels: NDArray[Any]) -> Sequence[float]:
        """Returns a list with the recall; see `DatasetMetric.compute`."""
        from ppcls.metric.functional.single_label import true_at_false_positives

        return [true_at_false_positives(scores, labels, self.max_fpr)]
