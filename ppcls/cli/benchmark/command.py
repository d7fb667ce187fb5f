"""``ppcls benchmark``: subcommands that measure speed, and one that compares two results."""

from __future__ import annotations

import argparse
from pathlib import Path

from ppcls.bench.results.schema import read_results
from ppcls.cli.benchmark import infer, loader, serve, train
from ppcls.cli.benchmark.common import terminal_width
from ppcls.cli.command import Arguments, command, write_output
from ppcls.cli.options import Subcommands, add_examples, add_subcommand


@command
def main(argv: Arguments = None) -> None:
    """Measures speed on this machine, or compares two results."""
    parser = argparse.ArgumentParser(description="Measure speed on this machine, or compare two results.")
    add_examples(
        parser,
        "ppcls benchmark loader -c configs/ResNet50_photos.yaml --quick",
        "ppcls benchmark train -c configs/ResNet50_photos.yaml --out tour",
        "ppcls benchmark infer --model runs/pets/best_model",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (
        loader.add_loader,
        loader.add_containers,
        train.add_train,
        train.add_run,
        infer.add_infer,
        serve.add_serve,
        _add_compare,
    ):
        add(commands)
    arguments = parser.parse_args(argv)
    arguments.measure(arguments)


def _add_compare(commands: Subcommands) -> None:
    parser = add_subcommand(
        commands,
        "compare",
        "compare two results, and show which differences are within the noise",
        (
            "ppcls benchmark compare before after",
            "ppcls benchmark compare before/results.json after/results.json",
        ),
        "Print the ratio B / A and its confidence interval for each row that is in both results.",
    )
    text = "results.json, or the folder that contains it"
    parser.add_argument("first", type=Path, metavar="A", help=f"first result: {text}")
    parser.add_argument("second", type=Path, metavar="B", help=f"second result: {text}")
    parser.set_defaults(measure=_compare)


def _compare(arguments: argparse.Namespace) -> None:
    from ppcls.bench.results.compare import compare_results
    from ppcls.bench.results.tables import render_comparison

    comparison = compare_results(read_results(arguments.first), read_results(arguments.second))
    names = (str(arguments.first), str(arguments.second))
    write_output(render_comparison(comparison, names, terminal_width()))
