"""Computes several metrics over batches and ranks.

Decisions:
- Batches and ranks add up counts, which are divided once, at the end. A mean of means would depend on how the
  images are divided into batches.
- A metric that compares images with each other, such as the average precision, needs all outputs at once.
  Only such metrics gather them, because they need memory for each image.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor

from ppcls.metric.base import Metric
from ppcls.metric.functional.retrieval import PLAIN_SEARCH, Search
from ppcls.outputs import LOGITS, Outputs, first_rows, get_logits

Count = Callable[[Outputs, Tensor], Tensor]
Floats = NDArray[np.float64]


class Rows(NamedTuple):
    """The outputs and labels of all images.

    Attributes:
        outputs: Outputs of the model, [N, D].
        labels: [N, C], 0 or 1 for each class; or [N, 1], class ids.
        queries: Number of queries. They are the first rows, and the other rows are the gallery. If None, each
            row is a query, and all other rows are its gallery.
        cameras: Number of the camera of each image, [N]; None if unknown.
    """

    outputs: NDArray[np.float32]
    labels: Floats
    queries: int | None = None
    cameras: NDArray[np.int64] | None = None

    @property
    def one_label(self) -> Floats:
        """Labels; [N] if each image has a single label, else [N, C]."""
        return self.labels[:, 0] if self.labels.shape[1] == 1 else self.labels


@dataclass(frozen=True)
class CountMetric:
    """A metric that is computed from counts, which are summed over batches and ranks.

    Attributes:
        names: Names of the metric's values.
        width: Number of counts.
        count: Function of outputs and labels that returns the counts, [width], of ``dtype``.
        values: Function of the summed counts, [width] float64, and the number of images. It returns the
            values.
        dtype: ``int64``, or ``float32`` if the counts are sums of losses.
    """

    names: tuple[str, ...]
    width: int
    count: Count
    values: Callable[[Floats, float], list[float]]
    dtype: str = "int64"


@dataclass(frozen=True)
class GatheredMetric:
    """A metric that needs the outputs of all images at the same time.

    Attributes:
        names: Names of the metric's values.
        values: Function of the rows of all images that returns the values.
        output: Name of the model's output that the metric uses.
    """

    names: tuple[str, ...]
    values: Callable[[Rows], list[float]]
    output: str = LOGITS


@dataclass(frozen=True)
class Metrics:
    """Several metrics, whose values do not depend on how images are divided into batches and ranks.

    Attributes:
        parts: The metrics.
        lower_is_better: Whether lower values of the first metric are better. The first metric selects the
            best model.
    """

    parts: tuple[CountMetric | GatheredMetric, ...]
    lower_is_better: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all values, such as ``("top1", "top5")``."""
        return tuple(name for part in self.parts for name in part.names)

    @property
    def width(self) -> int:
        """Number of all counts."""
        return sum(part.width for part in self.parts if isinstance(part, CountMetric))

    @property
    def gathered(self) -> tuple[str, ...]:
        """Names of the outputs that metrics need for all images at the same time, without duplicates."""
        return tuple(dict.fromkeys(part.output for part in self.parts if isinstance(part, GatheredMetric)))

    def counts(self, outputs: Outputs, label: Tensor) -> Tensor:
        """Returns the counts of a batch, without synchronizing with the device.

        Args:
            outputs: Outputs of the model, such as logits [B, C], of any floating dtype.
            label: [B] int64, or [B, C] float; see `Batch`.

        Returns:
            Counts of all metrics, [width], on the device of ``outputs``; int64 unless a metric is float32.
        """
        counted = [part for part in self.parts if isinstance(part, CountMetric)]
        if not counted:
            return paddle.zeros([0], "int64")
        dtype = "float32" if any(part.dtype == "float32" for part in counted) else "int64"
        counts = [part.count(outputs, label) for part in counted]
        return paddle.concat([count if dtype == "int64" else count.astype(dtype) for count in counts])

    def values(self, counts: Floats, images: float, rows: dict[str, Rows] | None = None) -> dict[str, float]:
        """Returns the values of all metrics by name.

        Args:
            counts: Sums of `counts` over batches and ranks, [width].
            images: Number of images.
            rows: Rows of all images by output name, for each `GatheredMetric`.
        """
        values: list[float] = []
        for part in self.parts:
            if isinstance(part, GatheredMetric):
                assert rows is not None
                values += part.values(rows[part.output])
                continue
            part_counts = counts[: part.width]
            counts = counts[part.width :]
            values += part.values(part_counts, images) if images else [float("nan")] * len(part.names)
        return dict(zip(self.names, values, strict=True))


def build_metrics(specs: tuple[Metric, ...], classes: int = 0, search: Search = PLAIN_SEARCH) -> Metrics:
    """Builds the metrics of a list in the config.

    Args:
        specs: Metrics of the config.
        classes: Number of classes, for metrics with values per class.
        search: Settings of retrieval metrics.

    Raises:
        ValueError: There is no metric, or two metrics have the same name.
    """
    parts = tuple(spec.build(classes, search) for spec in specs)
    if not parts:
        raise ValueError("expected at least one metric, got none")
    metrics = Metrics(parts, specs[0].lower_is_better)
    if repeated := [name for name, times in Counter(metrics.names).items() if times > 1]:
        raise ValueError(f"expected each metric once, but these are listed twice: {', '.join(repeated)}")
    return metrics


def with_unlabelled(metrics: Metrics | None, unlabelled: CountMetric) -> Metrics:
    """Returns metrics of training with a metric of the unlabelled images.

    Args:
        metrics: Metrics of the labelled images, which are the first rows of the outputs; None if there are
            none.
        unlabelled: Metric that is computed on all rows.
    """
    labelled = () if metrics is None else metrics.parts
    parts = [
        replace(part, count=partial(_count_labelled, part.count)) if isinstance(part, CountMetric) else part
        for part in labelled
    ]
    return Metrics((*parts, unlabelled), metrics is not None and metrics.lower_is_better)


def _count_labelled(count: Count, outputs: Outputs, label: Tensor) -> Tensor:
    return count(first_rows(outputs, len(label)), label)


def shares_of_images(counts: Floats, images: float) -> list[float]:
    """Returns each count divided by the number of images."""
    return [float(count) / images for count in counts]


def from_logits(count: Callable[[Tensor, Tensor], Tensor]) -> Count:
    """Returns a function of outputs and labels that calls ``count`` with the logits and the labels."""
    return lambda outputs, label: count(get_logits(outputs), label)
