"""From the list of metrics in the config to their counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, singledispatch

import paddle
from paddle import Tensor

from ppcls.config.fields import Spec
from ppcls.config.objective import TopkAcc
from ppcls.metric.topk import topk_correct

Count = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Metrics:
    """Metrics that are shares of the samples, as counts: sums over batches and ranks stay exact.

    Attributes:
        names: Of the metrics, such as ``("top1", "top5")``.
    """

    names: tuple[str, ...]
    _counters: tuple[Count, ...]

    def counts(self, logits: Tensor, label: Tensor) -> Tensor:
        """Counts the rows that are right by each metric, without waiting for the device.

        Args:
            logits: [B, C], any floating dtype.
            label: [B] int64, or [B, C] float; see `Batch`.

        Returns:
            [len(names)] int64, on the device of ``logits``.
        """
        return paddle.concat([count(logits, label) for count in self._counters])


def build_metrics(specs: tuple[Spec, ...]) -> Metrics:
    """Builds the metrics of ``specs``, in their order.

    Raises:
        ValueError: No metric, or two of the same name.
        TypeError: A spec is not a metric.
    """
    parts = [_part(spec) for spec in specs]
    names = tuple(name for part_names, _ in parts for name in part_names)
    if not names:
        raise ValueError("expected at least one metric")
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise ValueError(f"metrics asked for twice: {', '.join(twice)}")
    return Metrics(names, tuple(count for _, count in parts))


@singledispatch
def _part(spec: Spec) -> tuple[tuple[str, ...], Count]:
    """The names of a metric's numbers, and what counts them."""
    raise TypeError(f"{spec.kind} is not a metric")


@_part.register
def _(spec: TopkAcc) -> tuple[tuple[str, ...], Count]:
    return tuple(f"top{k}" for k in spec.topk), partial(topk_correct, topk=spec.topk)
