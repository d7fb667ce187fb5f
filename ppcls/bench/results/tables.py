"""Formats the results of a benchmark, or the comparison of two results, as tables of text."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from ppcls.bench.results.charts import with_unit
from ppcls.bench.results.compare import CONFIDENCE, MetricComparison, ResultsComparison
from ppcls.bench.results.schema import Quantity, ResultRow, Results, kinds_of_rows, label_text, varied_labels

# columns
_NO_TERMINAL = 200
_WIDEST = 10_000
LEGEND = "Values are medians over the rounds; ± is half of their range, relative to the median."


def render_results(results: Results, width: int | None = None) -> str:
    """Returns the text of one table per kind of rows, and the findings. Text is never truncated.

    Args:
        results: Results of any benchmark.
        width: Width of the terminal in columns, to which notes are wrapped; None without a terminal.
    """
    console, text = _console(_WIDEST)
    for rows in kinds_of_rows(results.rows):
        table = _results_table(rows)
        needed = Measurement.get(console, console.options, table)
        table.width = min(max(width or _NO_TERMINAL, needed.minimum), needed.maximum)
        console.print(table)
    several = any(len(metric.values) > 1 for row in results.rows for metric in row.metrics.values())
    _print_lines(console, [*([LEGEND] if several else []), *results.findings])
    return _stripped(text)


def render_comparison(comparison: ResultsComparison, names: tuple[str, str], width: int | None = None) -> str:
    """Returns the text of warnings, a table of ratios, and a list of the rows that only one result has."""
    console, text = _console(width or _NO_TERMINAL)
    warnings = [f"warning: {warning}" for warning in comparison.warnings]
    _print_lines(console, [f"A: {names[0]}", f"B: {names[1]}", *warnings])
    if comparison.rows:
        console.print(_comparison_table(comparison))
    sides = zip("AB", comparison.only, strict=True)
    only = [f"only in {side}: {_row_name(row, list(row.labels))}" for side, rows in sides for row in rows]
    _print_lines(console, [*only, *_comparison_legend(comparison)])
    return _stripped(text)


def _console(width: int) -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, width=width, highlight=False, markup=False, emoji=False), text


def _print_lines(console: Console, lines: Sequence[str]) -> None:
    for line in lines:
        console.print(line, soft_wrap=True)


def _stripped(text: io.StringIO) -> str:
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def number(value: float) -> str:
    """Returns a value with four significant digits and thousands separators."""
    rounded = float(f"{value:.4g}")
    if abs(rounded) >= 1000:
        return f"{rounded:,.0f}"
    return f"{rounded:.4g}" if rounded == 0 or abs(rounded) >= 0.001 else f"{rounded:.2e}"


def cell(metric: Quantity | None) -> str:
    """Returns the text of a quantity's median and spread; an empty text if it was not measured."""
    if metric is None:
        return ""
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


def _comparison_table(comparison: ResultsComparison) -> Table:
    varied = varied_labels([row for row, _ in comparison.rows])
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("row", "metric"):
        table.add_column(heading, vertical="top", overflow="fold")
    for heading in ("A", "B", "B / A", f"{CONFIDENCE:.0%} interval"):
        table.add_column(heading, justify="right")
    table.add_column("", overflow="fold")
    for row, metrics in comparison.rows:
        name = _row_name(row, varied)
        if not metrics:
            table.add_row(name, "no common metric")
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


def _row_name(row: ResultRow, names: Sequence[str]) -> str:
    chosen = {name: value for name, value in row.labels.items() if name in names} or row.labels
    return ", ".join(f"{name} {label_text(value)}" for name, value in chosen.items())


def _comparison_legend(comparison: ResultsComparison) -> list[str]:
    if not comparison.rows:
        return ["Nothing to compare: no row is in both results."]
    ratios = [metric.ratio for _, metrics in comparison.rows for metric in metrics]
    known = [ratio for ratio in ratios if ratio is not None and ratio.known]
    if not known:
        return ["The noise is unknown: measure at least two rounds on both sides."]
    apart = sum(not ratio.within_noise for ratio in known)
    return [
        "A and B are medians; B / A is the ratio of the geometric means. A difference is within noise if the "
        f"{CONFIDENCE:.0%} confidence interval contains 1 (Welch's t-test of the logarithms).",
        f"{apart} of {len(known)} ratios differ by more than noise. If nothing changed, about one in "
        f"{round(1 / (1 - CONFIDENCE))} would do so by chance.",
    ]
