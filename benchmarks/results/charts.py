"""Charts of the results of a benchmark, as PNG files: one chart per metric and varied label."""

from __future__ import annotations

import io
import math
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ppcls.bench.results.schema import Quantity, ResultRow, Results, kinds_of_rows, label_text, varied_labels
from ppcls.files import atomic_write

_DRAWN = ("images/s", "p50", "p99", "efficiency", "time", "improvement")  # metrics with charts
# width of the whole x axis, and minimum width of one label on it, in characters
_WIDTH = 84
_NARROW = 10
_TITLE_WIDTH = 110
_LOG_FROM = 30  # the y axis is logarithmic if the largest median is over 30 times the smallest


@dataclass(frozen=True)
class MetricChart:
    """Chart of a metric over one label. It has lines if all values of the label are numbers, otherwise bars.

    Attributes:
        metric: Name of the metric.
        x: Name of the label on the x axis.
        series: Maps the values of the other labels, as text, to a dict from each value of ``x`` to a
            quantity.
        legend: Names of the other labels, as the title of the legend.
    """

    metric: str
    x: str
    series: dict[str, dict[Any, Quantity]]
    legend: str = ""

    @property
    def values(self) -> list[Any]:
        """Returns the values on the x axis: sorted numbers, or other values in the order of the rows."""
        values = list(dict.fromkeys(value for points in self.series.values() for value in points))
        return sorted(values) if self.numeric else values

    @property
    def numeric(self) -> bool:
        """Returns whether all values on the x axis are numbers."""
        return all(type(value) in (int, float) for points in self.series.values() for value in points)


def make_charts(results: Results) -> list[MetricChart]:
    """Returns the charts of all kinds of rows.

    There is one chart for each label that has several values while the other labels are equal. If there is no
    such label, one chart has a bar for each row.
    """
    return [chart for rows in kinds_of_rows(results.rows) for chart in _charts_of(rows)]


def _charts_of(rows: Sequence[ResultRow]) -> Iterator[MetricChart]:
    varied = varied_labels(rows)
    for metric in _DRAWN:
        measured = [row for row in rows if metric in row.metrics]
        charts = []
        for x in varied:
            series: dict[str, dict[Any, Quantity]] = {}
            others = [name for name in varied if name != x]
            for row in measured:
                points = series.setdefault(_name(row, others), {})
                points[row.labels[x]] = row.metrics[metric]
            series = {name: points for name, points in series.items() if len(points) > 1}
            charts += [MetricChart(metric, x, series, ", ".join(others))] if series else []
        if len(measured) > 1 and not charts:
            bars = {_name(row, varied): row.metrics[metric] for row in measured}
            charts = [MetricChart(metric, ", ".join(varied), {"": bars})]
        yield from charts


def _name(row: ResultRow, names: Sequence[str]) -> str:
    return ", ".join(label_text(row.labels[name]) for name in names)


def draw_pictures(folder: Path, results: Results) -> None:
    """Draws one PNG per chart into a folder."""
    for number, chart in enumerate(make_charts(results), start=1):
        words = re.sub(r"[^a-z0-9]+", "-", f"{chart.metric} by {chart.x}".lower()).strip("-")
        with atomic_write(folder / f"{number:02}-{words[:60]}.png") as file:
            file.write(to_png(chart, describe_results(results)))


def describe_results(results: Results) -> str:
    """Returns the title of charts: the benchmark, its command, the machine and the date."""
    date = results.written.partition("T")[0]
    machine = ", ".join(f"{name}: {value}" for name, value in results.machine.items())
    return f"{results.benchmark}, {date}: {shlex.join(results.command)}\n{machine}"


def to_png(chart: MetricChart, title: str) -> bytes:
    """Returns a chart as PNG. Points and bars are medians; whiskers are the range over several rounds."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    places = {value: value if chart.numeric else index for index, value in enumerate(chart.values)}
    width = 0.8 / len(chart.series)
    for index, (name, points) in enumerate(chart.series.items()):
        shift = 0 if chart.numeric else (index - (len(chart.series) - 1) / 2) * width
        x = sorted(points, key=lambda value: places[value])
        metrics = [points[value] for value in x]
        medians = [metric.median for metric in metrics]
        style: dict[str, Any] = {"yerr": whiskers(metrics), "label": name, "capsize": 3}
        positions = [places[value] + shift for value in x]
        if chart.numeric:
            axes.errorbar(positions, medians, marker="o", markersize=4, **style)
        else:
            axes.bar(positions, medians, width, **style)
    names = [fill(label_text(value), max(_NARROW, _WIDTH // len(places))) for value in places]
    lines = [fill(line, _TITLE_WIDTH) for line in (*title.splitlines(), _caption(chart))]
    axes.set_title("\n".join(lines), fontsize="small", loc="left", parse_math=False)
    axes.set_xticks(list(places.values()), names, parse_math=False)
    quantities = [metric for points in chart.series.values() for metric in points.values()]
    axes.set_xlabel(chart.x, parse_math=False)
    axes.set_ylabel(with_unit(chart.metric, quantities[0].unit), parse_math=False)
    lowest = min(each.low for each in quantities)
    medians = [each.median for each in quantities]
    if lowest > 0 and max(medians) > _LOG_FROM * min(medians):
        axes.set_yscale("log")
        axes.set_ylim(bottom=10.0 ** math.floor(math.log10(lowest)))
    else:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.grid(axis="y", alpha=0.3)
    if len(chart.series) > 1:
        legend = axes.legend(fontsize="small", title=chart.legend, title_fontsize="small")
        for text in (*legend.get_texts(), legend.get_title()):
            text.set_parse_math(False)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=120)
    return file.getvalue()


def _caption(chart: MetricChart) -> str:
    """Returns what the points, bars and whiskers of a chart are."""
    rounds = max(len(metric.values) for points in chart.series.values() for metric in points.values())
    shape = "points" if chart.numeric else "bars"
    if rounds == 1:
        return "one round"
    return f"{shape}: medians of up to {rounds} rounds, whiskers: their range"


def whiskers(quantities: Sequence[Quantity]) -> tuple[list[float], list[float]]:
    """Returns the lengths of the whiskers below and above each median.

    They are NaN for a quantity of one round, which has no range, so that no whisker is drawn.
    """
    below = [each.median - each.low if len(each.values) > 1 else math.nan for each in quantities]
    above = [each.high - each.median if len(each.values) > 1 else math.nan for each in quantities]
    return below, above


def with_unit(name: str, unit: str) -> str:
    """Returns a metric's name and unit, but only the name if both are equal, such as ``images/s``."""
    return name if unit in ("", name) else f"{name}, {unit}"
