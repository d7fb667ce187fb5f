"""``python benchmarks/run.py compare`` and ``charts``: compare two results, and draw charts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from ppcls.cli.arguments.options import argument, option
from ppcls.cli.benchmark.common import terminal_width
from ppcls.cli.command import command, write_output


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Compare two results, and show which differences are within the noise.

    Prints the ratio B / A and its confidence interval for each row that is in both results.
    """

    examples: ClassVar[Sequence[str]] = (
        "python benchmarks/run.py compare before after",
        "python benchmarks/run.py compare before/results.json after/results.json",
    )

    first: Path = argument("first result: results.json, or the folder that contains it", metavar="A")
    second: Path = argument("second result: results.json, or the folder that contains it", metavar="B")


@dataclass(frozen=True, kw_only=True)
class ChartsOptions:
    """Draw charts of results, which ppcls benchmark writes without charts."""

    examples: ClassVar[Sequence[str]] = (
        "python benchmarks/run.py charts tour",
        "python benchmarks/run.py charts tour --format svg",
    )

    folder: Path = argument("folder that contains results.json; the charts are written to it")
    format: Literal["png", "svg"] = option("png", "format of the charts")


@command("compare", CompareOptions)
def compare(options: CompareOptions) -> None:
    """Prints the ratios of two results."""
    from benchmarks.results.compare import compare_results
    from benchmarks.results.comparison_table import render_comparison
    from ppcls.bench.results.schema import read_results

    comparison = compare_results(read_results(options.first), read_results(options.second))
    names = (str(options.first), str(options.second))
    write_output(render_comparison(comparison, names, terminal_width()))


@command("charts", ChartsOptions)
def draw_charts(options: ChartsOptions) -> None:
    """Draws the charts of results."""
    from benchmarks.results.charts import draw_pictures
    from ppcls.bench.results.schema import read_results

    draw_pictures(options.folder, read_results(options.folder), options.format)
    write_output(f"charts written to {options.folder}\n")
