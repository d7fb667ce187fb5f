"""A benchmark's results on the terminal."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from ppcls.bench.results.charts import shown
from ppcls.bench.results.results import Metric, Results, Row, label_names, metric_names

_NO_TERMINAL, _WIDEST = 200, 10_000  # columns
LEGEND = "medians; ± is half the range over the rounds, as a share of the median"


def render(results: Results, width: int | None = None) -> str:
    """Returns the tables, one for each kind of rows, and the findings.

    Args:
        results: Of any benchmark.
        width: Of the terminal, to which notes are folded; None where there is none. Nothing is cut off.
    """
    text = io.StringIO()
    console = Console(file=text, width=_WIDEST, highlight=False, markup=False, emoji=False)
    for rows in kinds_of_rows(results.rows):
        table = _table(rows)
        needed = Measurement.get(console, console.options, table)
        table.width = min(max(width or _NO_TERMINAL, needed.minimum), needed.maximum)
        console.print(table)
    if any(len(metric.values) > 1 for row in results.rows for metric in row.metrics.values()):
        console.print(LEGEND, soft_wrap=True)
    for finding in results.findings:
        console.print(finding, soft_wrap=True)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def kinds_of_rows(rows: Sequence[Row]) -> list[list[Row]]:
    """Returns the rows by the names of their labels, in the order in which these first come."""
    kinds: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        kinds.setdefault(tuple(row.labels), []).append(row)
    return list(kinds.values())


@dataclass(frozen=True)
class Headings:
    """What a table of rows has beside them.

    Attributes:
        caption: The labels that all rows share, with their values.
        labels: Names of the others.
        metrics: Names and units.
        noted: Whether any row has a note.
    """

    caption: str
    labels: list[str]
    metrics: list[tuple[str, str]]
    noted: bool


def headings(rows: Sequence[Row]) -> Headings:
    """Returns what a table of these rows is headed by; a single row's labels all stay with it."""
    values = {name: {row.labels.get(name) for row in rows} for name in label_names(rows)}
    shared = [name for name, found in values.items() if len(found) == 1 and len(rows) > 1]
    units = {name: metric.unit for row in rows for name, metric in row.metrics.items()}
    return Headings(
        caption=", ".join(f"{name}: {shown(rows[0].labels[name])}" for name in shared),
        labels=[name for name in values if name not in shared],
        metrics=[(name, units[name]) for name in metric_names(rows)],
        noted=any(row.note for row in rows),
    )


def number(value: float) -> str:
    """Returns a value with four digits that count, thousands apart."""
    rounded = float(f"{value:.4g}")
    if abs(rounded) >= 1000:
        return f"{rounded:,.0f}"
    return f"{rounded:.4g}" if rounded == 0 or abs(rounded) >= 0.001 else f"{rounded:.2e}"


def cell(metric: Metric | None) -> str:
    """Returns a metric's median and spread; nothing where it was not measured."""
    if metric is None:
        return ""
    if len(metric.values) == 1:
        return number(metric.median)
    return f"{number(metric.median)} ±{metric.spread / 2:.0%}"


def _table(rows: Sequence[Row]) -> Table:
    heads = headings(rows)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=heads.caption or None, title_justify="left")
    for name in heads.labels:
        _add_column(table, name, [shown(row.labels[name]) for row in rows], "left")
    for name, unit in heads.metrics:
        heading = name if unit in ("", name) else f"{name}\n{unit}"
        _add_column(table, heading, [cell(row.metrics.get(name)) for row in rows], "right")
    if heads.noted:
        table.add_column("", overflow="fold")
    for row in rows:
        cells = [shown(row.labels[name]) for name in heads.labels]
        cells += [cell(row.metrics.get(name)) for name, _ in heads.metrics]
        table.add_row(*cells, *([row.note] if heads.noted else []))
    return table


def _add_column(table: Table, heading: str, cells: list[str], justify: Literal["left", "right"]) -> None:
    """Adds a column that is never narrower than what is in it."""
    needed = max(map(cell_len, [*heading.split("\n"), *cells]))
    table.add_column(heading, justify=justify, vertical="bottom", min_width=needed)
