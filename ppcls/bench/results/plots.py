"""A benchmark's charts as PNG files."""

from __future__ import annotations

import io
import math
import re

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ppcls.bench.results.charts import Drawing, Series, category_lines

_TICKS = 12  # so few measured places are all named; there is nothing between 1 process and 2


def file_name(number: int, drawing: Drawing) -> str:
    """Returns the name of a chart's file; ``number`` is its place, from 1."""
    words = re.sub(r"[^a-z0-9]+", "-", drawing.title.lower()).strip("-")[:60]
    return f"{number:02}-{words}.png"


def to_png(drawing: Drawing) -> bytes:
    """Draws medians, with the range over the rounds as whiskers; lines over numbers, else bars."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for place, series in enumerate(drawing.series):
        if drawing.categories:
            _bars(axes, drawing, series, place)
        else:
            _line(axes, series)
    if drawing.categories:
        names = ["\n".join(lines) for lines in category_lines(drawing)]
        axes.set_xticks(range(len(names)), names, parse_math=False)
    elif len(places := sorted({point.x for series in drawing.series for point in series.points})) <= _TICKS:
        axes.set_xticks(places, [f"{place:g}" for place in places])
    axes.set_title(drawing.title, parse_math=False)
    axes.set_xlabel(drawing.x, parse_math=False)
    axes.set_ylabel(drawing.y, parse_math=False)
    if drawing.log:
        axes.set_yscale("log")
        axes.set_ylim(bottom=10.0 ** math.floor(math.log10(_lowest(drawing))))
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


def _lowest(drawing: Drawing) -> float:
    return min(point.metric.low for series in drawing.series for point in series.points)


def _whiskers(series: Series) -> list[list[float]]:
    metrics = [point.metric for point in series.points]
    return [[each.median - each.low for each in metrics], [each.high - each.median for each in metrics]]


def _line(axes: Axes, series: Series) -> None:
    axes.errorbar(
        [point.x for point in series.points],
        [point.metric.median for point in series.points],
        yerr=_whiskers(series),
        label=series.name,
        color=series.colour,
        marker="o",
        markersize=4,
        capsize=3,
    )


def _bars(axes: Axes, drawing: Drawing, series: Series, place: int) -> None:
    width = 0.8 / len(drawing.series)
    shift = (place - (len(drawing.series) - 1) / 2) * width
    axes.bar(
        [point.x + shift for point in series.points],
        [point.metric.median for point in series.points],
        width,
        yerr=_whiskers(series),
        label=series.name,
        color=series.colour,
        capsize=3,
    )
