"""Draws pipelines: one column per pipeline, one box per stage."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppcls.explain.description import PipelineDescription, PipelineStage, StageOperator
from ppcls.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# All lengths are in inches.
_COLUMN, _GAP, _MARGIN, _PAD = 6.6, 0.5, 0.35, 0.14
_LINE, _ROW, _ARROW = 0.21, 0.34, 0.3
_DEVICES = {
    "cpu": ("#d6e6f5", "on the CPU"),
    "mixed": ("#fce3c0", "from the CPU to the GPU"),
    "gpu": ("#d3edcb", "on the GPU"),
}
_INK, _GREY, _PAPER = "#1d2530", "#5c6773", "#f6f7f9"
_STYLES: dict[str, dict[str, Any]] = {
    "split": {"fontsize": 14, "weight": "bold"},
    "backend": {"fontsize": 10.5, "weight": "bold", "color": _GREY},
    "fact": {"fontsize": 9, "color": _GREY},
    "name": {"fontsize": 10, "weight": "bold"},
    "parameters": {"fontsize": 8.5, "color": _GREY},
    "fused": {"fontsize": 8.5, "color": "#a2541a"},
    "decisions": {"fontsize": 8.5, "style": "italic"},
    "operator": {"fontsize": 8.5, "family": "monospace"},
}

Line = tuple[str, str]  # style and text
Box = tuple[list[Line], Sequence[StageOperator]]


def draw_descriptions(descriptions: Sequence[PipelineDescription], path: Path) -> None:
    """Draws pipelines side by side into the PNG file ``path``, atomically."""
    from matplotlib.figure import Figure

    columns = [(_header(description), list(_boxes(description))) for description in descriptions]
    top = max((_LINE * (len(header) + 1) for header, _ in columns), default=0)
    depths = [sum(_height(box) + _ARROW for box in boxes) - _ARROW for _, boxes in columns]
    width = 2 * _MARGIN + len(columns) * (_COLUMN + _GAP) - _GAP
    height = 2 * _MARGIN + top + max(depths, default=0) + 2 * _ROW
    figure = Figure(figsize=(width, height), dpi=120, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    for number, (header, boxes) in enumerate(columns):
        left = _MARGIN + number * (_COLUMN + _GAP)
        _write_lines(axes, header, left, _MARGIN)
        _draw_column(axes, boxes, left, _MARGIN + top)
    used = {operator.device for _, boxes in columns for _, operators in boxes for operator in operators}
    left, middle = _MARGIN, height - _MARGIN - _ROW / 2
    for colour, text in (legend for device, legend in _DEVICES.items() if device in used):
        _frame(axes, (left, middle - 0.1, 0.3, 0.2), colour)
        _write(axes, left + 0.4, middle, "fact", text)
        left += 0.9 + 0.075 * len(text)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png")


def _header(description: PipelineDescription) -> list[Line]:
    facts = [f"{name}: {text}" for name, text in description.facts.items() if name != "batch"]
    lines = [("fact", line) for fact in facts for line in textwrap.wrap(fact, 94)]
    return [("split", description.split), ("backend", description.backend), *lines]


def _boxes(description: PipelineDescription) -> Iterator[Box]:
    for stage in description.stages:
        yield _stage_lines(stage), stage.operators
    yield [("name", "batch"), *(("fact", line) for line in textwrap.wrap(description.facts["batch"], 84))], ()


def _stage_lines(stage: PipelineStage) -> list[Line]:
    lines = []
    for transform in stage.transforms:
        position, _, rest = transform.rpartition("] ")
        name, _, parameters = rest.partition(" ")
        lines.append(("name", f"{position}] {name}" if position else name))
        lines += [("parameters", line) for line in textwrap.wrap(parameters, 100)]
    if stage.fused:
        lines.append(("fused", f"fused: {stage.fused}"))
    return lines + [("decisions", line) for line in textwrap.wrap(stage.decisions, 106)]


def _height(box: Box) -> float:
    lines, operators = box
    return _LINE * len(lines) + _ROW * len(operators) + 2 * _PAD


def _draw_column(axes: Axes, boxes: Sequence[Box], left: float, top: float) -> None:
    middle, width = left + _COLUMN / 2, _COLUMN - 2 * _PAD
    for number, box in enumerate(boxes):
        lines, operators = box
        if number:
            arrow = {"arrowstyle": "-|>", "color": _GREY, "shrinkA": 0, "shrinkB": 0}
            axes.annotate("", (middle, top), (middle, top - _ARROW), arrowprops=arrow)
        _frame(axes, (left, top, _COLUMN, _height(box)), _PAPER, edge=_GREY)
        _write_lines(axes, lines, left + _PAD, top + _PAD)
        row = top + _PAD + _LINE * len(lines)
        for operator in operators:
            _frame(axes, (left + _PAD, row + 0.03, width, _ROW - 0.06), _DEVICES[operator.device][0])
            _write(axes, left + _PAD + 0.1, row + _ROW / 2, "operator", operator.name)
            _write(axes, left + _PAD + width - 0.1, row + _ROW / 2, "operator", operator.output, ha="right")
            row += _ROW
        top += _height(box) + _ARROW


def _write_lines(axes: Axes, lines: Sequence[Line], left: float, top: float) -> None:
    for number, (style, text) in enumerate(lines):
        _write(axes, left, top + (number + 0.5) * _LINE, style, text)


def _write(axes: Axes, x: float, y: float, style: str, text: str, **options: Any) -> None:
    axes.text(x, y, text, va="center", parse_math=False, **{"color": _INK, **_STYLES[style], **options})


def _frame(axes: Axes, box: tuple[float, float, float, float], fill: str, edge: str = "none") -> None:
    from matplotlib.patches import FancyBboxPatch

    left, top, width, height = box
    shape = "round,pad=0,rounding_size=0.06"
    patch = FancyBboxPatch((left, top), width, height, boxstyle=shape, facecolor=fill, edgecolor=edge, lw=0.8)
    axes.add_patch(patch)
