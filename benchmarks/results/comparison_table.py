"""Formats the comparison of two results as a table of text."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from benchmarks.results.chart_data import with_unit
from benchmarks.results.compare import CONFIDENCE, MetricComparison, ResultsComparison
from ppcls.bench.results.schema import ResultRow, label_text, varied_labels
from ppcls.bench.results.tables import NO_TERMINAL, console, number, print_lines, stripped
from ppcls.report.summary.rounding import format_range, format_rounded


def render_comparison(comparison: ResultsComparison, names: tuple[str, str], width: int | None = None) -> str:
    """Returns the text of warnings, a table of ratios, and a list of the rows that only one result has."""
    target, text = console(width or NO_TERMINAL)
    warnings = [f"warning: {warning}" for warning in comparison.warnings]
    print_lines(target, [f"A: {names[0]}", f"B: {names[1]}", *warnings])
    if comparison.rows:
        target.print(_comparison_table(comparison))
    sides = zip("AB", comparison.only, strict=True)
    only = [f"only in {side}: {_row_name(row, list(row.labels))}" for side, rows in sides for row in rows]
    print_lines(target, [*only, *_comparison_legend(comparison)])
    return stripped(text)


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
    interval = (ratio.value, ratio.low, ratio.high)
    spread = format_range(*interval) if ratio.known else "one round"
    return [name, *medians, format_rounded(*interval), spread, compared.verdict]


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
        f"{CONFIDENCE:.0%} confidence interval contains 1 (Welch's t-test of the logarithms). A row is "
        "too noisy if this is true although the ratio is far from 1; measure more rounds.",
        f"{apart} of {len(known)} ratios differ by more than noise. If nothing changed, about one in "
        f"{round(1 / (1 - CONFIDENCE))} would do so by chance.",
    ]
