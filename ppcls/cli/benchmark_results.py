"""What the commands of ``tools/benchmark.py`` share: where they run, and what becomes of their results."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ppcls.cli.command import write_output
from ppcls.cli.options import positive_float, positive_int, read_config
from ppcls.config.load import dump_config
from ppcls.config.schema import Config
from ppcls.errors import UserError
from ppcls.runtime.start import Runtime

if TYPE_CHECKING:  # else every command would import what one needs
    from ppcls.bench.infer import infer
    from ppcls.bench.results.results import Chart, Results, Row
    from ppcls.bench.train import train


def add_length(made: argparse.ArgumentParser, counted: str, length: infer.Length | train.Length) -> None:
    """Adds how long to measure.

    Args:
        made: Gets the options.
        counted: What is counted: ``steps`` or ``requests``.
        length: Has the defaults.
    """
    made.add_argument("--rounds", type=positive_int, default=length.rounds, help="(%(default)s)")
    made.add_argument(
        "--warm-up", type=positive_int, default=length.warm_up, help=f"{counted} not counted (%(default)s)"
    )
    made.add_argument(f"--{counted}", type=positive_int, help="counted; by default as many as --seconds take")
    made.add_argument("--seconds", type=positive_float, default=length.seconds, help="counted (%(default)s)")
    made.add_argument(
        "--timeout",
        type=positive_float,
        default=length.timeout,
        help="seconds for one measurement (%(default)s)",
    )


def add_out(made: argparse.ArgumentParser) -> None:
    """Adds ``--out``, which `claim_out` checks and `finish` fills."""
    made.add_argument(
        "--out", type=Path, metavar="FOLDER", help="also write results.json, .csv, plots and index.html"
    )


def claim_out(arguments: argparse.Namespace) -> None:
    """Shows, before anything is measured, that the results can be written.

    Raises:
        UserError: The folder holds results already, or is none, or can't be made or written.
    """
    out: Path | None = arguments.out
    if out is None:
        return
    from ppcls.api import create_output_dir
    from ppcls.bench.results.results import JSON

    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: is a file, expected a folder")
    if (out / JSON).exists():
        raise UserError(f"--out {out}: holds a benchmark's results already; name another folder")
    create_output_dir(out, "name another one with --out")


def start(arguments: argparse.Namespace) -> tuple[Config, Runtime] | None:
    """Reads the config and settles where it runs, which is said; None where it was only to be printed."""
    config = read_config(arguments)
    if config is None:
        return None
    from ppcls.runtime import start as runtime

    run = runtime.start(config.Global)
    write_output(run.describe() + "\n")
    return config, run


def made_results(
    benchmark: str,
    config: Config,
    run: Runtime,
    rows: Sequence[Row],
    charts: Sequence[Chart] = (),
    findings: Sequence[str] = (),
) -> Results:
    """Returns results of this process's command; arguments as in `ppcls.bench.results.results.Results`."""
    from ppcls.bench.results.results import results_of

    return results_of(benchmark, sys.argv, run, dump_config(config), rows, charts, findings)


def keep(arguments: argparse.Namespace, results: Results) -> None:
    """Writes what is known by now where ``--out`` says, so that nothing is lost should the rest fail."""
    if arguments.out is not None:
        from ppcls.bench.results.results import write_results

        write_results(arguments.out, results)


def finish(arguments: argparse.Namespace, results: Results, *, shown: bool = True) -> None:
    """Shows results on the terminal, and writes them where ``--out`` says.

    Args:
        arguments: With ``out``.
        results: Of any benchmark.
        shown: Whether to show them; else they are only written.
    """
    if arguments.out is not None:
        from ppcls.bench.results.page import PAGE, publish

        publish(arguments.out, results)
    if shown:
        from ppcls.bench.results.table import render

        write_output(render(results, terminal_width()))
    if arguments.out is not None:
        write_output(f"written to {arguments.out}; open {arguments.out / PAGE} in a browser\n")


def terminal_width() -> int | None:
    """Returns the terminal's columns; None where there is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
