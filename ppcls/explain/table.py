"""A pipeline's description as a table for people."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from typing import TYPE_CHECKING, TextIO

from ppcls.explain.description import Description

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WIDE = 1000  # nothing is folded in a file or a pipe


def print_descriptions(described: Sequence[Description], stream: TextIO) -> None:
    """Writes a table for each pipeline: as wide as a terminal, else plain lines, not folded."""
    from rich.console import Console

    if stream.isatty():
        console = Console(file=stream, highlight=False, markup=False)
    else:
        console = Console(file=StringIO(), width=_WIDE, highlight=False, markup=False, color_system=None)
    for each in described:
        _print(console, each)
    if isinstance(console.file, StringIO):
        stream.writelines(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())


def _print(console: Console, described: Description) -> None:
    console.print(f"{described.split}: {described.feeder}", style="bold")
    for name, text in described.facts.items():
        console.print(f"  {name:8} {text}")
    console.print()
    console.print(_table(described))
    for fusion in described.fusions:
        console.print(f"  fused    {fusion}")
    console.print()


def _table(described: Description) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in ("transform_ops", "operator", "device", "gives", "decided for each image"):
        table.add_column(name, overflow="fold")
    for stage in described.stages:
        rows = max(len(stage.transforms), len(stage.operators))
        for row in range(rows):
            made = stage.operators[row] if row < len(stage.operators) else None
            table.add_row(
                f"{_bracket(row, rows)} {stage.transforms[row] if row < len(stage.transforms) else ''}",
                *((made.name, made.device, made.output) if made is not None else ("", "", "")),
                stage.decided if row == 0 else "",
            )
    return table


def _bracket(row: int, rows: int) -> str:
    """Holds the rows of one stage together."""
    if rows == 1:
        return " "
    return "╭" if row == 0 else "╰" if row == rows - 1 else "│"
