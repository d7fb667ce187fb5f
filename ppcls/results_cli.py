"""Where a benchmark's results go: the terminal, and the folder of ``--out``."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from pathlib import Path

from ppcls.bench.results import Results, write_results
from ppcls.bench.table import render
from ppcls.cli import claim_output, say


def add_out(made: argparse.ArgumentParser) -> None:
    """Adds ``--out``."""
    made.add_argument("--out", metavar="FOLDER", help="write JSON, CSV, charts and a page into FOLDER")


class Output:
    """Where results go.

    Args:
        arguments: With ``out``.

    Raises:
        UserError: The folder can't be written.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._folder = claim_output(Path(arguments.out), "name another --out") if arguments.out else None

    def keep(self, results: Results) -> None:
        """Writes what is known by now, so that nothing is lost should the rest fail."""
        if self._folder is not None:
            write_results(self._folder, results)

    def finish(self, results: Results) -> None:
        """Shows and writes all."""
        say(render(results, terminal_width()))
        if self._folder is not None:
            from ppcls.bench.page import PAGE, publish

            publish(self._folder, results)
            say(f"all is in {self._folder}; to look at: {self._folder / PAGE}\n")


def terminal_width() -> int | None:
    """Returns the terminal's columns; None where there is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def whole(text: str, least: int = 0) -> int:
    """Reads a whole number of ``least`` or more."""
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < least:
        raise argparse.ArgumentTypeError(f"expected a whole number, {least} or more, got '{text}'")
    return int(text)


def at_least_one(text: str) -> int:
    """Reads a whole number of 1 or more."""
    return whole(text, 1)


def above_zero(text: str) -> float:
    """Reads a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, got '{text}'")
    return value
