"""Metrics for images with any number of labels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ppcls.config.base.fields import Fraction
from ppcls.metric.base import AcceptedLabels, DatasetMetric, Metric

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ppcls.metric.build import CountMetric
    from ppcls.metric.functional.retrieval import Search


class AccuracyScore(Metric):
    """Share of correct labels, or of images whose labels are all correct.

    A class is predicted if its sigmoid probability is larger than 0.5.
    """

    maximum: ClassVar[float | None] = 1.0
    labels: ClassVar[AcceptedLabels] = "several"
    base: Literal["sample", "label"] = "label"
    """Unit to count: `label` for the share of correct labels, `sample` for the share of images whose labels
    are all correct."""

    @property
    def names(self) -> tuple[str, ...]:
        """Name of the metric, which depends on ``base``."""
        return ("AccuracyScore" if self.base == "label" else "AccuracyScore_sample",)

    def build(self, classes: int, search: Search) -> CountMetric:  # noqa: ARG002
        """Returns the object that counts correct labels or images."""
        from ppcls.metric.build import CountMetric, from_logits, shares_of_images
        from ppcls.metric.functional.multi_label import count_labels, right_images

        if self.base == "sample":
            return CountMetric(self.names, 1, from_logits(right_images), shares_of_images)
        return CountMetric(
            self.names, 2, from_logits(count_labels), lambda counts, _: [float(counts[0] / counts[1])]
        )


class ATTRMetric(DatasetMetric):
    """Metrics of attribute recognition: ``mA`` and four averages over images.

    For ``mA`` (Deng et al. 2014), the recalls of the positives and of the negatives of each class are
    averaged, then these means are averaged over the classes. The recall is 0 if there are no such samples.
    For the other metrics (Li et al. 2016, RAP), let P be the set of predicted classes of an image and T the
    set of true classes. ``instance_accuracy``, ``instance_precision`` and ``instance_recall`` are the means
    over images of ``|P & T|`` divided by ``|P | T|``, ``|P|`` and ``|T|``. A quotient with the divisor 0
    counts as 0, so an image without labels counts as 0 even if rightly no class is predicted. If many images
    have no label, use `PerLabelMetrics`. ``instance_f1`` is the harmonic mean of instance precision and
    recall.
    """

    labels: ClassVar[AcceptedLabels] = "several"
    threshold: Fraction = 0.5
    """Probability threshold, 0 to 1. A class is predicted if its sigmoid probability is larger."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the five metrics."""
        return ("mA", *(f"instance_{measure}" for measure in ("accuracy", "precision", "recall", "f1")))

    def compute(self, scores: NDArray[Any], labels: NDArray[Any]) -> Sequence[float]:
        """Returns the five values; see `DatasetMetric.compute`."""
        from ppcls.metric.functional.multi_label import attribute_measures

        return attribute_measures(scores, labels, self.threshold)


class PerLabelMetrics(Metric):
    """Precision, recall and F1 of each label, averaged over the labels that occur or are predicted.

    The values equal those of scikit-learn with ``average="macro"``. A quotient with the divisor 0 counts as
    0.
    """

    labels: ClassVar[AcceptedLabels] = "several"
    whole_dataset: ClassVar[bool] = True
    each: bool = False
    """Also report the three values of each label, as `label_precision_0`, `label_recall_0`, `label_f1_0` and
    so on."""
    threshold: Fraction = 0.5
    """Probability threshold, 0 to 1. A label is predicted if its sigmoid probability is larger."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the three averages."""
        return ("label_precision", "label_recall", "label_f1")

    def all_names(self, classes: int) -> tuple[str, ...]:
        """Returns the names of the averages and, with ``each``, of the three values of all labels."""
        per_label = (f"{name}_{k}" for name in self.names for k in range(classes))
        return (*self.names, *(per_label if self.each else ()))

    def build(self, classes: int, search: Search) -> CountMetric:  # noqa: ARG002
        """Returns the object that counts correct, predicted and true labels."""
        from ppcls.metric.build import CountMetric, from_logits
        from ppcls.metric.functional.multi_label import label_hits, summarize_labels

        return CountMetric(
            self.all_names(classes),
            3 * classes,
            from_logits(partial(label_hits, threshold=self.threshold)),
            lambda counts, _: summarize_labels(counts, self.each),
        )


class HammingDistance(Metric):
    """Share of wrong labels. Lower is better.

    A class is predicted if its sigmoid probability is larger than 0.5.
    """

    maximum: ClassVar[float | None] = 1.0
    labels: ClassVar[AcceptedLabels] = "several"
    lower_is_better: ClassVar[bool] = True

    def build(self, classes: int, search: Search) -> CountMetric:  # noqa: ARG002
        """Returns the object that counts correct labels."""
        from ppcls.metric.build import CountMetric, from_logits
        from ppcls.metric.functional.multi_label import count_labels

        return CountMetric(
            self.names, 2, from_logits(count_labels), lambda counts, _: [float(1.0 - counts[0] / counts[1])]
        )


class MultiLabelMAP(DatasetMetric):
    """Mean average precision: mean over classes of the average precision.

    Classes without positive samples are ignored.
    """

    labels: ClassVar[AcceptedLabels] = "several"
    map_type: Literal["integral", "11point"] = "integral"
    """Definition of average precision: `integral`: area under the stepwise precision-recall curve; `11point`:
    mean of the highest precisions at recalls of at least 0, 0.1 … 1 (PASCAL VOC 2007)."""

    def compute(self, scores: NDArray[Any], labels: NDArray[Any]) -> Sequence[float]:
        """Returns a list with the mean average precision; see `DatasetMetric.compute`."""
        from ppcls.metric.functional.multi_label import mean_average_precision

        return [mean_average_precision(scores, labels, self.map_type)]
