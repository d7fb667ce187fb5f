"""A benchmark's results on the terminal."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from ppcls.bench.charts import shown
from ppcls.bench.results import Metric, Results, Row, label_names, metric_names

_NO_TERMINAL = 200  # columns
LEGEND = "medians; ± is half the range over the rounds, as a share of the median"


def render(results: Results, width: int | None = None) -> str:
    """Returns the tables, one for each kind of rows, and the findings.

    Args:
        results: Of any benchmark.
        width: Of the terminal; None where there is none.
    """
    text = io.StringIO()
    console = Console(file=text, width=width or _NO_TERMINAL, highlight=False, markup=False, emoji=False)
    for rows in kinds_of_rows(results.rows):
        console.print(_table(rows))
    if any(len(metric.values) > 1 for row in results.rows for metric in row.metrics.values()):
        console.print(LEGEND)
    for finding in results.findings:
        console.print(finding, soft_wrap=True)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def kinds_of_rows(rows: Sequence[Row]) -> list[list[Row]]:
    """Returns the rows by the names of their labels, in the order in which these first come."""
    kinds: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        kinds.setdefault(tuple(row.labels), []).append(row)
    return list(kinds.values())


def headings(rows: Sequence[Row]) -> tuple[list[str], list[str], bool]:
    """Returns the names of labels and metrics of rows, and whether any has a note."""
    return label_names(rows), metric_names(rows), any(row.note for row in rows)


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
    labels, metrics, noted = headings(rows)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in labels:
        table.add_column(name, vertical="bottom")
    units = {name: metric.unit for row in rows for name, metric in row.metrics.items()}
    for name in metrics:
        heading = f"{name}\n{units[name]}" if units[name] else name
        table.add_column(heading, justify="right", vertical="bottom")
    if noted:
        table.add_column("", overflow="fold")
    for row in rows:
        cells = [shown(row.labels[name]) for name in labels]
        cells += [cell(row.metrics.get(name)) for name in metrics]
        table.add_row(*cells, *([row.note] if noted else []))
    return table
