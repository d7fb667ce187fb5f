"""Prints the descriptions of pipelines as tables."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from itertools import zip_longest
from typing import TYPE_CHECKING, TextIO

from ppcls.explain.description import PipelineDescription

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WIDE = 1000  # columns of a table in a file or a pipe, so that no line is wrapped


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
