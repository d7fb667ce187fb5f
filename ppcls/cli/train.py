"""The command lines: one function a tool. Each reads ``-c`` and ``-o``, and returns an exit code."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ppcls import api
from ppcls.api import create_output_dir
from ppcls.cli.options import add_override
from ppcls.config.compat import config_warnings
from ppcls.config.load import dump_config, load_config
from ppcls.config.schema import Config
from ppcls.config.sections.objective import MAX_CONFUSION_CLASSES
from ppcls.deploy.models.source import find_weights
from ppcls.engine.core.hooks import read_profile_window
from ppcls.errors import SignalExit, SignalInterrupt, UserError
from ppcls.files import write_text
from ppcls.runtime import session
from ppcls.runtime.launch import read_launch
from ppcls.runtime.signals import interruptible
from ppcls.runtime.start import Runtime

Arguments = Sequence[str] | None
_INTERRUPTED = 130
_NO_READER = 141


def command(function: Callable[[Arguments], None]) -> Callable[[Arguments], int]:
    """Makes a tool's exit code: 0, 128 + a signal's number, or a message and 1 for what the user can mend.

    That is a `UserError`, or what the system refuses, such as a write to a full disk.
    """

    @functools.wraps(function)
    def main(argv: Arguments = None) -> int:
        try:
            function(argv)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)  # noqa: T201
            return error.code
        except OSError as error:
            if error.errno is None:  # Paddle's own errors
                raise
            place = "" if error.filename is None else f"{error.filename}: "
            print(f"error: {place}{error.strerror}", file=sys.stderr)  # noqa: T201
            return 1
        except KeyboardInterrupt as interrupt:
            print("interrupted", file=sys.stderr)  # noqa: T201
            return interrupt.code if isinstance(interrupt, SignalInterrupt) else _INTERRUPTED
        except SignalExit as stopped:
            print(stopped, file=sys.stderr)  # noqa: T201
            return stopped.code
        return 0

    return main


def parser(description: str, model: str | None = None) -> argparse.ArgumentParser:
    """Returns a parser with the options that all tools share.

    Args:
        description: Of the tool.
        model: What its ``--model``, in place of a config, may be; None where it has none.
    """
    made = argparse.ArgumentParser(
        description=description, epilog="docs/config.md has every key of the config."
    )
    add_config(made, model)
    return made


def add_config(made: argparse.ArgumentParser, model: str | None = None) -> None:
    """Adds ``-c`` and ``-o``, which `read_config` reads; and ``--model`` where it may stand for ``-c``."""
    named = made.add_mutually_exclusive_group(required=True) if model is not None else made
    named.add_argument("-c", "--config", required=model is None, help="YAML file")
    if model is not None:
        named.add_argument("--model", metavar="PATH", help=model)
    add_override(made, "set values of the config, such as Global.epochs=10")
    made.add_argument("--print-config", action="store_true", help="print the resolved config and exit")


def read_config(arguments: argparse.Namespace) -> Config | None:
    """Returns the config; None when it was only to be printed."""
    config = load_config(arguments.config, arguments.override)
    if arguments.print_config:
        for line in config_warnings(config):
            print(line, file=sys.stderr)  # noqa: T201
        sys.stdout.write(dump_config(config))
        return None
    return config


@command
def train(argv: Arguments = None) -> None:
    """Trains a model."""
    options = parser("Train an image classifier.")
    instead = options.add_mutually_exclusive_group()
    instead.add_argument(
        "--explain-data", action="store_true", help="show the data pipelines as they are built, and exit"
    )
    instead.add_argument(
        "--dry-run", action="store_true", help="take a few steps, tell what the whole run will take, and exit"
    )
    instead.add_argument(
        "--profile",
        metavar="START:STOP",
        help="trace these steps (from 0, where the run starts or goes on), and tell where their time went",
    )
    arguments = options.parse_args(argv)
    profiled = read_profile_window(arguments.profile) if arguments.profile is not None else None
    config = read_config(arguments)
    if config is None:
        return
    if arguments.dry_run:
        _dry_run(config)
        return
    if not arguments.explain_data:
        api.fit(config, profiled=profiled, own_process=True)
        return
    output_dir = create_output_dir(Path(config.Global.output_dir))
    with session.dedicated(config.Global, output_dir) as run:
        _explain_data(config, run, output_dir / "pipeline.png")


def _dry_run(config: Config) -> None:
    """Tells what the run will take; one process of several does."""
    _check_output(Path(config.Global.output_dir))
    from ppcls.runtime import start as runtime

    run = runtime.start(config.Global)
    from ppcls.engine.dry_run import dry_run

    with interruptible():
        text = dry_run(config, run)
    if run.is_main:
        say(text)


def _explain_data(config: Config, run: Runtime, picture: Path) -> None:
    """Prints the run's data pipelines and draws them; one process of several does."""
    if not run.is_main:
        return
    from ppcls.explain.describe import describe
    from ppcls.explain.picture import draw_descriptions
    from ppcls.explain.table import print_descriptions

    with interruptible():
        described = describe(config, run)
    draw_descriptions(described, picture)
    with to_reader():
        print_descriptions(described, sys.stdout)
        sys.stdout.write(f"drawn as {picture}\n")


@command
def evaluate(argv: Arguments = None) -> None:
    """Evaluates a model on ``DataLoader.Eval``."""
    options = parser("Evaluate an image classifier.")
    options.add_argument(
        "--confusion", type=Path, metavar="FILE", help="write how often each class is taken for each, as CSV"
    )
    arguments = options.parse_args(argv)
    config = read_config(arguments)
    if config is None:
        return
    wanted: Path | None = arguments.confusion
    if wanted is not None:
        _need_folder("--confusion", wanted)
        if config.Arch.class_num > MAX_CONFUSION_CLASSES:
            raise UserError(
                f"--confusion: of at most {MAX_CONFUSION_CLASSES} classes, not {config.Arch.class_num}"
            )
    source = find_weights(config)
    result = api.evaluate(config, sample_by_sample=wanted is not None, own_process=True)
    if read_launch().rank == 0:
        if wanted is not None:
            from ppcls.report.confusion import confusion_csv

            if result.outcomes is None:
                raise UserError("--confusion: these images have several labels each; expected one")
            assert result.outcomes.confusion is not None  # by the number of classes
            write_text(wanted, confusion_csv(result.outcomes.confusion))
        shares = " ".join(f"{name} {value:.4f}" for name, value in result.metrics.items())
        counted = f"{result.images} images, {result.seconds:.1f} s"
        sys.stdout.write(f"[Eval] {source}: loss {result.loss:.4f} {shares}, {counted}\n")


def _need_folder(option: str, path: Path) -> None:
    if path.is_dir() or not path.absolute().parent.is_dir():
        what = "is a folder, expected a file" if path.is_dir() else f"there is no folder {path.parent}"
        raise UserError(f"{option} {path}: {what}")


def need_one_process(run: Runtime) -> None:
    """Refuses to be one of several processes.

    Raises:
        UserError: It is one.
    """
    if run.world_size > 1:
        raise UserError("this tool runs as one process; start it without paddle.distributed.launch")


def say(text: str) -> None:
    """Writes to stdout; see `to_reader`."""
    with to_reader():
        sys.stdout.write(text)


@contextmanager
def to_reader() -> Iterator[None]:
    """Ends the tool quietly where the reader of stdout, such as ``head``, has seen enough."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left to flush at exit
        raise SystemExit(_NO_READER) from None


def _check_output(folder: Path) -> None:
    """Refuses an output folder that could not be made or written; makes nothing.

    Raises:
        UserError: It could not.
    """
    nearest = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        reason = "can't be written" if nearest.is_dir() else "is no folder"
        raise UserError(
            f"{folder}: can't write to this output folder: {nearest} {reason}; set Global.output_dir"
        )
