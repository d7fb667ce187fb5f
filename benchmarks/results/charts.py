"""Draws charts of the results of a benchmark as PNG or SVG files: one chart per metric and varied label.

Decisions:
- Bars start at 0 on a linear axis, because their lengths are compared. Lines have a logarithmic axis if their
  values are far apart.
- The title has the facts that decide a speed, so that a picture can be passed on without the results.
"""

from __future__ import annotations

import io
import math
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from benchmarks.results.chart_data import (
    Chart,
    MetricChart,
    StackedChart,
    label_with_unit,
    make_charts,
    with_unit,
)
from ppcls.bench.results.facts import describe_facts
from ppcls.bench.results.schema import Quantity, Results, label_text
from ppcls.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Format = Literal["png", "svg"]
# width of the whole x axis, and minimum width of one label on it, in characters
_WIDTH = 84
_NARROW = 10
_TITLE_WIDTH = 100
_CAPTION_WIDTH = 130
_HEADROOM = 1.05  # height of the axis relative to the largest value
_LOG_FROM = 30  # the y axis of lines is logarithmic if the largest median is over 30 times the smallest
# SVG files have text as text, and are equal for equal results.
_SVG: Any = {"svg.fonttype": "none", "svg.hashsalt": "ppcls"}


def draw_pictures(folder: Path, results: Results, suffix: Format = "png") -> None:
    """Draws one picture per chart into a folder."""
    for number, chart in enumerate(make_charts(results), start=1):
        words = re.sub(r"[^a-z0-9]+", "-", chart.words.lower()).strip("-")
        with atomic_write(folder / f"{number:02}-{words[:60]}.{suffix}") as file:
            file.write(to_picture(chart, results, suffix))


def to_picture(chart: Chart, results: Results, suffix: Format = "png") -> bytes:
    """Returns a chart with title and caption as the contents of a file."""
    file = io.BytesIO()
    metadata = {"Date": None} if suffix == "svg" else None
    with rc_context(_SVG):
        draw(chart, results).savefig(file, format=suffix, dpi=120, metadata=metadata)
    return file.getvalue()


def draw(chart: Chart, results: Results) -> Figure:
    """Returns the figure of a chart."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    if isinstance(chart, StackedChart):
        _draw_stacked(axes, chart)
    else:
        _draw_metric(axes, chart)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.grid(axis="y", alpha=0.3)
    title = [*describe_facts(results, chart.quantities), *([chart.shared] if chart.shared else [])]
    axes.set_title(_wrap(title, _TITLE_WIDTH), fontsize="small", loc="left", parse_math=False)
    machine = ", ".join(f"{name}: {value}" for name, value in results.machine.items())
    caption = [describe_marks(chart), f"Command: {shlex.join(results.command)}", machine]
    figure.supxlabel(
        _wrap(caption, _CAPTION_WIDTH),
        fontsize="x-small",
        x=0.01,
        ha="left",
        color="#555555",
        parse_math=False,
    )
    return figure


def _wrap(lines: Sequence[str], width: int) -> str:
    return "\n".join(fill(line, width) for line in lines)


def _draw_metric(axes: Axes, chart: MetricChart) -> None:
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
    _name_places(axes, places)
    axes.set_xlabel(label_with_unit(chart.x), parse_math=False)
    axes.set_ylabel(with_unit(chart.metric, chart.quantities[0].unit), parse_math=False)
    lowest = min(each.low for each in chart.quantities)
    medians = [each.median for each in chart.quantities]
    if chart.numeric and lowest > 0 and max(medians) > _LOG_FROM * min(medians):
        axes.set_yscale("log")
        axes.set_ylim(bottom=10.0 ** math.floor(math.log10(lowest)))
    elif lowest >= 0:
        axes.set_ylim(0, _HEADROOM * max(each.high for each in chart.quantities) or 1)
    else:
        axes.axhline(0, color="black", linewidth=0.8)
    if len(chart.series) > 1:
        _add_legend(axes, chart.legend)


def _draw_stacked(axes: Axes, chart: StackedChart) -> None:
    places = {name: index for index, name in enumerate(chart.bars)}
    bottom = [0.0] * len(chart.bars)
    for name, quantities in chart.parts.items():
        heights = [0.0 if each is None else each.median for each in quantities]
        axes.bar(list(places.values()), heights, min(0.8, 0.3 * len(places)), bottom=bottom, label=name)
        bottom = [below + height for below, height in zip(bottom, heights, strict=True)]
    _name_places(axes, places)
    axes.set_xlim(-0.6, len(places) - 0.4)
    axes.set_ylim(0, _HEADROOM * max(bottom) or 1)
    axes.set_xlabel(chart.x, parse_math=False)
    unit = chart.quantities[0].unit
    axes.set_ylabel(with_unit(chart.whole, unit), parse_math=False)
    handles, _ = axes.get_legend_handles_labels()
    # In the order in which the parts are stacked: the last part is on top.
    _add_legend(axes, with_unit(chart.part, unit), handles[::-1])


def _name_places(axes: Axes, places: dict[Any, Any]) -> None:
    names = [fill(label_text(value), max(_NARROW, _WIDTH // len(places))) for value in places]
    axes.set_xticks(list(places.values()), names, parse_math=False)


def _add_legend(axes: Axes, title: str, handles: Sequence[Any] | None = None) -> None:
    legend = axes.legend(handles=handles, fontsize="small", title=title, title_fontsize="small")
    for text in (*legend.get_texts(), legend.get_title()):
        text.set_parse_math(False)


def describe_marks(chart: Chart) -> str:
    """Returns what the points, bars and whiskers of a chart are."""
    rounds = max(len(metric.values) for metric in chart.quantities)
    if isinstance(chart, StackedChart):
        values = "values of one round" if rounds == 1 else f"medians of {rounds} rounds"
        return f"Stacked bars: {values}; the parts of a bar add up to the {chart.whole}."
    shape = "Points" if chart.numeric else "Bars"
    if rounds == 1:
        return f"{shape}: values of one round, so there are no whiskers."
    single = any(len(metric.values) == 1 for metric in chart.quantities)
    up_to = "up to " if any(len(metric.values) != rounds for metric in chart.quantities) else ""
    without = "; no whiskers: one round" if single else ""
    return f"{shape}: medians of {up_to}{rounds} rounds; whiskers: range of the rounds{without}."


def whiskers(quantities: Sequence[Quantity]) -> tuple[list[float], list[float]]:
    """Returns the lengths of the whiskers below and above each median.

    They are NaN for a quantity of one round, which has no range, so that no whisker is drawn.
    """
    below = [each.median - each.low if len(each.values) > 1 else math.nan for each in quantities]
    above = [each.high - each.median if len(each.values) > 1 else math.nan for each in quantities]
    return below, above
