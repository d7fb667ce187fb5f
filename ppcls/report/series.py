"""A run's records as the charts of its report, each of at most `MOST` points."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ppcls.report.record import EvalRecord, StepRecord

MOST = 2000  # points a curve: more than a screen has columns
COLOURS = ("#2166ac", "#d6604d", "#4d9221", "#762a83", "#e08214")  # of curves, on the page and in the picture
_LARGEST = 1e300


@dataclass(frozen=True)
class Curve:
    """One line of a chart.

    Attributes:
        label: Its name.
        x: Epochs done, ascending.
        y: Values, all finite; None for a gap.
        dots: Whether each point is marked, as evaluations are.
    """

    label: str
    x: list[float]
    y: list[float | None]
    dots: bool = False


@dataclass(frozen=True)
class Chart:
    """Curves over epochs that share a scale.

    Attributes:
        title: Its name.
        curves: One or more.
    """

    title: str
    curves: list[Curve]


def charts(records: Iterable[StepRecord | EvalRecord]) -> list[Chart]:
    """Returns loss, metrics, learning rate, throughput and data wait; those without a value are left out."""
    records = list(records)
    steps = [each for each in records if isinstance(each, StepRecord)]
    evals = [each for each in records if isinstance(each, EvalRecord)]
    kept: list[StepRecord | EvalRecord] = [*evals, *steps]
    names = dict.fromkeys(name for each in kept for name in each.metrics)
    made = [
        Chart("Loss", [_curve("train", steps, _loss), _curve("eval", evals, _loss, dots=True)]),
        *(_metric_chart(name, steps, evals) for name in names),
        Chart("Learning rate", [_curve("learning rate", steps, lambda each: each.learning_rate)]),
        Chart("Throughput", [_curve("images/s", steps, lambda each: each.images_per_second)]),
        Chart("Waiting for data", [_curve("% of the time", steps, lambda each: 100 * each.data_wait)]),
    ]
    shown = [
        Chart(each.title, [curve for curve in each.curves if any(y is not None for y in curve.y)])
        for each in made
    ]
    return [each for each in shown if each.curves]


def describe_gaps(records: Iterable[StepRecord | EvalRecord]) -> str:
    """Returns a sentence on the records without a loss; nothing where each has one.

    It counts records, which stand for several steps: one has a loss as soon as one of its steps has.
    """
    records, lost = list(records), []
    for kind, name in ((StepRecord, "training records"), (EvalRecord, "evaluations")):
        losses = [each.loss for each in records if isinstance(each, kind)]
        if count := sum(not math.isfinite(each) for each in losses):
            lost.append(f"{count} of {len(losses)} {name}")
    return f"Gaps: no finite loss in {' and '.join(lost)}." if lost else ""


def _loss(record: StepRecord | EvalRecord) -> float:
    return record.loss


def _metric_chart(name: str, steps: Sequence[StepRecord], evals: Sequence[EvalRecord]) -> Chart:
    def value(record: StepRecord | EvalRecord) -> float:
        return record.metrics.get(name, math.nan)

    return Chart(name, [_curve("train", steps, value), _curve("eval", evals, value, dots=True)])


def _epochs(record: StepRecord | EvalRecord) -> float:
    """Returns how many epochs were done at a record, with the running one's fraction."""
    if isinstance(record, EvalRecord):
        return float(record.epoch)
    return record.epoch - 1 + record.step / record.steps_per_epoch


def _curve(
    label: str,
    records: Sequence[StepRecord] | Sequence[EvalRecord],
    value: Callable[..., float],
    dots: bool = False,
) -> Curve:
    values = [(_epochs(each), float(value(each))) for each in records]
    x, y = thin([(x, y if abs(y) < _LARGEST else math.nan) for x, y in values])
    return Curve(label, x, [None if math.isnan(each) else each for each in y], dots)


def thin(points: Sequence[tuple[float, float]], most: int = MOST) -> tuple[list[float], list[float]]:
    """Returns x and y of at most ``most`` points: the lowest, the highest and a gap of each stretch of them.

    So a spike of a single point stays, which an average or every n-th point would lose.

    Args:
        points: In order of x; y is NaN in a gap.
        most: At least 3.
    """
    if not points:
        return [], []
    x, y = np.array(points).T
    if len(x) > most:
        stretches = np.array_split(np.arange(len(x)), most // (3 if np.isnan(y).any() else 2))
        kept = np.unique([place for stretch in stretches for place in _extremes(stretch, y)])
        x, y = x[kept], y[kept]
    return x.round(6).tolist(), y.tolist()


def _extremes(places: NDArray[np.int64], y: NDArray[np.float64]) -> list[int]:
    """Returns the places of the lowest value, of the highest and of a gap, as far as there are any."""
    gap = np.isnan(y[places])
    known = places[~gap]
    of_values = [known[y[known].argmin()], known[y[known].argmax()]] if len(known) else []
    return [*of_values, *places[gap][:1]]
