"""A data set's numbers as one picture: classes, sizes, bytes, channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ppcls.dataset_tools.stats import DatasetStats
from ppcls.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BLUE, _RED = "#2166ac", "#d6604d"
_MORE_SCRIPTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Microsoft YaHei",
    "SimHei",
    "PingFang SC",
    "Arial Unicode MS",
)
_NAMED = 30  # classes that get their name below the axis


def draw_stats(stats: DatasetStats, path: Path) -> None:
    """Draws ``stats`` into the PNG file ``path``, atomically.

    A class whose name no installed font can draw is shown by its number.
    """
    from matplotlib import rc_context  # here: it takes a second
    from matplotlib.figure import Figure

    fonts = _fonts()
    names = [name if _can_draw(name, fonts) else str(label) for label, name in enumerate(stats.names)]
    title = f"{stats.name}: " if _can_draw(stats.name, fonts) else ""
    with rc_context({"font.family": fonts}), atomic_path(path) as temporary:
        figure = Figure(figsize=(12, 8), dpi=120, layout="constrained")
        (classes, sides), (sizes, channels) = figure.subplots(2, 2)
        _draw_classes(classes, stats, names)
        _draw_sides(sides, stats)
        _draw_sizes(sizes, stats)
        _draw_channels(channels, stats)
        figure.suptitle(f"{title}{len(stats.moments.sizes)} images", parse_math=False)
        figure.savefig(temporary, format="png")


def _fonts() -> list[str]:
    """Returns matplotlib's own font, and those of more scripts that are installed."""
    from matplotlib.font_manager import get_font_names

    there = set(get_font_names())
    return ["DejaVu Sans", *(each for each in _MORE_SCRIPTS if each in there)]


def _can_draw(text: str, fonts: Sequence[str]) -> bool:
    from matplotlib.font_manager import findfont, get_font

    found = [get_font(findfont(each)) for each in fonts]
    return all(any(font.get_char_index(ord(sign)) for font in found) for sign in text)


def _count_up(axes: Axes) -> None:
    """Marks whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axes.yaxis.set_major_locator(MaxNLocator("auto", integer=True))


def _draw_classes(axes: Axes, stats: DatasetStats, names: Sequence[str]) -> None:
    order = np.argsort(-stats.counts, kind="stable")
    axes.bar(np.arange(len(order)), stats.counts[order], color=_BLUE, width=0.9)
    if len(order) <= _NAMED:
        axes.set_xticks(range(len(order)), [names[each] for each in order], rotation=90, parse_math=False)
    _count_up(axes)
    _finish(axes, "Images a class, largest first", "class", "images")


def _draw_sides(axes: Axes, stats: DatasetStats) -> None:
    sides, counts = np.unique(stats.moments.sides, axis=0, return_counts=True)
    area = 15 + 300 * counts / counts.max()
    axes.scatter(sides[:, 1], sides[:, 0], s=area, color=_BLUE, alpha=0.4, linewidths=0)
    most = 1.08 * sides.max()
    axes.plot([0, most], [0, most], color="#999999", linewidth=0.8)
    axes.set(xlim=(0, most), ylim=(0, most), aspect="equal")
    _finish(axes, "Sides; an area is a share of the images", "width, pixels", "height, pixels")


def _draw_sizes(axes: Axes, stats: DatasetStats) -> None:
    sizes = stats.moments.sizes
    axes.hist(sizes / 1000, bins=min(40, math.isqrt(len(sizes))), color=_BLUE)
    _count_up(axes)
    _finish(axes, "File sizes", "KB", "images")


def _draw_channels(axes: Axes, stats: DatasetStats) -> None:
    places = np.arange(len(stats.mean))
    axes.bar(places, stats.mean, yerr=stats.std, color=_BLUE, ecolor=_RED, capsize=4)
    axes.set_xticks(places)
    axes.set_ylim(bottom=0)
    _finish(axes, "Channels: mean and standard deviation", "channel", "of the largest value")


def _finish(axes: Axes, title: str, below: str, beside: str) -> None:
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set_xlabel(below)
    axes.set_ylabel(beside)
    axes.spines[["top", "right"]].set_visible(False)
