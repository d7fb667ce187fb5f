"""The command lines: one function a tool. Each reads ``-c`` and ``-o``, and returns an exit code."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ppcls.config.load import dump_config, load_config
from ppcls.config.schema import Config
from ppcls.errors import UserError

Arguments = Sequence[str] | None
_INTERRUPTED = 130


def command(function: Callable[[Arguments], None]) -> Callable[[Arguments], int]:
    """Makes a tool's exit code: 0, 1 with one clear message for a `UserError`, 130 for Ctrl-C."""

    @functools.wraps(function)
    def main(argv: Arguments = None) -> int:
        try:
            function(argv)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)  # noqa: T201
            return 1
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)  # noqa: T201
            return _INTERRUPTED
        return 0

    return main


def parser(description: str) -> argparse.ArgumentParser:
    """Returns a parser with the options that all tools share."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("-c", "--config", required=True, help="YAML file")
    made.add_argument(
        "-o",
        "--override",
        action="extend",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="set one value of the config, such as Global.epochs=10",
    )
    made.add_argument("--print-config", action="store_true", help="print the resolved config and exit")
    return made


def read_config(arguments: argparse.Namespace) -> Config | None:
    """Returns the config; None when it was only to be printed."""
    config = load_config(arguments.config, arguments.override)
    if arguments.print_config:
        sys.stdout.write(dump_config(config))
        return None
    return config


@command
def train(argv: Arguments = None) -> None:
    """Trains a model."""
    config = read_config(parser("Train an image classifier.").parse_args(argv))
    if config is None:
        return
    output_dir = claim_output(Path(config.Global.output_dir))
    from ppcls import runtime

    run = runtime.start(config.Global)
    from ppcls.engine.train import train as train_config

    train_config(config, run, output_dir)


@command
def evaluate(argv: Arguments = None) -> None:
    """Evaluates a model on ``DataLoader.Eval``."""
    config = read_config(parser("Evaluate an image classifier.").parse_args(argv))
    if config is None:
        return
    source = find_weights(config)
    from ppcls import runtime

    run = runtime.start(config.Global)
    from ppcls.engine.evaluate import build_evaluator
    from ppcls.engine.precision import build_precision
    from ppcls.engine.state import build_network
    from ppcls.engine.weights import fill_model, read_weights

    model, precision = build_network(config), build_precision(config.AMP, run.device)
    fill_model(model, read_weights(source), source)
    precision.prepare(model, None)
    result = build_evaluator(config, run, precision)(model)
    if run.is_main:
        shares = " ".join(f"{name} {value:.4f}" for name, value in result.metrics.items())
        counted = f"{result.images} images, {result.seconds:.1f} s"
        sys.stdout.write(f"[Eval] {source}: loss {result.loss:.4f} {shares}, {counted}\n")


def find_weights(config: Config) -> Path:
    """Returns ``Global.pretrained_model``, or the run's best model where none is given.

    Raises:
        UserError: Neither is there.
    """
    if config.Global.pretrained_model:
        return Path(config.Global.pretrained_model)
    best = Path(config.Global.output_dir) / "best_model"
    if not best.is_dir():
        raise UserError(f"no weights: Global.pretrained_model is not set, and there is no {best}")
    return best


def claim_output(folder: Path) -> Path:
    """Makes the output folder, and shows that it can be written.

    Raises:
        UserError: It can't.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".writable.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(
            f"{folder}: can't write to this output folder: {error.strerror}; set Global.output_dir"
        ) from None
    return folder
