"""Tables on the terminal: a benchmark's results, and a comparison of two results."""

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

from ppcls.bench.results.charts import label_text, with_unit
from ppcls.bench.results.compare import CONFIDENCE, MetricComparison, ResultsComparison
from ppcls.bench.results.schema import Quantity, ResultRow, Results, label_names, metric_names

_NO_TERMINAL, _WIDEST = 200, 10_000  # columns
LEGEND = "medians; ± is half the range over the rounds, as a share of the median"


def render_results(results: Results, width: int | None = None) -> str:
    """Returns one table per kind of rows, and the findings.

    Args:
        results: Results of any benchmark.
        width: Columns of the terminal, to which notes are folded; None without one. Nothing is cut off.
    """
    console, text = _console(_WIDEST)
    for rows in kinds_of_rows(results.rows):
        table = _results_table(rows)
        needed = Measurement.get(console, console.options, table)
        table.width = min(max(width or _NO_TERMINAL, needed.minimum), needed.maximum)
        console.print(table)
    if any(len(metric.values) > 1 for row in results.rows for metric in row.metrics.values()):
        console.print(LEGEND, soft_wrap=True)
    for finding in results.findings:
        console.print(finding, soft_wrap=True)
    return _stripped(text)


def render_comparison(comparison: ResultsComparison, names: tuple[str, str], width: int | None = None) -> str:
    """Returns warnings, a table, and the rows that only one side has.

    Args:
        comparison: Comparison to show.
        names: Names of the two sides.
        width: Columns of the terminal; None without one.
    """
    console, text = _console(width or _NO_TERMINAL)
    console.print(f"A: {names[0]}\nB: {names[1]}", soft_wrap=True)
    for warning in comparison.warnings:
        console.print(f"warning: {warning}", soft_wrap=True)
    if comparison.rows:
        console.print(_comparison_table(comparison))
    for side, rows in zip("AB", comparison.only, strict=True):
        for row in rows:
            console.print(f"only in {side}: {_row_name(row)}", soft_wrap=True)
    for line in _comparison_legend(comparison):
        console.print(line, soft_wrap=True)
    return _stripped(text)


def _console(width: int) -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, width=width, highlight=False, markup=False, emoji=False), text


def _stripped(text: io.StringIO) -> str:
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def kinds_of_rows(rows: Sequence[ResultRow]) -> list[list[ResultRow]]:
    """Returns the rows grouped by the names of their labels, in order of first appearance."""
    kinds: dict[tuple[str, ...], list[ResultRow]] = {}
    for row in rows:
        kinds.setdefault(tuple(row.labels), []).append(row)
    return list(kinds.values())


@dataclass(frozen=True)
class Headings:
    """Headings of a table of rows.

    Attributes:
        caption: Labels that all rows share, with their values.
        labels: Names of the other labels.
        metrics: Names and units of the metrics.
        noted: Whether any row has a note.
    """

    caption: str
    labels: list[str]
    metrics: list[tuple[str, str]]
    noted: bool


def headings(rows: Sequence[ResultRow]) -> Headings:
    """Returns the headings of a table of these rows; a single row keeps all its labels."""
    values = {name: {row.labels.get(name) for row in rows} for name in label_names(rows)}
    shared = [name for name, column in values.items() if len(column) == 1 and len(rows) > 1]
    units = {name: metric.unit for row in rows for name, metric in row.metrics.items()}
    return Headings(
        caption=", ".join(f"{name}: {label_text(rows[0].labels[name])}" for name in shared),
        labels=[name for name in values if name not in shared],
        metrics=[(name, units[name]) for name in metric_names(rows)],
        noted=any(row.note for row in rows),
    )


def number(value: float) -> str:
    """Returns a value with four significant digits and thousands separators."""
    rounded = float(f"{value:.4g}")
    if abs(rounded) >= 1000:
        return f"{rounded:,.0f}"
    return f"{rounded:.4g}" if rounded == 0 or abs(rounded) >= 0.001 else f"{rounded:.2e}"


def cell(metric: Quantity | None) -> str:
    """Returns a quantity's median and spread; nothing if it was not measured."""
    if metric is None:
        return ""
    if len(metric.values) == 1:
        return number(metric.median)
    return f"{number(metric.median)} ±{metric.spread / 2:.0%}"


def _results_table(rows: Sequence[ResultRow]) -> Table:
    heads = headings(rows)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=heads.caption or None, title_justify="left")
    for name in heads.labels:
        _add_column(table, name, [label_text(row.labels[name]) for row in rows], "left")
    for name, unit in heads.metrics:
        heading = name if unit in ("", name) else f"{name}\n{unit}"
        _add_column(table, heading, [cell(row.metrics.get(name)) for row in rows], "right")
    if heads.noted:
        table.add_column("", overflow="fold")
    for row in rows:
        cells = [label_text(row.labels[name]) for name in heads.labels]
        cells += [cell(row.metrics.get(name)) for name, _ in heads.metrics]
        table.add_row(*cells, *([row.note] if heads.noted else []))
    return table


def _add_column(table: Table, heading: str, cells: list[str], justify: Literal["left", "right"]) -> None:
    """Adds a column that is never narrower than its contents."""
    needed = max(map(cell_len, [*heading.split("\n"), *cells]))
    table.add_column(heading, justify=justify, vertical="bottom", min_width=needed)


def _comparison_table(comparison: ResultsComparison) -> Table:
    rows = [row for row, _ in comparison.rows]
    varied = {name for name in label_names(rows) if len({row.labels.get(name) for row in rows}) > 1}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("row", "metric"):
        table.add_column(heading, vertical="top", overflow="fold")
    for heading in ("A", "B", "B / A", f"{CONFIDENCE:.0%} range"):
        table.add_column(heading, justify="right")
    table.add_column("", overflow="fold")
    for row, metrics in comparison.rows:
        name = _row_name(row, varied)
        if not metrics:
            table.add_row(name, "no metric in common")
        for metric in metrics:
            table.add_row(name, *_comparison_cells(metric))
            name = ""
    return table


def _comparison_cells(compared: MetricComparison) -> list[str]:
    name = with_unit(compared.name, compared.first.unit)
    medians = [number(side.median) for side in (compared.first, compared.second)]
    ratio = compared.ratio
    if ratio is None:
        return [name, *medians, "", "", compared.verdict]
    spread = f"{ratio.low:.3f} to {ratio.high:.3f}" if ratio.known else "one round"
    return [name, *medians, f"{ratio.value:.3f}", spread, compared.verdict]


def _row_name(row: ResultRow, names: set[str] | None = None) -> str:
    chosen = {name: value for name, value in row.labels.items() if names is None or name in names}
    return ", ".join(f"{name} {label_text(value)}" for name, value in (chosen or row.labels).items())


def _comparison_legend(comparison: ResultsComparison) -> list[str]:
    if not comparison.rows:
        return ["No row is in both: nothing to compare."]
    ratios = [
        metric.ratio for _, metrics in comparison.rows for metric in metrics if metric.ratio is not None
    ]
    known = [ratio for ratio in ratios if ratio.known]
    if not known:
        return ["The spread is unknown: measure at least two rounds on both sides."]
    apart = sum(not ratio.within_noise for ratio in known)
    return [
        "A and B are medians; B / A is a ratio of geometric means. Within noise: the "
        f"{CONFIDENCE:.0%} range contains 1 (Welch's t-test of the logarithms).",
        f"{apart} of {len(known)} differ by more than noise. If nothing changed, about one in "
        f"{round(1 / (1 - CONFIDENCE))} would by chance.",
    ]
