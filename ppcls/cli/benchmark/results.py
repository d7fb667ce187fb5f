"""Shared parts of the commands of ``tools/benchmark.py``: options, flow, and results."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ppcls.bench.measure.runner import Candidate, Effort, Key, Measurements, run_rounds
from ppcls.bench.results.schema import JSON, Results, new_results, write_results
from ppcls.cli.command import write_output
from ppcls.cli.options import positive_float, positive_int, read_config
from ppcls.config.load import dump_config
from ppcls.config.schema import Config
from ppcls.errors import UserError
from ppcls.files import create_output_dir, write_text
from ppcls.runtime.start import Runtime


def add_effort(parser: argparse.ArgumentParser, counted: str, default: Effort) -> None:
    """Adds the options for the number and duration of measurements.

    Args:
        parser: Parser of the command.
        counted: ``steps`` or ``requests``.
        default: Default values.
    """
    parser.add_argument(
        "--rounds",
        type=positive_int,
        default=default.rounds,
        help="measurements of each candidate (%(default)s)",
    )
    parser.add_argument(
        "--warm-up",
        type=positive_int,
        default=default.warm_up,
        help=f"number of {counted} before the measurement starts (%(default)s)",
    )
    parser.add_argument(
        f"--{counted}",
        dest="counted",
        type=positive_int,
        metavar="N",
        help=f"number of measured {counted}; by default as many as fit into --seconds",
    )
    parser.add_argument(
        "--seconds",
        type=positive_float,
        default=default.seconds,
        help="duration of a measurement in seconds (%(default)s)",
    )
    parser.add_argument(
        "--timeout",
        type=positive_float,
        default=default.timeout,
        help="time limit of one measurement in seconds (%(default)s)",
    )


def read_effort(arguments: argparse.Namespace) -> Effort:
    """Returns the values of the options of `add_effort`."""
    names = ("rounds", "warm_up", "counted", "seconds", "timeout")
    return Effort(**{name: getattr(arguments, name) for name in names})


def add_out(parser: argparse.ArgumentParser) -> None:
    """Adds ``--out``, which `check_out` checks and `finish` fills."""
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="also write results.txt, .json, .csv and pictures"
    )


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


def start(arguments: argparse.Namespace) -> tuple[Config, Runtime] | None:
    """Reads the config and starts the runtime, which is reported; None if the config was only printed."""
    config = read_config(arguments)
    if config is None:
        return None
    from ppcls.runtime import start as runtime

    run = runtime.start(config.Global)
    write_output(run.describe() + "\n")
    return config, run


def empty_results(benchmark: str, config: Config, run: Runtime) -> Results:
    """Returns results without rows, measured in this process."""
    from ppcls.report.environment import read_hardware, read_versions

    return new_results(benchmark, dump_config(config), read_hardware(run), read_versions())


def measure_and_report(
    arguments: argparse.Namespace,
    candidates: Sequence[Candidate[Key]],
    rounds: int,
    make_results: Callable[[list[Measurements[Key]]], Results],
) -> None:
    """Measures candidates, prints the results, and writes them to the folder of ``--out``.

    Args:
        arguments: Arguments with ``out``.
        candidates: Candidates.
        rounds: Number of rounds.
        make_results: Returns results from measurements; also called after each round.

    Raises:
        KeyboardInterrupt: Measuring was interrupted; what was measured before is written.
    """
    finished = run_rounds(
        candidates, rounds, report, lambda measured: keep(arguments, make_results(measured))
    )
    finish(arguments, make_results(finished.measured))
    if finished.interrupt is not None:
        raise finished.interrupt


def report(line: str) -> None:
    """Prints a line about progress."""
    write_output(f"{line}\n")


def keep(arguments: argparse.Namespace, results: Results) -> None:
    """Writes the results so far to the folder of ``--out``, so that they survive a failure."""
    if arguments.out is not None:
        write_results(arguments.out, results)


def finish(arguments: argparse.Namespace, results: Results) -> None:
    """Prints results, and writes them with pictures to the folder of ``--out``."""
    from ppcls.bench.results.charts import draw_pictures
    from ppcls.bench.results.tables import render_results

    out: Path | None = arguments.out
    if out is not None:
        write_results(out, results)
        write_text(out / "results.txt", render_results(results))
        draw_pictures(out, results)
    write_output(render_results(results, terminal_width()))
    if out is not None:
        write_output(f"written to {out}\n")


def terminal_width() -> int | None:
    """Returns the terminal's columns; None without a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
