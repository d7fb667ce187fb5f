"""Shared parts of the commands of ``ppcls benchmark``: options, flow, and results."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ppcls.bench.measure.runner import Candidate, Effort, Key, Measurements, find_conclusions, run_rounds
from ppcls.bench.results.schema import JSON, ResultRow, Results, write_results
from ppcls.cli.command import write_output
from ppcls.cli.options import positive_float, positive_int
from ppcls.errors import UserError
from ppcls.files import create_output_dir, write_text


def add_numbers(
    parser: argparse._ActionsContainer,
    option: str,
    text: str,
    default: Sequence[int] | None = None,
    kind: Callable[[str], int] = positive_int,
) -> None:
    """Adds an option for several numbers; duplicates count once."""
    parser.add_argument(option, nargs="+", type=kind, default=default, metavar="N", help=text)


def add_effort(parser: argparse.ArgumentParser, counted: str, default: Effort) -> None:
    """Adds the options for the number and duration of measurements.

    Args:
        parser: Parser of the command.
        counted: ``steps`` or ``requests``.
        default: Default values.
    """
    for option, kind, value, text in (
        ("--rounds", positive_int, default.rounds, "measurements of each candidate"),
        ("--warm-up", positive_int, default.warm_up, f"number of {counted} before the measurement starts"),
        ("--seconds", positive_float, default.seconds, "duration of a measurement in seconds"),
        ("--timeout", positive_float, default.timeout, "time limit of one measurement in seconds"),
    ):
        parser.add_argument(option, type=kind, default=value, help=f"{text} (%(default)s)")
    text = f"number of measured {counted}; by default as many as fit into --seconds"
    parser.add_argument(f"--{counted}", dest="counted", type=positive_int, metavar="N", help=text)


def read_effort(arguments: argparse.Namespace) -> Effort:
    """Returns the values of the options of `add_effort`."""
    names = ("rounds", "warm_up", "counted", "seconds", "timeout")
    return Effort(**{name: getattr(arguments, name) for name in names})


def add_out(parser: argparse.ArgumentParser, measure: Callable[[argparse.Namespace], None]) -> None:
    """Adds ``--out``, which `check_out` checks and `finish` fills, and sets the command's function."""
    text = "also write results.txt, .json, .csv and pictures"
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=text)
    parser.set_defaults(measure=measure)


def check_out(arguments: argparse.Namespace) -> None:
    """Checks that the results can be written, before anything is measured.

    Raises:
        UserError: The folder already has results, is not a folder, or cannot be created or written.
    """
    out: Path | None = arguments.out
    if out is None:
        return
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: expected a folder, found a file")
    if (out / JSON).exists():
        raise UserError(f"--out {out}: already has the results of a benchmark; name another folder")
    create_output_dir(out, "name another one with --out")


def make_default_rows(measured: Sequence[Measurements[Key]]) -> list[ResultRow]:
    """Returns one row per candidate."""
    return [each.row() for each in measured]


def measure_and_report(
    arguments: argparse.Namespace,
    empty: Results,
    candidates: Sequence[Candidate[Key]],
    conclude: Callable[[list[Measurements[Key]]], Iterable[str]] = lambda _: (),
    make_rows: Callable[[list[Measurements[Key]]], Iterable[ResultRow]] = make_default_rows,
) -> None:
    """Measures candidates, prints the results, and writes them to the folder of ``--out``.

    Args:
        arguments: Arguments with ``out`` and ``rounds``.
        empty: Results without rows.
        candidates: Candidates.
        conclude: Returns the benchmark's own conclusions.
        make_rows: Returns rows from measurements; also called after each round.

    Raises:
        KeyboardInterrupt: Measuring was interrupted; what was measured before is written.
    """

    def make_results(measured: list[Measurements[Key]]) -> Results:
        return empty.filled(make_rows(measured), [*find_conclusions(measured), *conclude(measured)])

    finished = run_rounds(
        candidates, arguments.rounds, report, lambda measured: keep(arguments, make_results(measured))
    )
    finish(arguments, make_results(finished.measured), finished.interrupt)


def report(line: str) -> None:
    """Prints a line about progress."""
    write_output(f"{line}\n")


def keep(arguments: argparse.Namespace, results: Results) -> None:
    """Writes the results so far to the folder of ``--out``, so that they survive a failure."""
    if arguments.out is not None:
        write_results(arguments.out, results)


def finish(
    arguments: argparse.Namespace, results: Results, interrupt: KeyboardInterrupt | None = None
) -> None:
    """Prints results, and writes them with pictures to the folder of ``--out``; then raises an interrupt."""
    from ppcls.bench.results.charts import draw_pictures
    from ppcls.bench.results.tables import render_results

    out: Path | None = arguments.out
    if out is not None:
        write_results(out, results)
        write_text(out / "results.txt", render_results(results))
        draw_pictures(out, results)
    write_output(render_results(results, terminal_width()))
    if out is not None:
        report(f"written to {out}")
    if interrupt is not None:
        raise interrupt


def terminal_width() -> int | None:
    """Returns the terminal's columns; None without a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
