"""``tools/benchmark.py train``: training in several ways."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ppcls.bench.measure.turns import take_turns
from ppcls.bench.results.results import Results
from ppcls.bench.train.rows import Ways, charts_of, findings_of, rows_of
from ppcls.bench.train.train import Length, Look, Run, look_at, runner
from ppcls.bench.train.variants import PRECISIONS, Axes, Variant, find_variants
from ppcls.cli.benchmark_results import add_length, add_out, claim_out, finish, keep
from ppcls.cli.command import write_output
from ppcls.cli.options import Subcommands, add_config_options, non_negative_int, positive_int, read_config
from ppcls.config.load import dump_config
from ppcls.errors import UserError
from ppcls.runtime.launch import read_launch

if TYPE_CHECKING:  # only --torch needs it
    from ppcls.bench.train.pytorch import Counterpart

_ABOUT = """Trains a config for a few steps in several ways, each in processes of its own, in turns.

Where no axis is named, it makes a tour: the config's own way, and from there one thing changed at a time:
each precision, both layouts, cuDNN's search on and off, accumulation, and on GPUs 1, 2, 4 … all of them. Axes
that are named are crossed, and all else stays as the config has it."""


def add_subcommand(commands: Subcommands) -> None:
    """Adds the command."""
    made = commands.add_parser(
        "train",
        help="training: precisions, layouts, GPUs, accumulation; where a step's time goes",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_config_options(made)
    axes = made.add_argument_group("axes")
    axes.add_argument(
        "--precision", nargs="+", default=[], choices=list(PRECISIONS), help="O1 and O2: float16"
    )
    axes.add_argument("--layout", nargs="+", default=[], choices=["NCHW", "NHWC"])
    axes.add_argument("--cudnn-search", nargs="+", default=[], choices=["on", "off"])
    axes.add_argument(
        "--processes",
        nargs="+",
        default=[],
        type=positive_int,
        metavar="N",
        help="GPUs, or gloo processes on a CPU",
    )
    axes.add_argument(
        "--accumulate", nargs="+", default=[], type=positive_int, metavar="N", help="batches an update"
    )
    axes.add_argument(
        "--batch-size", nargs="+", default=[], type=positive_int, metavar="N", help="of a process"
    )
    made.add_argument(
        "--source",
        nargs="+",
        default=["synthetic", "loader"],
        choices=["synthetic", "loader", "bare"],
        help="one random batch on the device; the config's data; Paddle's own loop on a random batch "
        "(default: synthetic loader)",
    )
    length = Length()
    add_length(made, "steps", length)
    made.add_argument(
        "--phase-steps",
        type=non_negative_int,
        default=length.split_steps,
        help="to time phases in; 0: none (%(default)s)",
    )
    made.add_argument(
        "--torch",
        nargs="?",
        const=sys.executable,
        metavar="PYTHON",
        help="measure PyTorch's counterpart, too, by this Python or another that has torch and torchvision",
    )
    made.add_argument("--torch-compile", action="store_true", help="with --torch: compiled models, too")
    add_out(made)
    made.set_defaults(measure=_train)


def _train(arguments: argparse.Namespace) -> None:
    config = read_config(arguments)
    if config is None:
        return
    if read_launch().world_size > 1:
        raise UserError("benchmark.py train starts its processes itself (--processes); start it as one")
    claim_out(arguments)
    length = Length(
        arguments.rounds,
        arguments.warm_up,
        arguments.steps,
        arguments.seconds,
        arguments.phase_steps,
        arguments.timeout,
    )
    counterpart = _find_torch(arguments) if arguments.torch else None
    path = Path(arguments.config)
    look = look_at(path, arguments.override)
    variants = find_variants(config, look.place, _axes(arguments))
    run = runner(path, arguments.override, config, look.place, length)
    if counterpart is not None:
        look.versions["PyTorch"] = counterpart.version
        theirs = list(counterpart.variants(variants))
        run = _either(run, theirs, counterpart.runner(config, look, length))
        variants += theirs
    write_output(f"{_where(look)}: ways: {len(variants)}, rounds: {length.rounds}\n")

    def results(measured: list[Ways]) -> Results:
        return Results(
            benchmark="train",
            command=tuple(sys.argv),
            written=datetime.now().astimezone().isoformat(timespec="seconds"),
            machine=look.machine,
            versions=look.versions,
            config=dump_config(config),
            rows=tuple(rows_of(measured, look)),
            charts=tuple(charts_of(measured)),
            findings=tuple(findings_of(measured, look)),
        )

    taken = take_turns(
        variants,
        length.rounds,
        run,
        lambda line: write_output(f"{line}\n"),
        lambda measured: keep(arguments, results(measured)),
    )
    finish(arguments, results(taken.measured))
    if taken.interrupt is not None:
        raise taken.interrupt


def _axes(arguments: argparse.Namespace) -> Axes:
    return Axes(
        sources=tuple(arguments.source),
        processes=tuple(arguments.processes),
        precision=tuple(arguments.precision),
        layout=tuple(arguments.layout),
        cudnn_search=tuple(arguments.cudnn_search),
        accumulate=tuple(arguments.accumulate),
        batch_size=tuple(arguments.batch_size),
    )


def _where(look: Look) -> str:
    if look.place.device == "cpu":
        return f"CPU, {look.place.cores} cores"
    return f"{look.place.gpus} x {look.place.card}"


def _find_torch(arguments: argparse.Namespace) -> Counterpart:
    from ppcls.bench.train.pytorch import find_counterpart

    counterpart = find_counterpart(arguments.torch, compiled=arguments.torch_compile)
    write_output(f"PyTorch {counterpart.version} of {counterpart.python}\n")
    return counterpart


def _either(ours: Run, theirs: Sequence[Variant], run_theirs: Run) -> Run:
    return lambda variant: (run_theirs if variant in theirs else ours)(variant)
