"""``tools/benchmark.py``: one command for each thing whose speed can be measured."""

from __future__ import annotations

import argparse

from ppcls import loader_cli
from ppcls.cli import Arguments, add_config, command, say
from ppcls.results_cli import Commands, start


@command
def main(argv: Arguments = None) -> None:
    """Measures speed on this machine."""
    options = argparse.ArgumentParser(prog="tools/benchmark.py", description="Measure speed on this machine.")
    commands = options.add_subparsers(required=True, metavar="COMMAND")
    loader_cli.add_command(commands)
    _add_containers(commands)
    _add_step(commands)
    arguments = options.parse_args(argv)
    arguments.measure(arguments)


def _add_containers(commands: Commands) -> None:
    made = commands.add_parser("containers", help="image files against containers of them")
    add_config(made)
    _add_rounds(made)
    made.set_defaults(measure=_containers)


def _add_step(commands: Commands) -> None:
    made = commands.add_parser("step", help="training steps: ours against a bare Paddle loop")
    add_config(made)
    _add_rounds(made)
    made.add_argument("--no-plain", action="store_true", help="without the bare Paddle loop")
    made.set_defaults(measure=_step)


def _add_rounds(made: argparse.ArgumentParser) -> None:
    made.add_argument("--rounds", type=int, default=5, help="counted epochs of each (%(default)s)")


def _containers(arguments: argparse.Namespace) -> None:
    if (started := start(arguments)) is None:
        return
    from ppcls.bench.containers import benchmark_containers

    for each in benchmark_containers(*started, max(1, arguments.rounds)):
        say(each.describe() + "\n")


def _step(arguments: argparse.Namespace) -> None:
    if (started := start(arguments)) is None:
        return
    from ppcls.bench.step import benchmark_steps

    speeds, how = benchmark_steps(*started, max(1, arguments.rounds), plain=not arguments.no_plain)
    say("".join(f"{line}\n" for line in [how, *(speed.describe() for speed in speeds)]))
