"""Pipelines as a picture: a column each, a box for what became of each transform."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppcls.explain.description import Description, Operator, Stage
from ppcls.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# All lengths are inches.
_COLUMN, _GAP, _MARGIN, _PAD = 6.6, 0.5, 0.35, 0.14
_LINE, _ROW, _ARROW = 0.21, 0.34, 0.3
_COLOURS = {"cpu": "#d6e6f5", "mixed": "#fce3c0", "gpu": "#d3edcb"}
_WORDS = {"cpu": "on the CPU", "mixed": "from the CPU to the GPU", "gpu": "on the GPU"}
_INK, _GREY, _PAPER = "#1d2530", "#5c6773", "#f6f7f9"


@dataclass(frozen=True)
class _Text:
    """Lines of one style."""

    text: str
    size: float = 9
    colour: str = _INK
    weight: str = "normal"
    style: str = "normal"


@dataclass(frozen=True)
class _Box:
    """Lines of text, and operators below them."""

    lines: tuple[_Text, ...]
    operators: tuple[Operator, ...] = ()

    @property
    def height(self) -> float:
        return _LINE * len(self.lines) + _ROW * len(self.operators) + 2 * _PAD


def draw_descriptions(described: Sequence[Description], path: Path) -> None:
    """Draws pipelines side by side into the PNG file ``path``, atomically."""
    from matplotlib.figure import Figure

    columns = [(_header(each), list(_boxes(each))) for each in described]
    top = max((_LINE * (len(header) + 1) for header, _ in columns), default=0)
    depths = [sum(box.height + _ARROW for box in boxes) - _ARROW for _, boxes in columns]
    width = 2 * _MARGIN + len(columns) * (_COLUMN + _GAP) - _GAP
    height = 2 * _MARGIN + top + max(depths, default=0) + 2 * _ROW
    figure = Figure(figsize=(width, height), dpi=120, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    for number, (header, boxes) in enumerate(columns):
        left = _MARGIN + number * (_COLUMN + _GAP)
        _write(axes, header, left, _MARGIN)
        _draw_column(axes, boxes, left, _MARGIN + top)
    used = {operator.device for each in described for stage in each.stages for operator in stage.operators}
    _draw_legend(axes, [device for device in _COLOURS if device in used], height - _MARGIN - _ROW / 2)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png")


def _header(described: Description) -> list[_Text]:
    facts = [f"{name}: {text}" for name, text in described.facts.items() if name != "batch"]
    return [
        _Text(described.split, size=14, weight="bold"),
        _Text(described.feeder, size=10.5, weight="bold", colour=_GREY),
        *(_Text(line, colour=_GREY) for fact in facts for line in _fold(fact, 94)),
    ]


def _boxes(described: Description) -> Iterator[_Box]:
    yield from map(_box, described.stages)
    yield _Box((_Text("batch", weight="bold", size=10), *map(_Text, _fold(described.facts["batch"], 84))))


def _box(stage: Stage) -> _Box:
    lines = []
    for each in stage.transforms:
        place, _, rest = each.rpartition("] ")
        name, _, parameters = rest.partition(" ")
        label = f"{place}] {name}" if place else name
        lines.append(_Text(label, weight="bold", size=10))
        lines += [_Text(line, colour=_GREY, size=8.5) for line in _fold(parameters, 100)]
    if stage.fused:
        lines.append(_Text(f"fused: {stage.fused}", colour="#a2541a", size=8.5))
    lines += [_Text(line, style="italic", size=8.5) for line in _fold(stage.decided, 106)]
    return _Box(tuple(lines), stage.operators)


def _fold(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width)


def _write(axes: Axes, lines: Sequence[_Text], left: float, top: float) -> None:
    for number, line in enumerate(lines):
        axes.text(
            left,
            top + (number + 0.5) * _LINE,
            line.text,
            fontsize=line.size,
            color=line.colour,
            weight=line.weight,
            style=line.style,
            va="center",
            parse_math=False,
        )


def _draw_column(axes: Axes, boxes: Sequence[_Box], left: float, top: float) -> None:
    middle = left + _COLUMN / 2
    for number, box in enumerate(boxes):
        if number:
            arrow = {"arrowstyle": "-|>", "color": _GREY, "shrinkA": 0, "shrinkB": 0}
            axes.annotate("", (middle, top), (middle, top - _ARROW), arrowprops=arrow)
        _frame(axes, left, top, _COLUMN, box.height, _PAPER, edge=_GREY)
        _write(axes, box.lines, left + _PAD, top + _PAD)
        below = top + _PAD + _LINE * len(box.lines)
        for row, operator in enumerate(box.operators):
            _draw_operator(axes, operator, left + _PAD, below + row * _ROW)
        top += box.height + _ARROW


def _draw_operator(axes: Axes, operator: Operator, left: float, top: float) -> None:
    width, middle = _COLUMN - 2 * _PAD, top + _ROW / 2
    _frame(axes, left, top + 0.03, width, _ROW - 0.06, _COLOURS[operator.device])
    style: dict[str, Any] = {
        "fontsize": 8.5,
        "family": "monospace",
        "color": _INK,
        "va": "center",
        "parse_math": False,
    }
    axes.text(left + 0.1, middle, operator.name, **style)
    axes.text(left + width - 0.1, middle, operator.output, ha="right", **style)


def _frame(
    axes: Axes, left: float, top: float, width: float, height: float, fill: str, edge: str = "none"
) -> None:
    from matplotlib.patches import FancyBboxPatch

    shape = "round,pad=0,rounding_size=0.06"
    axes.add_patch(
        FancyBboxPatch((left, top), width, height, boxstyle=shape, facecolor=fill, edgecolor=edge, lw=0.8)
    )


def _draw_legend(axes: Axes, devices: Sequence[str], middle: float) -> None:
    left = _MARGIN
    for device in devices:
        _frame(axes, left, middle - 0.1, 0.3, 0.2, _COLOURS[device])
        axes.text(left + 0.4, middle, _WORDS[device], fontsize=9, color=_GREY, va="center")
        left += 0.9 + 0.075 * len(_WORDS[device])
