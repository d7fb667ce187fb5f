"""Charts of a benchmark's rows: their data, and their pictures as PNG."""

from __future__ import annotations

import io
import math
import re
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from textwrap import wrap
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ppcls.bench.results.schema import ChartSpec, Label, Quantity, ResultRow, Results
from ppcls.files import atomic_write

COLOURS = (
    "#2166ac",
    "#d6604d",
    "#4d9221",
    "#762a83",
    "#e08214",
    "#35978f",
    "#c51b7d",
    "#666666",
    "#8c510a",
    "#1b1b1b",
)
_WIDTH, _NARROW = 84, 10  # characters below a whole chart, and at least below one bar
_LOG_FROM = 30  # ratio of the largest to the smallest median from which the y axis is logarithmic
_TICKS = 12  # up to this number, every measured x value gets a label on the axis


@dataclass(frozen=True)
class ChartPoint:
    """One row in a chart.

    Attributes:
        x: Number on the x axis, or index of the category.
        metric: Quantity on the y axis.
    """

    x: float
    metric: Quantity


@dataclass(frozen=True)
class ChartSeries:
    """One line, or the bars of one colour.

    Attributes:
        name: Values of the series' labels; empty if there is only one series.
        points: Points by x; at least one.
        colour: One of `COLOURS`; a name has the same colour in all charts.
    """

    name: str
    points: tuple[ChartPoint, ...]
    colour: str = COLOURS[0]


@dataclass(frozen=True)
class Drawing:
    """A chart with its data.

    Attributes:
        title: Title above the chart.
        x: Name of the x axis.
        y: Name and unit of the y axis.
        categories: Categories of the x axis, in order; empty for an axis of numbers.
        series: At least one series.
        log: Whether the y axis is logarithmic.
    """

    title: str
    x: str
    y: str
    categories: tuple[str, ...]
    series: tuple[ChartSeries, ...]
    log: bool

    @property
    def points(self) -> list[ChartPoint]:
        """Returns the points of all series."""
        return [point for series in self.series for point in series.points]


def drawings(results: Results) -> list[Drawing]:
    """Returns the charts that have rows."""
    charts = [drawing for chart in results.charts if (drawing := _drawing(chart, results)) is not None]
    names = dict.fromkeys(series.name for drawing in charts for series in drawing.series if series.name)
    colours = {"": COLOURS[0], **dict(zip(names, cycle(COLOURS), strict=False))}
    return [
        replace(
            drawing, series=tuple(replace(series, colour=colours[series.name]) for series in drawing.series)
        )
        for drawing in charts
    ]


def category_lines(drawing: Drawing) -> list[list[str]]:
    """Returns each category's name in lines that do not run into the next name."""
    width = max(_NARROW, _WIDTH // max(1, len(drawing.categories)))
    return [wrap(name, width) for name in drawing.categories]


def with_unit(name: str, unit: str) -> str:
    """Returns a metric's name and unit; only the name if it equals the unit, such as images/s."""
    return name if unit in ("", name) else f"{name}, {unit}"


def label_text(label: Label) -> str:
    """Returns a label's value as text; floats have four digits."""
    return f"{label:.4g}" if isinstance(label, float) else str(label)


def _drawing(chart: ChartSpec, results: Results) -> Drawing | None:
    rows = [
        row
        for row in results.rows
        if chart.metric in row.metrics
        and chart.x in row.labels
        and all(row.labels.get(name) == value for name, value in chart.where.items())
    ]
    if not rows:
        return None
    values = [row.labels[chart.x] for row in rows]
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    categories = () if numeric else tuple(dict.fromkeys(map(label_text, values)))
    points: dict[str, list[ChartPoint]] = {}
    for row in rows:
        name = ", ".join(label_text(row.labels[label]) for label in chart.series if label in row.labels)
        points.setdefault(name, []).append(_point(chart, row, categories))
    series = [
        ChartSeries(name, tuple(sorted(points_of_series, key=lambda metric: metric.x)))
        for name, points_of_series in points.items()
    ]
    metrics = [row.metrics[chart.metric] for row in rows]
    medians = [metric.median for metric in metrics]
    log = min(metric.low for metric in metrics) > 0 and max(medians) > _LOG_FROM * min(medians)
    y = with_unit(chart.metric, metrics[0].unit) + (" (log scale)" if log else "")
    return Drawing(chart.title, chart.x, y, categories, tuple(series), log)


def _point(chart: ChartSpec, row: ResultRow, categories: tuple[str, ...]) -> ChartPoint:
    value = row.labels[chart.x]
    x = categories.index(label_text(value)) if categories else float(value)
    return ChartPoint(x, row.metrics[chart.metric])


def picture_name(number: int, drawing: Drawing) -> str:
    """Returns the file name of a chart's picture; ``number`` counts from 1."""
    words = re.sub(r"[^a-z0-9]+", "-", drawing.title.lower()).strip("-")[:60]
    return f"{number:02}-{words}.png"


def draw_pictures(folder: Path, results: Results) -> None:
    """Draws one PNG per chart into a folder."""
    for index, drawing in enumerate(drawings(results), start=1):
        with atomic_write(folder / picture_name(index, drawing)) as file:
            file.write(to_png(drawing))


def to_png(drawing: Drawing) -> bytes:
    """Draws medians with the range over the rounds as whiskers: lines over numbers, otherwise bars."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(drawing.series)
    for index, series in enumerate(drawing.series):
        metrics = [point.metric for point in series.points]
        medians = [metric.median for metric in metrics]
        whiskers = [
            [metric.median - metric.low for metric in metrics],
            [metric.high - metric.median for metric in metrics],
        ]
        style: dict[str, Any] = {"yerr": whiskers, "label": series.name, "color": series.colour, "capsize": 3}
        if drawing.categories:
            shift = (index - (len(drawing.series) - 1) / 2) * width
            axes.bar([point.x + shift for point in series.points], medians, width, **style)
        else:
            axes.errorbar([point.x for point in series.points], medians, marker="o", markersize=4, **style)
    if drawing.categories:
        names = ["\n".join(lines) for lines in category_lines(drawing)]
        axes.set_xticks(range(len(names)), names, parse_math=False)
    elif len(places := sorted({point.x for point in drawing.points})) <= _TICKS:
        axes.set_xticks(places, [f"{place:g}" for place in places])
    axes.set_title(drawing.title, parse_math=False)
    axes.set_xlabel(drawing.x, parse_math=False)
    axes.set_ylabel(drawing.y, parse_math=False)
    if drawing.log:
        axes.set_yscale("log")
        lowest = min(point.metric.low for point in drawing.points)
        axes.set_ylim(bottom=10.0 ** math.floor(math.log10(lowest)))
    else:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.grid(axis="y", alpha=0.3)
    if len(drawing.series) > 1:
        for text in axes.legend(fontsize="small").get_texts():
            text.set_parse_math(False)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=120)
    return file.getvalue()
