"""Charts of results as data: which rows, metrics and labels each chart shows.

Decisions:
- Each chart of a metric contains the best row of its kind, because readers look for it.
- Each measured row is part of a chart, unless it is the only row with its metric.
- Parts of a whole, such as the phases of a step, are stacked, so that their sum is visible.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ppcls.bench.loader.settings import SPEED_RATIO, STAGES
from ppcls.bench.results.facts import BATCH_SIZE
from ppcls.bench.results.schema import Quantity, ResultRow, Results, kinds_of_rows, label_text, varied_labels

BASELINE = "of baseline"
_DRAWN = (
    "images/s",
    "p50",
    "p99",
    "efficiency",
    "time",
    BASELINE,
    SPEED_RATIO,
    "improvement",
)  # metrics with charts
_PHASES = ("of", "phases of a step")  # label and value of rows whose metrics are the phases of a step
_WHOLE = "whole run"
LABEL_UNITS = {BATCH_SIZE: "images", "image": "pixels"}


@dataclass(frozen=True)
class MetricChart:
    """Chart of a metric over one label. It has lines if all values of the label are numbers, otherwise bars.

    Attributes:
        metric: Name of the metric.
        x: Name of the label on the x axis.
        series: Maps the values of the other labels, as text, to a dict from each value of ``x`` to a
            quantity.
        legend: Names of the other labels with their units, as the title of the legend.
        shared: Names and values of the labels that are equal in the whole chart.
    """

    metric: str
    x: str
    series: dict[str, dict[Any, Quantity]]
    legend: str = ""
    shared: str = ""

    @property
    def values(self) -> list[Any]:
        """Returns the values on the x axis: sorted numbers, or other values in the order of the rows."""
        values = list(dict.fromkeys(value for points in self.series.values() for value in points))
        return sorted(values) if self.numeric else values

    @property
    def numeric(self) -> bool:
        """Returns whether all values on the x axis are numbers."""
        return all(type(value) in (int, float) for points in self.series.values() for value in points)

    @property
    def quantities(self) -> list[Quantity]:
        """Returns all quantities of the chart."""
        return [quantity for points in self.series.values() for quantity in points.values()]

    @property
    def words(self) -> str:
        """Returns what the chart shows, for the name of its file."""
        return f"{self.metric} by {self.x}"


@dataclass(frozen=True)
class StackedChart:
    """Stacked bars: parts of a whole, such as the phases of a training step.

    Attributes:
        whole: What the parts add up to, such as ``time of a step``.
        bars: Names of the bars.
        parts: Maps the name of each part to one quantity per bar; None if the bar lacks this part.
        part: What a part is, as the title of the legend, such as ``phase``.
        shared: Names and values of the labels that are equal in the whole chart.
        x: Names of the labels that differ between the bars.
    """

    whole: str
    bars: list[str]
    parts: dict[str, list[Quantity | None]]
    part: str
    shared: str = ""
    x: str = ""

    @property
    def quantities(self) -> list[Quantity]:
        """Returns all quantities of the chart."""
        return [each for values in self.parts.values() for each in values if each is not None]

    @property
    def words(self) -> str:
        """Returns what the chart shows, for the name of its file."""
        return f"{self.whole} by {self.part}"


Chart = MetricChart | StackedChart


def make_charts(results: Results) -> list[Chart]:
    """Returns the charts of all kinds of rows.

    There is one chart for each label that has several values while the other labels are equal. Rows that
    belong to no such chart are bars in another one.
    """
    return [chart for rows in kinds_of_rows(results.rows) for chart in _charts_of(rows, results.rows)]


def _charts_of(rows: Sequence[ResultRow], all_rows: Sequence[ResultRow]) -> Iterator[Chart]:
    measured = [row for row in rows if row.metrics]
    if not measured:
        return
    labels = measured[0].labels
    if labels.get(_PHASES[0]) == _PHASES[1]:
        yield _phases(measured)
    elif "part" in labels:
        yield _parts(measured)
    elif "up to" in labels:
        yield from _stages(measured, all_rows)
    elif "storage" in labels:
        yield _storages(measured)
    else:
        for metric in _DRAWN:
            with_metric = [row for row in rows if metric in row.metrics]
            several = sum(metric in row.metrics for row in all_rows) > 1
            yield from _metric_charts(metric, with_metric, varied_labels(rows), several=several)


def _metric_charts(
    metric: str, rows: Sequence[ResultRow], varied: Sequence[str], *, several: bool
) -> Iterator[MetricChart]:
    """Yields the charts of one metric.

    Args:
        rows: Rows of one kind that have the metric.
        varied: Labels that differ between rows of this kind.
        several: Whether any kind has another row with the metric, so that a single row is drawn.
    """
    if not rows or not several:
        return
    unique: dict[tuple[Any, ...], ResultRow] = {}
    for row in rows:  # of rows with equal labels, the best
        labels = tuple(row.labels.values())
        unique[labels] = find_best(metric, (row, unique[labels])) if labels in unique else row
    rows = list(unique.values())
    shared = _name_equal(rows, varied)
    if any(BASELINE in row.metrics for row in rows) and metric in ("time", BASELINE):
        yield _all_rows(metric, rows, varied, shared)  # the table relative to a baseline, as one chart
        return
    best = find_best(metric, rows)
    drawn: set[int] = set()
    for x in varied:
        others = [name for name in varied if name != x]
        series: dict[str, dict[Any, ResultRow]] = {}
        for row in rows:
            points = series.setdefault(_name(row, others), {})
            points[row.labels[x]] = row
        several_points = {name: points for name, points in series.items() if len(points) > 1}
        if not several_points:
            continue
        shown = {
            name: points
            for name, points in series.items()
            if name in several_points or any(row is best for row in points.values())
        }
        drawn |= {id(row) for points in shown.values() for row in points.values()}
        quantities = {
            name: {value: row.metrics[metric] for value, row in points.items()}
            for name, points in shown.items()
        }
        yield MetricChart(metric, x, quantities, "; ".join(map(label_with_unit, others)), shared)
    if rest := [row for row in rows if id(row) not in drawn]:
        missing_best = [] if any(row is best for row in rest) else [best]
        yield _all_rows(metric, [*missing_best, *rest], varied or list(rows[0].labels), shared)


def _all_rows(metric: str, rows: Sequence[ResultRow], varied: Sequence[str], shared: str) -> MetricChart:
    """Returns a chart with one bar per row."""
    quantities: dict[Any, Quantity] = {_name(row, varied): row.metrics[metric] for row in rows}
    return MetricChart(metric, ", ".join(map(label_with_unit, varied)), {"": quantities}, "", shared)


def find_best(metric: str, rows: Sequence[ResultRow]) -> ResultRow:
    """Returns the row with the best median of a metric."""
    sign = -1 if rows[0].metrics[metric].better == "less" else 1
    return max(rows, key=lambda row: sign * row.metrics[metric].median)


def _phases(rows: Sequence[ResultRow]) -> StackedChart:
    """Returns the phases of a training step, one bar per row."""
    varied = varied_labels(rows)
    names = list(dict.fromkeys(name for row in rows for name in row.metrics))
    parts = {name: [row.metrics.get(name) for row in rows] for name in names}
    bars = [_name(row, varied) or "step" for row in rows]
    shared = _name_equal(rows, [*varied, _PHASES[0]])
    x = ", ".join(map(label_with_unit, varied))
    return StackedChart("time of a step", bars, parts, "phase", shared, x)


def _parts(rows: Sequence[ResultRow]) -> StackedChart:
    """Returns the parts of a whole run as one bar."""
    parts: dict[str, list[Quantity | None]] = {
        label_text(row.labels["part"]): [row.metrics["time"]]
        for row in rows
        if row.labels["part"] != _WHOLE and "time" in row.metrics
    }
    return StackedChart("time of a run", [_WHOLE], parts, "part")


def _storages(rows: Sequence[ResultRow]) -> MetricChart:
    """Returns the images per second of all measurements of the storage folders."""
    varied = varied_labels(rows)
    series: dict[str, dict[Any, Quantity]] = {
        _name(row, varied) or "storage": {
            name: quantity for name, quantity in row.metrics.items() if quantity.unit == "images/s"
        }
        for row in rows
    }
    legend = "; ".join(map(label_with_unit, varied))
    return MetricChart("images/s", "measurement", series, legend, _name_equal(rows, varied))


def _stages(rows: Sequence[ResultRow], all_rows: Sequence[ResultRow]) -> Iterator[StackedChart]:
    """Yields the time per image of a loader, which its stages add up to.

    A row "up to" a stage has the images per second of a loader that stops after this stage. The complete
    loader is the row of the setting with the same name.
    """
    rates = {label_text(row.labels["up to"]): row.metrics.get("images/s") for row in rows}
    of = rows[0].labels.get("of")
    whole = [
        row.metrics["images/s"]
        for row in all_rows
        if "setting" in row.labels and row.labels.get("of") == of and "images/s" in row.metrics
    ]
    ends = [rates.get(stage) for stage in STAGES[:-1]] + whole[:1]
    if len(ends) != len(STAGES) or any(rate is None for rate in ends):
        return
    yield StackedChart(
        "time per image",
        [label_text(of) if of is not None else "loader"],
        {stage: [each] for stage, each in _added(dict(zip(STAGES, ends, strict=True))).items()},
        "stage",
    )


def _added(ends: Mapping[Any, Quantity | None]) -> dict[str, Quantity]:
    """Returns the milliseconds per image that each stage adds; the medians of the rounds."""
    added: dict[str, Quantity] = {}
    before = 0.0
    for stage, rate in ends.items():
        assert rate is not None  # checked by the caller
        until = 1000 / rate.median
        added[stage] = Quantity((max(0.0, until - before),) * len(rate.values), "ms", "less")
        before = max(before, until)
    return added


def _name(row: ResultRow, names: Sequence[str]) -> str:
    return ", ".join(label_text(row.labels[name]) for name in names)


def _name_equal(rows: Sequence[ResultRow], varied: Sequence[str]) -> str:
    """Returns names and values of the labels that are equal in all rows, without the title's batch size."""
    hidden = {*varied, BATCH_SIZE}
    labels = rows[0].labels
    return ", ".join(f"{name}: {label_text(value)}" for name, value in labels.items() if name not in hidden)


def label_with_unit(name: str) -> str:
    """Returns the name of a label, with its unit if it has one."""
    return with_unit(name, LABEL_UNITS.get(name, ""))


def with_unit(name: str, unit: str) -> str:
    """Returns a metric's name and unit, but only the name if both are equal, such as ``images/s``."""
    if not unit and name.startswith("of "):
        return f"speed, relative to {name[3:]}"
    return name if unit in ("", name) else f"{name}, {unit}"
