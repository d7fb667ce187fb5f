"""``tools/benchmark.py``: one command for each thing whose speed can be measured."""

from __future__ import annotations

import argparse

from ppcls.cli import benchmark_infer as infer_benchmark_cli
from ppcls.cli import benchmark_loader as loader_cli
from ppcls.cli import benchmark_train as train_benchmark_cli
from ppcls.cli.benchmark_results import start
from ppcls.cli.command import Arguments, command, write_output
from ppcls.cli.options import Subcommands, add_config_options, add_subcommand, positive_int


@command
def main(argv: Arguments = None) -> None:
    """Measures speed on this machine."""
    options = argparse.ArgumentParser(prog="tools/benchmark.py", description="Measure speed on this machine.")
    commands = options.add_subparsers(required=True, metavar="COMMAND")
    loader_cli.add_subcommand(commands)
    _add_containers(commands)
    train_benchmark_cli.add_subcommand(commands)
    infer_benchmark_cli.add_infer(commands)
    infer_benchmark_cli.add_compare(commands)
    arguments = options.parse_args(argv)
    arguments.measure(arguments)


def _add_containers(commands: Subcommands) -> None:
    made = add_subcommand(commands, "containers", "image files against containers of them")
    add_config_options(made)
    made.add_argument("--rounds", type=positive_int, default=5, help="counted epochs of each (%(default)s)")
    made.set_defaults(measure=_containers)


def _containers(arguments: argparse.Namespace) -> None:
    if (started := start(arguments)) is None:
        return
    from ppcls.bench.loader.containers import benchmark_containers

    for each in benchmark_containers(*started, arguments.rounds):
        write_output(each.describe() + "\n")
