"""The base classes of metrics.

Decisions:
- Built-in metrics and users' metrics have the same base classes. A metric is one class in one file.
- A metric that is a quotient of sums, such as an accuracy, counts on the device and adds up counts of batches
  and ranks (`CountMetric`). Any other metric needs all images at once (`DatasetMetric`), because a mean of
  the values of batches would depend on the batch size and the number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from pydantic_core import InitErrorDetails

from ppcls.config.base.component import Component
from ppcls.config.base.facts import LabelsPerImage, RunFacts
from ppcls.config.base.problems import problem
from ppcls.registry import METRICS

if TYPE_CHECKING:  # --help must not wait for NumPy
    from numpy.typing import NDArray

    from ppcls.metric.build import CountMetric, GatheredMetric
    from ppcls.metric.functional.retrieval import Search

AcceptedLabels: TypeAlias = LabelsPerImage | Literal["any"]


class Metric(Component, registry=METRICS):
    """Base class of metrics, which define `build`. The fields of a subclass are its keys in YAML.

    Attributes:
        labels: Number of labels per image that the metric accepts.
        multi_model: Whether the metric needs several models, as in ``Arch.name: DistillationModel``.
        lower_is_better: Whether smaller values are better.
        maximum: Largest possible value; None if unknown.
        whole_dataset: Whether the metric needs all samples at once. Such a metric has no value per batch.
        on_embeddings: Whether the metric compares embeddings instead of scores of classes.
    """

    labels: ClassVar[AcceptedLabels] = "one"
    multi_model: ClassVar[bool] = False
    lower_is_better: ClassVar[bool] = False
    maximum: ClassVar[float | None] = None
    whole_dataset: ClassVar[bool] = False
    on_embeddings: ClassVar[bool] = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the values that the metric reports, which do not depend on the data."""
        return (self.kind,)

    def all_names(self, classes: int) -> tuple[str, ...]:  # noqa: ARG002 - for metrics with values per class
        """Returns `names`, and those of the values per class if the metric reports them."""
        return self.names

    def build(self, classes: int, search: Search) -> CountMetric | GatheredMetric:
        """Returns the object that computes the metric.

        Args:
            classes: Number of classes, for metrics with values per class.
            search: Settings for comparing embeddings, for retrieval metrics.
        """
        raise NotImplementedError(f"{self.kind} does not define build")

    def problems(self, facts: RunFacts, part: str) -> Iterator[InitErrorDetails]:
        """Yields conflicts with the labels, the classes, the evaluation mode and the part of the section."""
        other: LabelsPerImage = "several" if self.labels == "one" else "one"
        for place, labels in facts.labels.items():
            if place.partition(".")[0] == part and self.labels != "any" and labels == other:
                plural = "s" if self.labels == "several" else ""
                yield problem(
                    f"needs images with {self.labels} label{plural}, but DataLoader.{place}.dataset is "
                    f"{facts.datasets[place]}; expected {_suitable(labels, part)}"
                )
        if self.whole_dataset and part == "Train":
            yield problem("needs all samples at once; move it to Metric.Eval")
        if not facts.has_classes and not self.on_embeddings:
            yield problem("needs classes; add a Head to Arch")
        if part == "Eval" and facts.retrieval and not self.on_embeddings:
            yield problem("needs classes; expected Recallk or mAP, because Global.eval_mode is retrieval")
        if part == "Eval" and self.on_embeddings and not facts.retrieval:
            yield problem("expected Global.eval_mode: retrieval")


class DatasetMetric(Metric, abstract=True):
    """Base class of metrics that are computed on the outputs and labels of the images of all ranks at once.

    Subclasses define `compute`, and ``names`` if they report several values.
    """

    labels: ClassVar[AcceptedLabels] = "any"
    whole_dataset: ClassVar[bool] = True

    def compute(self, scores: NDArray[Any], labels: NDArray[Any]) -> Sequence[float]:
        """Returns one value for each of ``names``.

        Args:
            scores: Logits, [N, C] float32.
            labels: Labels: [N], or [N, C] if images have several labels. With one class, [N, 1] if the metric
                is only for several labels, else [N].
        """
        raise NotImplementedError(f"{self.kind} does not define compute")

    def build(self, classes: int, search: Search) -> GatheredMetric:  # noqa: ARG002
        """Returns the object that gathers the outputs and labels, and calls `compute`."""
        from ppcls.metric.build import GatheredMetric, Rows

        def values(rows: Rows) -> list[float]:
            labels = rows.labels if self.labels == "several" else rows.one_label
            return list(self.compute(rows.outputs, labels))

        return GatheredMetric(self.names, values)


def _suitable(labels: LabelsPerImage, part: str) -> str:
    """Returns the names of the metrics for images with ``labels``, as text."""
    names = [
        name
        for name in METRICS
        if (metric := METRICS[name]).labels in (labels, "any")
        and not metric.multi_model
        and not (metric.whole_dataset and part == "Train")
    ]
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
