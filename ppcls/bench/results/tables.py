"""Formats the results of a benchmark as tables of text."""

from __future__ import annotations

import io
import shlex
from collections.abc import Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from ppcls.bench.results.facts import describe_facts
from ppcls.bench.results.schema import Quantity, ResultRow, Results, kinds_of_rows, label_text, varied_labels
from ppcls.report.summary.rounding import format_ratio_with_range

# columns
NO_TERMINAL = 200
_WIDEST = 10_000
LEGEND = (
    "Values are medians over the rounds; ± is half of their range, relative to the median. Parentheses "
    "contain the range of a ratio or a percentage."
)


def render_results(results: Results, width: int | None = None) -> str:
    """Returns the text of one table per kind of rows, and the findings. Text is never truncated.

    Args:
        results: Results of any benchmark.
        width: Width of the terminal in columns, to which notes are wrapped; None without a terminal.
    """
    target, text = console(_WIDEST)
    for rows in kinds_of_rows(results.rows):
        table = _results_table(rows)
        needed = Measurement.get(target, target.options, table)
        table.width = min(max(width or NO_TERMINAL, needed.minimum), needed.maximum)
        target.print(table)
    several = any(len(metric.values) > 1 for row in results.rows for metric in row.metrics.values())
    print_lines(target, [*([LEGEND] if several else []), *results.findings])
    return stripped(text)


def describe_source(results: Results) -> str:
    """Returns lines that name the facts, date, command, machine and versions of results."""
    lines = [
        *describe_facts(results),
        f"date: {results.written}",
        f"command: {shlex.join(results.command)}",
        *(f"{name}: {value}" for name, value in results.machine.items()),
        f"versions: {', '.join(f'{name} {version}' for name, version in results.versions.items())}",
        f"config: {results.subject or 'not named'}; complete in results.json",
    ]
    return "\n".join(lines) + "\n"


def console(width: int) -> tuple[Console, io.StringIO]:
    """Returns a console of this width in columns, and the text that it prints."""
    text = io.StringIO()
    return Console(file=text, width=width, highlight=False, markup=False, emoji=False), text


def print_lines(target: Console, lines: Sequence[str]) -> None:
    """Prints lines, which are not wrapped."""
    for line in lines:
        target.print(line, soft_wrap=True)


def stripped(text: io.StringIO) -> str:
    """Returns printed text without spaces at the ends of lines."""
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def number(value: float) -> str:
    """Returns a value with four significant digits and thousands separators."""
    rounded = float(f"{value:.4g}")
    if abs(rounded) >= 1000:
        return f"{rounded:,.0f}"
    return f"{rounded:.4g}" if rounded == 0 or abs(rounded) >= 0.001 else f"{rounded:.2e}"


def cell(metric: Quantity | None) -> str:
    """Returns the text of a quantity's median and spread or range; an empty text if it was not measured."""
    if metric is None:
        return ""
    # A spread in per cent of a percentage can be misread, and has no meaning near 0.
    if metric.is_ratio or metric.unit.startswith("%"):
        return format_ratio_with_range(metric.values)
    spread = f" ±{metric.spread / 2:.0%}" if len(metric.values) > 1 else ""
    return number(metric.median) + spread


def _results_table(rows: Sequence[ResultRow]) -> Table:
    """Returns a table of rows with the same labels. Labels with the same value in all rows form its title."""
    labels = varied_labels(rows) if len(rows) > 1 else list(rows[0].labels)
    shared = [name for name in rows[0].labels if name not in labels]
    title = ", ".join(f"{name}: {label_text(rows[0].labels[name])}" for name in shared)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title or None, title_justify="left")
    columns = [(name, [label_text(row.labels[name]) for row in rows]) for name in labels]
    units = {name: metric.unit for row in rows for name, metric in row.metrics.items()}
    for name, unit in units.items():
        heading = name if unit in ("", name) else f"{name}\n{unit}"
        columns.append((heading, [cell(row.metrics.get(name)) for row in rows]))
    for index, (heading, cells) in enumerate(columns):
        needed = max(map(cell_len, [*heading.split("\n"), *cells]))  # never narrower than the contents
        justify = "left" if index < len(labels) else "right"
        table.add_column(heading, justify=justify, vertical="bottom", min_width=needed)  # type: ignore[arg-type]
    if any(row.note for row in rows):
        table.add_column("", overflow="fold")
        columns.append(("", [row.note for row in rows]))
    for line in zip(*(cells for _, cells in columns), strict=True):
        table.add_row(*line)
    return table
