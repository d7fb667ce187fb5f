"""Options, measurement and output that the subcommands of ``ppcls benchmark`` share."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ppcls.bench.measure.runner import Candidate, Effort, find_conclusions, run_rounds
from ppcls.bench.results.schema import JSON, ResultRow, Results, write_results
from ppcls.cli.command import write_output
from ppcls.errors import UserError
from ppcls.files import create_output_dir, write_text


def read_effort(arguments: argparse.Namespace) -> Effort:
    """Returns the values of the options that `add_effort` adds."""
    names = ("rounds", "warm_up", "counted", "seconds", "timeout")
    return Effort(**{name: getattr(arguments, name) for name in names})


def check_out(arguments: argparse.Namespace) -> None:
    """Checks, before anything is measured, that the results can be written to the ``--out`` folder.

    Raises:
        UserError: The folder contains results, is a file, or cannot be created or written.
    """
    out: Path | None = arguments.out
    if out is None:
        return
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: expected a folder, found a file")
    if (out / JSON).exists():
        raise UserError(f"--out {out}: already contains benchmark results; choose another folder")
    create_output_dir(out, "choose another folder with --out")


def measure_and_report(
    arguments: argparse.Namespace,
    empty: Results,
    candidates: Sequence[Candidate[Any]],
    conclude: Callable[[], Iterable[str]] = tuple,
    make_rows: Callable[[], Iterable[ResultRow]] | None = None,
) -> None:
    """Measures candidates, prints the results, and writes them to the ``--out`` folder.

    Args:
        arguments: Parsed arguments, of which ``out`` and ``rounds`` are used.
        empty: Results without rows.
        candidates: Candidates to measure.
        conclude: Function that returns conclusions for the results, in addition to those of
            `find_conclusions`.
        make_rows: Function that returns the rows of the results. It is called after each round and at the
            end. None for one row per candidate.

    Raises:
        KeyboardInterrupt: The measurement was interrupted. The results so far are printed and written first.
        UserError: Nothing could be measured. The results with the reasons are printed and written first.
    """

    def make_results() -> Results:
        rows = [each.row() for each in candidates] if make_rows is None else make_rows()
        return empty.filled(rows, [*find_conclusions(candidates), *conclude()])

    interrupt = run_rounds(candidates, arguments.rounds, report, lambda: keep(arguments, make_results()))
    finish(arguments, make_results(), interrupt)
    if not any(candidate.samples for candidate in candidates):
        raise UserError("there are no measurements; the table above gives the reason for each row")


def report(line: str) -> None:
    """Prints a line about progress."""
    write_output(f"{line}\n")


def keep(arguments: argparse.Namespace, results: Results) -> None:
    """Writes the results so far to the ``--out`` folder, so that a later failure does not lose them."""
    if arguments.out is not None:
        write_results(arguments.out, results)


def finish(
    arguments: argparse.Namespace, results: Results, interrupt: KeyboardInterrupt | None = None
) -> None:
    """Prints results, and writes them and their charts to the ``--out`` folder.

    Raises:
        KeyboardInterrupt: ``interrupt``, if it is not None, after everything is written.
    """
    from ppcls.bench.results.charts import draw_pictures
    from ppcls.bench.results.tables import render_results

    out: Path | None = arguments.out
    keep(arguments, results)
    if out is not None:
        write_text(out / "results.txt", render_results(results))
        draw_pictures(out, results)
    write_output(render_results(results, terminal_width()))
    if out is not None:
        report(f"results written to {out}")
    if interrupt is not None:
        raise interrupt


def terminal_width() -> int | None:
    """Returns the number of columns of the terminal, or None if standard output is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
