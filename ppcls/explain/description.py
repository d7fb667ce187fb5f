"""Classes that describe a data pipeline, and functions that print it as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import zip_longest
from typing import TYPE_CHECKING, TextIO

from ppcls.config.base.section import Spec
from ppcls.data.supported import transforms_of
from ppcls.data.transforms.base import Transform
from ppcls.data.transforms.specs import Op
from ppcls.data.transforms.specs.decisions import decide

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WIDE = 1000  # columns of a table in a file or a pipe, so that no line is wrapped


@dataclass(frozen=True)
class StageOperator:
    """One DALI operator, or one function of a library such as OpenCV.

    Attributes:
        name: Name such as ``decoders.image`` or ``cv2.resize``.
        device: ``"cpu"``, ``"gpu"`` or ``"mixed"``.
        output: Shape, layout and dtype of the output, with ``?`` for a side that differs between images; may
            be empty.
    """

    name: str
    device: str
    output: str = ""


@dataclass(frozen=True)
class PipelineStage:
    """The implementation of one transform, or of several fused transforms.

    Attributes:
        transforms: Text for each transform: its position in ``transform_ops``, its name and its parameters.
        operators: Operators that implement the transforms.
        decisions: Description of the values that are chosen for each image; may be empty.
    """

    transforms: tuple[str, ...]
    operators: tuple[StageOperator, ...]
    decisions: str = ""


@dataclass(frozen=True)
class PipelineDescription:
    """The pipeline of one split.

    Attributes:
        split: Name of the split, such as ``DataLoader.Train``.
        backend: Name and device, such as ``DALI on GPU 0``.
        facts: Facts about the whole pipeline, by name.
        stages: Stages in order. The first stage reads the files.
    """

    split: str
    backend: str
    facts: dict[str, str]
    stages: tuple[PipelineStage, ...]


def describe_stage(op: Op, operators: Sequence[StageOperator]) -> PipelineStage:
    """Returns the description of ``op`` and of the operators that implement it."""
    transforms = transforms_of(op)
    return PipelineStage(
        transforms=tuple(
            f"[{'+' if at is None else at}] {describe_spec(transform)}" for at, transform in transforms
        ),
        operators=tuple(operators),
        decisions="; ".join(filter(None, (_describe_decisions(transform) for _, transform in transforms))),
    )


def describe_arrays(shapes: Sequence[Sequence[int]], layout: str, dtype: str, vary: bool) -> str:
    """Returns a description of images, such as ``[?, ?, 3] HWC uint8``, with ``?`` for sides that differ.

    Args:
        shapes: Shape of each image of a batch.
        layout: Layout such as HWC.
        dtype: Name of the dtype.
        vary: Whether heights and widths can differ, even if they are equal in this batch.
    """
    sides = [str(lengths[0]) if len(set(lengths)) == 1 else "?" for lengths in zip(*shapes, strict=True)]
    if vary:
        sides = ["?" if axis in "HW" else side for side, axis in zip(sides, layout, strict=False)]
    return " ".join(filter(None, [f"[{', '.join(sides)}]", layout, dtype]))


def describe_spec(spec: Spec) -> str:
    """Returns the name of a spec and its parameters that differ from the defaults."""
    parameters = spec.model_dump(exclude_defaults=True).items()
    return " ".join([spec.kind, *(f"{key}={_format(value)}" for key, value in parameters)])


def _format(value: object) -> str:
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_format, value))})"
    if isinstance(value, dict):
        return f"({', '.join(f'{key}={_format(item)}' for key, item in value.items())})"
    return f"{value:.4g}" if isinstance(value, float) else repr(value)


def _describe_decisions(spec: Transform) -> str:
    """Returns what the docstring of `decide` says about its result, and the number of random numbers."""
    implementation = decide.dispatch(type(spec))
    if implementation is decide.dispatch(object):
        return ""
    text = (implementation.__doc__ or "").split("\n")[0].rstrip(".").replace("`", "").removeprefix("Returns ")
    text = text[:1].upper() + text[1:]
    return f"{text} ({spec.draws} random number{'s' if spec.draws > 1 else ''})" if spec.draws else text


def print_descriptions(descriptions: Sequence[PipelineDescription], stream: TextIO) -> None:
    """Prints one table per pipeline. Tables fit the width of a terminal. Other streams get long lines."""
    from rich.console import Console

    if stream.isatty():
        console = Console(file=stream, highlight=False, markup=False)
    else:
        console = Console(file=StringIO(), width=_WIDE, highlight=False, markup=False, color_system=None)
    for description in descriptions:
        _print(console, description)
    if isinstance(console.file, StringIO):
        stream.writelines(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())


def _print(console: Console, description: PipelineDescription) -> None:
    console.print(f"{description.split}: {description.backend}", style="bold")
    for name, text in description.facts.items():
        console.print(f"  {name:8} {text}")
    console.print()
    console.print(_table(description))
    console.print()


def _table(description: PipelineDescription) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in ("transform_ops", "operator", "device", "output", "decided per image"):
        table.add_column(name, overflow="fold")
    for stage in description.stages:
        rows = list(zip_longest(stage.transforms, stage.operators))
        for row, (transform, operator) in enumerate(rows):
            table.add_row(
                f"{_bracket(row, len(rows))} {transform or ''}",
                *((operator.name, operator.device, operator.output) if operator else ("", "", "")),
                stage.decisions if row == 0 else "",
            )
    return table


def _bracket(row: int, rows: int) -> str:
    """Returns the character of the bracket around a stage's rows that belongs in ``row``."""
    if rows == 1:
        return " "
    return "╭" if row == 0 else "╰" if row == rows - 1 else "│"
