"""Builds charts of a run over its epochs: as data for the HTML report, and as one PNG file."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import fill

import numpy as np
from numpy.typing import NDArray

from ppcls.errors import counted
from ppcls.files import atomic_path
from ppcls.report.history import History
from ppcls.report.record import EvalRecord, Outcomes, Record, Reporter, StepRecord, TimeBudget

_INTERVAL = 60.0  # seconds between two drawings
MAX_METRICS = 16  # maximum number of metrics that have a chart
MAX_POINTS = 2000  # maximum number of points per curve, more than the columns of a screen
# Colours by label, visible on white and on black. Curves with other labels have the first colour.
COLOURS = {"train": "#3182bd", "eval": "#d6604d", "best": "#e08214", "most frequent class": "#888888"}
_GREY = "#666666"
_TITLE_WIDTH = 150  # characters
_LARGEST = 1e300
# Losses above this quantile are hidden if they enlarge the range of all others by more than this factor.
_USUAL = 0.98
_FLAT = 10


@dataclass(frozen=True)
class Curve:
    """One line of a chart.

    Attributes:
        label: Name of the curve.
        x: Number of finished epochs at each point, ascending.
        y: Finite values, or None for a gap.
        dots: Whether each point has a marker, as for evaluations.
    """

    label: str
    x: list[float]
    y: list[float | None]
    dots: bool = False


@dataclass(frozen=True)
class Chart:
    """Curves over epochs with a common y axis.

    Attributes:
        title: Title of the chart.
        curves: One or more curves.
        top: Upper limit of the shown range if a few much larger values would flatten the curves, else None.
        note: Sentence about the values, or about those that are not shown; may be empty.
        from_zero: Whether the y axis begins at 0.
    """

    title: str
    curves: list[Curve]
    top: float | None = None
    note: str = ""
    from_zero: bool = False


def build_charts(records: Iterable[Record], majority: float | None = None) -> list[Chart]:
    """Returns charts of loss, metrics, learning rate, throughput and data wait. Empty charts are omitted.

    Args:
        records: Records of the run.
        majority: Share of the most frequent class among the evaluated images, 0 to 1, which is the top-1
            accuracy of a model that always predicts it; None if it is unknown.
    """
    records = list(records)
    steps = merge_short_records([record for record in records if isinstance(record, StepRecord)])
    evals = [record for record in records if isinstance(record, EvalRecord)]
    shown_metrics, hidden = _choose_metrics([*evals, *steps])
    losses = [_curve("train", steps, _loss), _curve("eval", evals, _loss, dots=True)]
    best = [record for record in evals if record.best and record.metrics][-1:]
    charts = [Chart("Loss", losses, *_usual_range(losses))]
    for name in shown_metrics:
        values = _metric(name)
        curves = [_curve("train", steps, values), _curve("eval", evals, values, dots=True)]
        if best and name == next(iter(best[0].metrics)):
            curves.append(_curve("best", best, values, dots=True))
        if name == "top1" and majority is not None and evals:
            last = max([*map(_epochs, steps), *map(_epochs, evals)])
            curves.append(Curve("most frequent class", [0.0, last], [majority, majority]))
        charts.append(Chart(name, curves, note=_explain_metric(name)))
    if hidden:
        charts[-1] = replace(
            charts[-1], note=f"{counted(hidden, 'more metric is', 'more metrics are')} in metrics.jsonl."
        )
    charts += [
        Chart("Learning rate", [_curve("learning rate", steps, lambda record: record.learning_rate)]),
        Chart(
            "Throughput",
            [_curve("images/s", steps, lambda record: record.images_per_second)],
            from_zero=True,
        ),
        Chart(
            "Data wait",
            [_curve("% of the time", steps, lambda record: 100 * record.data_wait)],
            from_zero=True,
        ),
    ]
    shown = [
        replace(chart, curves=[curve for curve in chart.curves if any(y is not None for y in curve.y)])
        for chart in charts
    ]
    return [chart for chart in shown if chart.curves]


def _explain_metric(name: str) -> str:
    """Returns a sentence that explains a metric; "" for one without an explanation."""
    if name == "top1":
        return "Share of the images whose most probable class is right."
    if numbered := re.fullmatch(r"top(\d+)", name):
        return f"Share of the images whose class is among the {numbered[1]} most probable ones."
    return ""


def merge_short_records(steps: Sequence[StepRecord]) -> list[StepRecord]:
    """Returns the records of training without short ones, such as those at the end of an epoch.

    The last record of an epoch may cover one batch of few images, whose values are noise. A record
    that covers less than half as many images as the last longer one in the same epoch is merged with the
    record before it. Each image has the same weight; in files of older versions, each update.
    """
    merged: list[StepRecord] = []
    longer = total = (0, 0)  # updates and images of the last longer record, and of the latest one in `merged`
    for record in steps:
        before = merged[-1] if merged else None
        follows = before is not None and before.update < record.update
        size = (
            record.update - before.update if before is not None and follows else record.step,
            record.images,
        )
        unit = 1 if size[1] and longer[1] else 0
        if before is None or not follows or before.epoch != record.epoch or 2 * size[unit] >= longer[unit]:
            longer = total = size
            merged.append(record)
            continue
        share = size[unit] / (total[unit] + size[unit])
        speed, wait = _merge_speeds(before, total[unit], record, size[unit])
        total = (total[0] + size[0], total[1] + size[1])
        metrics = {
            name: value + share * (record.metrics[name] - value)
            for name, value in before.metrics.items()
            if name in record.metrics
        }
        loss = before.loss + share * (record.loss - before.loss)
        merged[-1] = replace(
            record,
            loss=loss,
            metrics={**record.metrics, **metrics},
            images_per_second=speed,
            data_wait=wait,
        )
    return merged


def _merge_speeds(before: StepRecord, amount: float, record: StepRecord, more: float) -> tuple[float, float]:
    """Returns the images per second and the share of waits over the time of two records.

    Args:
        before: Record of a number of images or updates, ``amount``.
        amount: See ``before``.
        record: Record of ``more`` images or updates.
        more: See ``record``.
    """
    if not (before.images_per_second > 0 and record.images_per_second > 0):
        return record.images_per_second, record.data_wait
    times = amount / before.images_per_second, more / record.images_per_second
    waits = times[0] * before.data_wait + times[1] * record.data_wait
    return (amount + more) / sum(times), waits / sum(times)


def _choose_metrics(records: Sequence[Record]) -> tuple[list[str], int]:
    """Returns the metrics that have a chart, and the number of others, such as the recall of each class."""
    names = [*dict.fromkeys(name for record in records for name in record.metrics)]
    return names[:MAX_METRICS], len(names[MAX_METRICS:])


def describe_gaps(records: History) -> str:
    """Returns a sentence with the number of records without a finite loss; empty if there are none.

    A record covers several steps. Its loss is finite if the loss of one of the steps is finite.
    """
    lost = []
    for kind, name in ((StepRecord, "training records"), (EvalRecord, "evaluations")):
        if count := records.gaps[kind]:
            lost.append(f"{count} of {records.losses[kind]} {name}")
    return f"Gaps: no finite loss in {' and '.join(lost)}." if lost else ""


def _loss(record: Record) -> float:
    return record.loss


def _metric(name: str) -> Callable[[Record], float]:
    return lambda record: record.metrics.get(name, math.nan)


def _usual_range(curves: Sequence[Curve]) -> tuple[float | None, str]:
    """Returns `Chart.top` and `Chart.note` for losses.

    A few losses that are far above all others are outside the shown range.
    """
    values = np.sort([y for curve in curves for y in curve.y if y is not None])
    if not len(values):
        return None, ""
    top = float(values[int(_USUAL * (len(values) - 1))])
    if values[-1] - values[0] <= _FLAT * (top - values[0]) or top == values[0]:
        return None, ""
    higher = int((values > top).sum())
    points = counted(higher, "point is", "points are")
    return top, f"Shown up to {top:.4g}; {points} higher, up to {values[-1]:.4g}."


def _epochs(record: Record) -> float:
    """Returns the number of finished epochs at a record, including the fraction of the current epoch."""
    if isinstance(record, EvalRecord):
        return float(record.epoch)
    return record.epoch - 1 + record.step / record.steps_per_epoch


def _curve(
    label: str,
    records: Sequence[StepRecord] | Sequence[EvalRecord],
    value: Callable[..., float],
    dots: bool = False,
) -> Curve:
    values = [(_epochs(record), float(value(record))) for record in records]
    x, y = thin([(x, y if abs(y) < _LARGEST else math.nan) for x, y in values])
    return Curve(label, x, [None if math.isnan(number) else number for number in y], dots)


def thin(
    points: Sequence[tuple[float, float]], max_points: int = MAX_POINTS
) -> tuple[list[float], list[float]]:
    """Reduces a curve to at most ``max_points`` points.

    The curve is divided into sections. The minimum, the maximum and a gap of each section are kept, so that
    spikes of a single point stay visible. An average, or every n-th point, would hide them.

    Args:
        points: Points (x, y) in ascending order of x. y is NaN in a gap.
        max_points: Maximum number of points, at least 3.

    Returns:
        The x and the y of the remaining points.
    """
    if not points:
        return [], []
    x, y = np.array(points).T
    if len(x) > max_points:
        stretches = np.array_split(np.arange(len(x)), max_points // (3 if np.isnan(y).any() else 2))
        indices = np.unique([index for stretch in stretches for index in _extremes(stretch, y)])
        x = x[indices]
        y = y[indices]
    return x.round(6).tolist(), y.tolist()


def _extremes(indices: NDArray[np.int64], y: NDArray[np.float64]) -> list[int]:
    """Returns the indices of the minimum, the maximum and a gap of a section, if they exist.

    Args:
        indices: Indices of the section.
        y: Values of the whole curve.
    """
    gap = np.isnan(y[indices])
    finite = indices[~gap]
    extremes = [finite[y[finite].argmin()], finite[y[finite].argmax()]] if len(finite) else []
    return [*extremes, *indices[gap][:1]]


def draw_charts(
    records: Iterable[Record], path: Path, title: str = "", majority: float | None = None
) -> None:
    """Draws the charts of a run, and writes them to a PNG file atomically.

    Args:
        records: Records of the run.
        path: PNG file.
        title: Title of the picture in one line.
        majority: See `build_charts`.
    """
    records = records if isinstance(records, History) else History(records)
    # Imported here because evaluations and most tests do not need matplotlib.
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    charts = build_charts(records, majority) or [Chart("Loss", [])]
    rows = (len(charts) + 1) // 2
    height = 3.75 * rows + 0.4
    figure = Figure(figsize=(12, height), dpi=120)
    figure.subplots_adjust(0.06, 0.6 / height, 0.97, 1 - 0.8 / height, wspace=0.16, hspace=0.28)
    if title:
        # Two lines fit above the charts, which is enough for the longest path.
        figure.suptitle(fill(title, _TITLE_WIDTH), x=0.06, ha="left", fontsize="small", parse_math=False)
    gaps = describe_gaps(records)
    for place, chart in enumerate(charts, start=1):
        axes = figure.add_subplot(rows, 2, place)
        for curve in chart.curves:
            y = [math.nan if value is None else value for value in curve.y]
            finite = [False, *(value is not None for value in curve.y), False]
            alone = [i for i in range(len(y)) if finite[i : i + 3] == [False, True, False]]
            marked = range(len(y)) if curve.dots else alone  # a point between two gaps is not part of a line
            (line,) = axes.plot(curve.x, y, label=curve.label, linewidth=1, markersize=9)
            line.set_color(COLOURS.get(curve.label, COLOURS["train"]))
            if marked:
                line.set_marker("*" if curve.label == "best" else ".")
                line.set_markevery([*marked])
        axes.set_title(chart.title, loc="left", fontweight="bold")
        note = " ".join(filter(None, [chart.note, gaps if chart.title == "Loss" else ""]))
        axes.set_title(note, loc="right", fontsize="small", color=_GREY)
        axes.set_xlabel("epoch")
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        if chart.top is not None:
            low = min(y for curve in chart.curves for y in curve.y if y is not None)
            axes.set_ylim(low - 0.05 * (chart.top - low), chart.top)
        if chart.from_zero:
            axes.set_ylim(bottom=0)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        if chart.curves:
            axes.legend(frameon=False, fontsize="small")
        else:
            axes.text(0.5, 0.5, "no records yet", color=_GREY, ha="center", transform=axes.transAxes)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png")


class CurvesPicture(Reporter):
    """Draws the charts of a run at its end, and after evaluations at most once per minute.

    A thread draws, within a `TimeBudget`, while the run continues. ``report.html`` shows the same charts.

    Args:
        path: PNG file.
        earlier: Records of the run before it resumed.
        title: Title of the picture.
        majority: See `build_charts`; later evaluations replace it.
    """

    def __init__(
        self, path: Path, earlier: Iterable[Record] = (), title: str = "", majority: float | None = None
    ) -> None:
        self._path = path
        self._majority = majority
        self._title = title
        self._history = earlier.copy() if isinstance(earlier, History) else History(earlier)
        self._stale = False
        self._drawn = time.monotonic()
        self._budget = TimeBudget()
        self._drawing: tuple[ThreadPoolExecutor, Future[None]] | None = None

    def record(self, record: Record) -> None:
        """Stores the record. Draws the charts after an evaluation if the picture is a minute old.

        Raises:
            OSError: An earlier picture could not be written.
        """
        self._stale = True
        self._history.add(record)
        if isinstance(record, EvalRecord) and isinstance(record.outcomes, Outcomes):
            self._majority = record.outcomes.majority
        if self._drawing is not None and self._drawing[1].done():
            self._wait()
        if (
            isinstance(record, EvalRecord)
            and self._drawing is None
            and time.monotonic() >= self._drawn + _INTERVAL
            and self._budget.left
        ):
            self._stale = False
            self._drawn = time.monotonic()
            thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="curves")
            self._drawing = thread, thread.submit(self._draw, self._history.copy())

    def close(self) -> None:
        """Draws the charts if there are records after the last drawing.

        Raises:
            OSError: A picture could not be written.
        """
        try:
            self._wait()
        finally:
            if self._stale:
                self._stale = False
                self._draw(self._history)

    def _wait(self) -> None:
        if self._drawing is not None:
            (thread, drawn), self._drawing = self._drawing, None
            thread.shutdown()
            drawn.result()

    def _draw(self, history: History) -> None:
        with self._budget.spending():
            draw_charts(history, self._path, self._title, self._majority)
