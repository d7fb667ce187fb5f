"""From the list of metrics in the config to what they count, gather and say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, singledispatch
from typing import NamedTuple

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor

from ppcls.config.objectives.distillation_losses import DistillationTopkAcc
from ppcls.config.objectives.embedding import Recallk, mAP
from ppcls.config.objectives.multi_label import AccuracyScore, ATTRMetric, HammingDistance, MultiLabelMAP
from ppcls.config.sections.objective import ConfusionMatrix, MetricSpec, PerClassRecall, TopkAcc, TprAtFpr
from ppcls.metric.binary import true_at_false_positives
from ppcls.metric.by_class import confusion, macro_averages, recalls, right_of_class
from ppcls.metric.multi_label import attribute_measures, mean_average_precision, right_images, right_labels
from ppcls.metric.retrieval import mean_average_precision as retrieval_precision
from ppcls.metric.retrieval import recalls_at
from ppcls.metric.topk import topk_correct
from ppcls.outputs import LOGITS, Outputs, get_logits

Count = Callable[[Outputs, Tensor], Tensor]
Floats = NDArray[np.float64]


class Rows(NamedTuple):
    """What is known of all samples.

    Attributes:
        outputs: What the model gave, [N, D].
        labels: [N, C] or [N, 1].
        queries: So many, the first ones, look among the others for their like; None: each among all others.
    """

    outputs: NDArray[np.float32]
    labels: Floats
    queries: int | None = None


@dataclass(frozen=True)
class Counted:
    """A metric that is a function of counts, which add up over batches and ranks.

    Attributes:
        names: Of its numbers.
        width: How many counts it has.
        count: What the model gave and labels to [width] int64.
        values: Counts, [width] float64, and the number of images to its numbers.
    """

    names: tuple[str, ...]
    width: int
    count: Count
    values: Callable[[Floats, float], list[float]]


@dataclass(frozen=True)
class Gathered:
    """A metric that needs what the model gave of all samples at once.

    Attributes:
        names: Of its numbers.
        values: What is known of all samples to its numbers.
        output: Which of the model's outputs.
    """

    names: tuple[str, ...]
    values: Callable[[Rows], list[float]]
    output: str = LOGITS


@dataclass(frozen=True)
class Metrics:
    """Metrics side by side, exact over batches and ranks.

    Attributes:
        parts: Of each metric.
        lower_is_better: Whether that is so of the first number, which decides about models.
    """

    parts: tuple[Counted | Gathered, ...]
    lower_is_better: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Of all numbers, such as ``("top1", "top5")``."""
        return tuple(name for part in self.parts for name in part.names)

    @property
    def width(self) -> int:
        """How many counts there are."""
        return sum(part.width for part in self.parts if isinstance(part, Counted))

    @property
    def gathered(self) -> tuple[str, ...]:
        """Which of the model's outputs are needed of all samples, each once."""
        return tuple(dict.fromkeys(part.output for part in self.parts if isinstance(part, Gathered)))

    def counts(self, outputs: Outputs, label: Tensor) -> Tensor:
        """Counts a batch, without waiting for the device.

        Args:
            outputs: What the model gave, such as logits [B, C], of any floating dtype.
            label: [B] int64, or [B, C] float; see `Batch`.

        Returns:
            [width] int64, on the device of ``outputs``.
        """
        counted = [part for part in self.parts if isinstance(part, Counted)]
        if not counted:
            return paddle.zeros([0], "int64")
        return paddle.concat([part.count(outputs, label) for part in counted])

    def values(self, counts: Floats, images: float, rows: dict[str, Rows] | None = None) -> dict[str, float]:
        """Returns name to value.

        Args:
            counts: [width] sums of `counts` over batches and ranks.
            images: Over which.
            rows: Name of an output to that of all images, and their labels; for metrics that gather.
        """
        values: list[float] = []
        for part in self.parts:
            if isinstance(part, Gathered):
                assert rows is not None
                values += part.values(rows[part.output])
                continue
            own, counts = counts[: part.width], counts[part.width :]
            values += part.values(own, images) if images else [float("nan")] * len(part.names)
        return dict(zip(self.names, values, strict=True))


def build_metrics(specs: tuple[MetricSpec, ...], classes: int = 0) -> Metrics:
    """Builds the metrics of ``specs``, in their order.

    Args:
        specs: One or more.
        classes: Number of classes; for metrics that look at each of them.

    Raises:
        ValueError: No metric, or two of the same name.
        TypeError: A spec is not a metric.
    """
    parts = tuple(_part(spec, classes) for spec in specs)
    if not parts:
        raise ValueError("expected at least one metric")
    metrics = Metrics(parts, specs[0].lower_is_better)
    if twice := [name for name, times in Counter(metrics.names).items() if times > 1]:
        raise ValueError(f"metrics asked for twice: {', '.join(twice)}")
    return metrics


@singledispatch
def _part(spec: MetricSpec, _classes: int) -> Counted | Gathered:
    raise TypeError(f"{spec.kind} is not a metric")


def _shares(counts: Floats, images: float) -> list[float]:
    return [float(each) / images for each in counts]


def _of_logits(count: Callable[[Tensor, Tensor], Tensor]) -> Count:
    return lambda outputs, label: count(get_logits(outputs), label)


@_part.register
def _(spec: TopkAcc, _classes: int) -> Counted:
    count = _of_logits(partial(topk_correct, topk=spec.topk))
    return Counted(spec.names, len(spec.topk), count, _shares)


@_part.register
def _(spec: DistillationTopkAcc, _classes: int) -> Counted:
    def count(outputs: Outputs, label: Tensor) -> Tensor:
        logits = outputs[spec.model_key] if isinstance(outputs, dict) else outputs
        return topk_correct(logits, label, spec.topk)

    return Counted(spec.names, len(spec.topk), count, _shares)


@_part.register
def _(spec: PerClassRecall, classes: int) -> Counted:
    def values(counts: Floats, _images: float) -> list[float]:
        found = recalls(counts)
        return [float(np.nanmean(found)), float(np.nanmin(found)), *(found.tolist() if spec.each else [])]

    each = tuple(f"recall_{k}" for k in range(classes)) if spec.each else ()
    return Counted((*spec.names, *each), 2 * classes, _of_logits(right_of_class), values)


@_part.register
def _(spec: ConfusionMatrix, classes: int) -> Counted:
    return Counted(spec.names, classes**2, _of_logits(confusion), lambda counts, _: macro_averages(counts))


@_part.register
def _(spec: AccuracyScore, _classes: int) -> Counted:
    if spec.base == "sample":
        return Counted(spec.names, 1, _of_logits(right_images), _shares)
    return Counted(spec.names, 2, _labels, lambda counts, _: [float(counts[0] / counts[1])])


@_part.register
def _(spec: HammingDistance, _classes: int) -> Counted:
    return Counted(spec.names, 2, _labels, lambda counts, _: [float(1.0 - counts[0] / counts[1])])


def _labels(outputs: Outputs, label: Tensor) -> Tensor:
    """Counts the labels that are right, and all: [2] int64."""
    return paddle.concat([right_labels(get_logits(outputs), label), paddle.full([1], label.size, "int64")])


@_part.register
def _(spec: MultiLabelMAP, _classes: int) -> Gathered:
    return Gathered(
        spec.names, lambda rows: [mean_average_precision(rows.outputs, rows.labels, spec.map_type)]
    )


@_part.register
def _(spec: ATTRMetric, _classes: int) -> Gathered:
    return Gathered(spec.names, lambda rows: attribute_measures(rows.outputs, rows.labels, spec.threshold))


@_part.register
def _(spec: TprAtFpr, _classes: int) -> Gathered:
    return Gathered(
        spec.names, lambda rows: [true_at_false_positives(rows.outputs, rows.labels[:, 0], spec.max_fpr)]
    )


@_part.register
def _(spec: Recallk, _classes: int) -> Gathered:
    return Gathered(
        spec.names,
        lambda rows: recalls_at(rows.outputs, rows.labels[:, 0], spec.topk, rows.queries),
        "features",
    )


@_part.register
def _(spec: mAP, _classes: int) -> Gathered:
    return Gathered(
        spec.names,
        lambda rows: [retrieval_precision(rows.outputs, rows.labels[:, 0], rows.queries)],
        "features",
    )
