"""Which of a benchmark's rows a chart shows, and where: the same for a picture and for the page. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import cycle
from textwrap import wrap

from ppcls.bench.results.results import Chart, Label, Metric, Results, Row

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
_WIDTH, _NARROW = 84, 10  # letters that have room below a chart; below one of many bars
_FAR = 30  # times the least, from which on the least is not seen beside the most


@dataclass(frozen=True)
class Point:
    """One row in a chart.

    Attributes:
        x: A number on the axis, or the place of a category, from 0.
        label: What stands there.
        metric: What is drawn.
    """

    x: float
    label: str
    metric: Metric


@dataclass(frozen=True)
class Series:
    """Points that belong together, by x.

    Attributes:
        name: From the labels' values; empty where there is one series only.
        points: At least one.
        colour: One of `COLOURS`; a name has the same one in all charts.
    """

    name: str
    points: tuple[Point, ...]
    colour: str = COLOURS[0]


@dataclass(frozen=True)
class Drawing:
    """A chart with its data.

    Attributes:
        title: Above it.
        x: Name of the axis.
        y: Name and unit of the axis.
        categories: Of the axis, in order; none where it is of numbers.
        series: At least one.
        log: Whether the y axis is logarithmic: on one from 0 the least would not be seen.
    """

    title: str
    x: str
    y: str
    categories: tuple[str, ...]
    series: tuple[Series, ...]
    log: bool


def drawings(results: Results) -> list[Drawing]:
    """Returns the charts for which there are rows."""
    found = [each for chart in results.charts if (each := _drawing(chart, results)) is not None]
    names = dict.fromkeys(series.name for each in found for series in each.series if series.name)
    colours = {"": COLOURS[0], **dict(zip(names, cycle(COLOURS), strict=False))}
    return [
        replace(each, series=tuple(replace(one, colour=colours[one.name]) for one in each.series))
        for each in found
    ]


def category_lines(drawing: Drawing) -> list[list[str]]:
    """Returns the lines of each category's name, so that none runs into the next one's."""
    width = max(_NARROW, _WIDTH // max(1, len(drawing.categories)))
    return [wrap(name, width) for name in drawing.categories]


def with_unit(name: str, unit: str) -> str:
    """Returns a metric's name and unit; one that is called by its unit, such as images/s, once."""
    return name if unit in ("", name) else f"{name}, {unit}"


def shown(label: Label) -> str:
    """Returns a label's value as text; a number that was computed is rounded."""
    return f"{label:.4g}" if isinstance(label, float) else str(label)


def _drawing(chart: Chart, results: Results) -> Drawing | None:
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
    numeric = all(isinstance(each, int | float) and not isinstance(each, bool) for each in values)
    categories = () if numeric else tuple(dict.fromkeys(map(shown, values)))
    series: dict[str, list[Point]] = {}
    for row in rows:
        name = ", ".join(shown(row.labels[label]) for label in chart.series if label in row.labels)
        series.setdefault(name, []).append(_point(chart, row, categories))
    y = with_unit(chart.metric, rows[0].metrics[chart.metric].unit)
    metrics = [row.metrics[chart.metric] for row in rows]
    medians = [each.median for each in metrics]
    log = min(each.low for each in metrics) > 0 and max(medians) > _FAR * min(medians)
    y += " (log scale)" if log else ""
    return Drawing(chart.title, chart.x, y, categories, tuple(map(_by_x, series, series.values())), log)


def _by_x(name: str, points: list[Point]) -> Series:
    return Series(name, tuple(sorted(points, key=lambda each: each.x)))


def _point(chart: Chart, row: Row, categories: tuple[str, ...]) -> Point:
    value = row.labels[chart.x]
    place = categories.index(shown(value)) if categories else float(value)
    return Point(place, shown(value), row.metrics[chart.metric])
