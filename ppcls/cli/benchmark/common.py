"""Options, measurement and output that the subcommands of ``ppcls benchmark`` share."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppcls.cli.arguments.options import option
from ppcls.cli.command import write_output, write_status
from ppcls.errors import UserError

if TYPE_CHECKING:  # not needed for --help
    from ppcls.bench.measure.runner import Candidate, Effort
    from ppcls.bench.results.schema import ResultRow, Results


@dataclass(frozen=True, kw_only=True)
class EffortOptions:
    """Options for the number and duration of measurements; see `Effort`."""

    rounds: int = option(3, "number of rounds; each round measures every variant once", gt=0)
    warm_up: int = option(5, "number of steps before the measurement starts", gt=0)
    seconds: float = option(5.0, "duration of one measurement in seconds", gt=0)
    timeout: float = option(900.0, "time limit of one measurement in seconds", gt=0)

    def effort(self, counted: int | None) -> Effort:
        """Returns the effort, with the number of steps or requests per measurement."""
        from ppcls.bench.measure.runner import Effort

        return Effort(self.rounds, self.warm_up, counted, self.seconds, self.timeout)


def out_option() -> Path | None:
    """Returns the field of ``--out``."""
    return option(
        None,
        "folder for results.txt, results.json and results.csv (default: only print the results)",
        metavar="FOLDER",
    )


def check_out(out: Path | None) -> None:
    """Checks, before anything is measured, that the results can be written to the ``--out`` folder.

    Raises:
        UserError: The folder contains files, is a file, or cannot be created or written.
    """
    from ppcls.files import create_output_dir

    if out is None:
        return
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: expected a folder, found a file")
    create_output_dir(out, "choose another folder with --out")
    if (first := next(out.iterdir(), None)) is not None:
        raise UserError(
            f"--out {out}: expected a new or an empty folder, found {first.name}; choose another folder"
        )


def measure_and_report(
    out: Path | None,
    rounds: int,
    empty: Results,
    candidates: Sequence[Candidate[Any]],
    conclude: Callable[[], Iterable[str]] = tuple,
    make_rows: Callable[[], Iterable[ResultRow]] | None = None,
) -> None:
    """Measures candidates, prints the results, and writes them to the ``--out`` folder.

    Args:
        out: Folder for the results; None to print them only.
        rounds: Number of measurements of each candidate.
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
    from ppcls.bench.measure.runner import find_conclusions, run_rounds

    def make_results() -> Results:
        rows = [each.row() for each in candidates] if make_rows is None else make_rows()
        return empty.filled(rows, [*find_conclusions(candidates), *conclude()])

    interrupt = run_rounds(candidates, rounds, report, lambda: keep(out, make_results()))
    finish(out, make_results(), interrupt)
    if not any(candidate.samples for candidate in candidates):
        raise UserError("there are no measurements; the table above gives the reason for each row")


def report(line: str) -> None:
    """Prints a line about progress."""
    write_status(line)


def keep(out: Path | None, results: Results) -> None:
    """Writes the results so far to the ``--out`` folder, so that a later failure does not lose them."""
    from ppcls.bench.results.schema import write_results

    if out is not None:
        write_results(out, results)


def finish(out: Path | None, results: Results, interrupt: KeyboardInterrupt | None = None) -> None:
    """Prints results, and writes them to the ``--out`` folder.

    Raises:
        KeyboardInterrupt: ``interrupt``, if it is not None, after everything is written.
    """
    from ppcls.bench.results.tables import describe_source, render_results
    from ppcls.files import write_text

    keep(out, results)
    if out is not None:
        write_text(out / "results.txt", f"{describe_source(results)}\n{render_results(results)}")
    write_output(render_results(results, terminal_width()))
    if out is not None:
        report(f"results written to {out}")
    if interrupt is not None:
        raise interrupt


def terminal_width() -> int | None:
    """Returns the number of columns of the terminal, or None if standard output is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
