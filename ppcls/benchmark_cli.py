"""``tools/benchmark.py``: one command for each thing whose speed can be measured."""

from __future__ import annotations

import argparse
import statistics
from typing import TypeAlias

from ppcls.cli import Arguments, add_config, command, read_config, say
from ppcls.config.schema import Config
from ppcls.infer_benchmark_cli import add_compare, add_infer
from ppcls.runtime import Runtime
from ppcls.train_benchmark_cli import add_train

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


@command
def main(argv: Arguments = None) -> None:
    """Measures speed on this machine."""
    options = argparse.ArgumentParser(prog="tools/benchmark.py", description="Measure speed on this machine.")
    commands = options.add_subparsers(required=True, metavar="COMMAND")
    _add_loader(commands)
    _add_containers(commands)
    add_train(commands)
    add_infer(commands)
    add_compare(commands)
    arguments = options.parse_args(argv)
    arguments.measure(arguments)


def start(arguments: argparse.Namespace) -> tuple[Config, Runtime] | None:
    """Reads the config and settles where it runs, which is said; None where it was only to be printed."""
    config = read_config(arguments)
    if config is None:
        return None
    from ppcls import runtime

    run = runtime.start(config.Global)
    say(run.describe() + "\n")
    return config, run


def _add_loader(commands: Commands) -> None:
    made = commands.add_parser("loader", help="data loaders: ours by DALI, a bare DALI pipeline, paddle.io")
    add_config(made)
    _add_rounds(made)
    made.add_argument("--workers", type=int, nargs="+", default=[2], help="of paddle.io (%(default)s)")
    made.add_argument("--mixup", action="store_true", help="our DALI loader with Mixup, too")
    made.set_defaults(measure=_loader)


def _add_containers(commands: Commands) -> None:
    made = commands.add_parser("containers", help="image files against containers of them")
    add_config(made)
    _add_rounds(made)
    made.set_defaults(measure=_containers)


def _add_rounds(made: argparse.ArgumentParser) -> None:
    made.add_argument("--rounds", type=int, default=5, help="counted epochs of each (%(default)s)")


def _loader(arguments: argparse.Namespace) -> None:
    if (started := start(arguments)) is None:
        return
    from ppcls.bench.loader import benchmark_loaders

    rounds = max(1, arguments.rounds)
    speeds = benchmark_loaders(*started, arguments.workers, rounds, mixup=arguments.mixup)
    say("".join(f"{speed.describe()}\n" for speed in speeds))
    dali = speeds[1]
    for other in speeds[2:]:
        gain = statistics.median(a / b for a, b in zip(dali.rates, other.rates, strict=True))
        say(f"{dali.name} is {gain:.2f} times {other.name}\n")


def _containers(arguments: argparse.Namespace) -> None:
    if (started := start(arguments)) is None:
        return
    from ppcls.bench.containers import benchmark_containers

    for each in benchmark_containers(*started, max(1, arguments.rounds)):
        say(each.describe() + "\n")
