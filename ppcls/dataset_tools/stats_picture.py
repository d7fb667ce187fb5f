"""Plots the statistics of a dataset: classes, sides, file sizes and channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ppcls.dataset_tools.stats import DatasetStats
from ppcls.errors import counted
from ppcls.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BLUE = "#2166ac"
_RED = "#d6604d"
# Fonts that contain Chinese and Japanese characters.
_CJK_FONTS = (
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
_MAX_LENGTH = 24  # characters of a name on the axis, which leave room for the chart above it
_MAX_TITLE = 80
_MAX_NAMES = 30  # maximum number of classes for which the axis shows names


def draw_stats(stats: DatasetStats, path: Path) -> None:
    """Plots statistics, and writes a PNG file atomically.

    If the installed fonts do not contain all characters of a class name, the plot shows the class id instead.
    """
    from matplotlib import rc_context  # slow import
    from matplotlib.figure import Figure

    fonts = _fonts()
    names = [name if _can_draw(name, fonts) else str(label) for label, name in enumerate(stats.names)]
    title = f"{_shorten(stats.name, _MAX_TITLE)}: " if _can_draw(stats.name, fonts) else ""
    with rc_context({"font.family": fonts}), atomic_path(path) as temporary:
        figure = Figure(figsize=(12, 8), dpi=120, layout="constrained")
        (classes, sides), (sizes, channels) = figure.subplots(2, 2)
        _draw_classes(classes, stats, names)
        _draw_sides(sides, stats)
        _draw_sizes(sizes, stats)
        _draw_channels(channels, stats)
        figure.suptitle(f"{title}{counted(len(stats.pixels.sizes), 'image')}", parse_math=False)
        figure.savefig(temporary, format="png")


def _fonts() -> list[str]:
    """Returns the names of matplotlib's default font and of the installed fonts for Chinese and Japanese."""
    from matplotlib.font_manager import get_font_names

    installed = set(get_font_names())
    return ["DejaVu Sans", *(font for font in _CJK_FONTS if font in installed)]


def _can_draw(text: str, fonts: Sequence[str]) -> bool:
    from matplotlib.font_manager import findfont, get_font

    loaded = [get_font(findfont(font)) for font in fonts]
    return all(any(font.get_char_index(ord(character)) for font in loaded) for character in text)


def _use_integer_ticks(axes: Axes) -> None:
    """Makes the y axis show only whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axes.yaxis.set_major_locator(MaxNLocator("auto", integer=True))


def _shorten(name: str, length: int) -> str:
    """Returns a name with at most ``length`` characters."""
    return name if len(name) <= length else f"{name[: length - 1].rstrip()}…"


def _draw_classes(axes: Axes, stats: DatasetStats, names: Sequence[str]) -> None:
    order = np.argsort(-stats.counts, kind="stable")
    axes.bar(np.arange(len(order)), stats.counts[order], color=_BLUE, width=0.9)
    if len(order) <= _MAX_NAMES:
        shown = [_shorten(names[label], _MAX_LENGTH) for label in order]
        axes.set_xticks(range(len(order)), shown, rotation=90, parse_math=False)
    _use_integer_ticks(axes)
    _label_axes(axes, "Images per class, largest first", "class", "images")


def _draw_sides(axes: Axes, stats: DatasetStats) -> None:
    sides, counts = np.unique(stats.pixels.sides, axis=0, return_counts=True)
    area = 15 + 300 * counts / counts.max()
    axes.scatter(sides[:, 1], sides[:, 0], s=area, color=_BLUE, alpha=0.4, linewidths=0)
    most = 1.08 * sides.max()
    axes.plot([0, most], [0, most], color="#999999", linewidth=0.8)
    axes.set(xlim=(0, most), ylim=(0, most), aspect="equal")
    _label_axes(
        axes,
        "Sides; dot area: number of images",
        "width, pixels",
        "height, pixels",
    )


def _draw_sizes(axes: Axes, stats: DatasetStats) -> None:
    sizes = stats.pixels.sizes
    axes.hist(sizes / 1000, bins=min(40, math.isqrt(len(sizes))), color=_BLUE)
    _use_integer_ticks(axes)
    _label_axes(axes, "File sizes", "KB", "images")


def _draw_channels(axes: Axes, stats: DatasetStats) -> None:
    positions = np.arange(len(stats.mean))
    axes.bar(positions, stats.mean, yerr=stats.std, color=_BLUE, ecolor=_RED, capsize=4)
    axes.set_xticks(positions)
    axes.set_ylim(bottom=0)
    _label_axes(axes, "Channels: mean and standard deviation", "channel", "fraction of the maximum value")


def _label_axes(axes: Axes, title: str, x_label: str, y_label: str) -> None:
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.spines[["top", "right"]].set_visible(False)
