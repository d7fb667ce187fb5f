"""A comparison of two benchmarks' results on the terminal."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from ppcls.bench.results.charts import shown, with_unit
from ppcls.bench.results.compare import CONFIDENCE, Compared, Comparison
from ppcls.bench.results.results import Row
from ppcls.bench.results.table import number


def render(comparison: Comparison, names: tuple[str, str], width: int | None = None) -> str:
    """Returns warnings, a table and the rows of one side alone.

    Args:
        comparison: What to show.
        names: What to call the sides.
        width: Of the terminal; None where there is none.
    """
    text = io.StringIO()
    console = Console(file=text, width=width or 200, highlight=False, markup=False, emoji=False)
    console.print(f"A: {names[0]}\nB: {names[1]}", soft_wrap=True)
    for warning in comparison.warnings:
        console.print(f"warning: {warning}", soft_wrap=True)
    if comparison.rows:
        console.print(_table(comparison))
    for side, rows in zip("AB", comparison.only, strict=True):
        for row in rows:
            console.print(f"only in {side}: {_named(row)}", soft_wrap=True)
    for line in _legend(comparison):
        console.print(line, soft_wrap=True)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def _table(comparison: Comparison) -> Table:
    varied = _varied([row for row, _ in comparison.rows])
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("row", "metric"):
        table.add_column(heading, vertical="top", overflow="fold")
    for heading in ("A", "B", "B / A", f"{CONFIDENCE:.0%} range"):
        table.add_column(heading, justify="right")
    table.add_column("", overflow="fold")
    for row, metrics in comparison.rows:
        name = _named(row, varied)
        if not metrics:
            table.add_row(name, "nothing that both measured")
        for each in metrics:
            table.add_row(name, *_cells(each))
            name = ""
    return table


def _cells(compared: Compared) -> list[str]:
    name = with_unit(compared.name, compared.first.unit)
    medians = [number(each.median) for each in (compared.first, compared.second)]
    found = compared.ratio
    if found is None:
        return [name, *medians, "", "", compared.verdict]
    spread = f"{found.low:.3f} to {found.high:.3f}" if found.known else "one round"
    return [name, *medians, f"{found.value:.3f}", spread, compared.verdict]


def _varied(rows: Sequence[Row]) -> set[str]:
    """Returns the labels by which the rows differ."""
    names = {name for row in rows for name in row.labels}
    return {name for name in names if len({row.labels.get(name) for row in rows}) > 1}


def _named(row: Row, names: set[str] | None = None) -> str:
    chosen = {name: value for name, value in row.labels.items() if names is None or name in names}
    return ", ".join(f"{name} {shown(value)}" for name, value in (chosen or row.labels).items())


def _legend(comparison: Comparison) -> list[str]:
    told = [each for _, metrics in comparison.rows for each in metrics if each.ratio and each.ratio.known]
    if not comparison.rows:
        return ["No row is in both: nothing to compare."]
    if not told:
        return ["No spread is known on both sides: measure two rounds or more."]
    apart = sum(not each.ratio.within_noise for each in told if each.ratio is not None)
    return [
        "A and B are medians; B / A is of geometric means. Within noise: 1 lies in the "
        f"{CONFIDENCE:.0%} range (Welch's t-test of the logarithms).",
        f"{apart} of {len(told)} differ by more; where nothing changed, about one in "
        f"{round(1 / (1 - CONFIDENCE))} would, by chance.",
    ]
