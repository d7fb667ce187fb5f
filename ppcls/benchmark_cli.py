"""``tools/benchmark.py``: one command for each thing whose speed can be measured."""

from __future__ import annotations

import argparse

from ppcls import infer_benchmark_cli, loader_cli, train_benchmark_cli
from ppcls.cli import Arguments, add_config, command, say
from ppcls.options import Commands, add_command, positive
from ppcls.results_cli import start


@command
def main(argv: Arguments = None) -> None:
    """Measures speed on this machine."""
    options = argparse.ArgumentParser(prog="tools/benchmark.py", description="Measure speed on this machine.")
    commands = options.add_subparsers(required=True, metavar="COMMAND")
    loader_cli.add_command(commands)
    _add_containers(commands)
    train_benchmark_cli.add_command(commands)
    infer_benchmark_cli.add_infer(commands)
    infer_benchmark_cli.add_compare(commands)
    arguments = options.parse_args(argv)
    arguments.measure(arguments)


def _add_containers(commands: Commands) -> None:
    made = add_command(commands, "containers", "image files against containers of them")
    add_config(made)
    made.add_argument("--rounds", type=positive, default=5, help="counted epochs of each (%(default)s)")
    made.set_defaults(measure=_containers)


def _containers(arguments: argparse.Namespace) -> None:
    if (started := start(arguments)) is None:
        return
    from ppcls.bench.containers import benchmark_containers

    for each in benchmark_containers(*started, arguments.rounds):
        say(each.describe() + "\n")
