"""``tools/benchmark.py train`` and ``run``: speed of training steps, and of whole runs."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

from ppcls.bench.measure.runner import Candidate, Effort, Measurements
from ppcls.bench.results.schema import ChartSpec, Results, new_results
from ppcls.bench.run.train_command import make_rows as make_run_rows
from ppcls.bench.run.train_command import run_training
from ppcls.bench.train.pytorch import PyTorchPython, find_pytorch
from ppcls.bench.train.results import MeasuredVariant, find_conclusions, make_charts, make_rows
from ppcls.bench.train.tasks import TrainTask, inspect_machine, make_candidates
from ppcls.bench.train.variants import PRECISIONS, find_variants
from ppcls.cli.benchmark.results import add_effort, add_out, check_out, measure_and_report, read_effort
from ppcls.cli.command import write_output
from ppcls.cli.options import (
    Subcommands,
    add_config_options,
    add_subcommand,
    non_negative_int,
    positive_float,
    positive_int,
    read_config,
)
from ppcls.config.load import dump_config
from ppcls.errors import UserError
from ppcls.runtime.launch import read_launch

_DESCRIPTION = """Train a config for a few steps in several variants, each in a new process.

The values of several axes are combined, and everything else stays as in the config. Without any axis, the
first variant is the config itself, and each further variant changes one thing: the precision, the layout,
cuDNN's search, gradient accumulation, or the number of GPUs (1, 2, 4 …)."""
_RUN_DESCRIPTION = """Start tools/train.py in a new process and show where its wall-clock time goes.

The time is split into start-up (imports, data set, model, until the first batch is requested), training,
data wait (the device waits for the loader), evaluation, checkpoints, and the rest (end of the process). The
run uses one process and writes to a temporary folder, which is deleted. --epochs overrides the config's
Global.epochs. The result shows how much a faster training step would speed up a whole run."""
_AXES = ("precision", "layout", "cudnn_search", "processes", "accumulate", "batch_size")


def add_train(commands: Subcommands) -> None:
    """Adds the command."""
    parser = add_subcommand(
        commands,
        "train",
        "measure training: precisions, layouts, GPUs, accumulation, duration of each phase of a step",
        (
            "ppcls benchmark train -c configs/ResNet50_photos.yaml --out tour",
            "ppcls benchmark train -c configs/ResNet50_photos.yaml --precision TF32 O1 --layout NCHW NHWC",
            "ppcls benchmark train -c configs/ResNet50_photos.yaml --processes 1 2 --source synthetic",
        ),
        _DESCRIPTION,
    )
    add_config_options(parser)
    axes = parser.add_argument_group("axes")
    many: dict[str, Any] = {"nargs": "+", "default": []}
    axes.add_argument(
        "--precision",
        **many,
        choices=list(PRECISIONS),
        help="number formats; O1 and O2 are mixed precision in float16",
    )
    axes.add_argument("--layout", **many, choices=["NCHW", "NHWC"], help="layout of images and activations")
    axes.add_argument(
        "--cudnn-search", **many, choices=["on", "off"], help="whether cuDNN searches for the fastest kernels"
    )
    numbers = many | {"type": positive_int, "metavar": "N"}
    axes.add_argument("--processes", **numbers, help="number of GPUs, or of processes on a CPU")
    axes.add_argument("--accumulate", **numbers, help="batches per update")
    axes.add_argument("--batch-size", **numbers, help="images per batch and process")
    parser.add_argument(
        "--source",
        nargs="+",
        default=["synthetic", "loader"],
        choices=["synthetic", "loader", "bare"],
        help="synthetic: one random batch on the device; loader: the config's data; bare: Paddle's own loop "
        "on a random batch (default: synthetic loader)",
    )
    add_effort(parser, "steps", Effort())
    parser.add_argument(
        "--phase-steps",
        type=non_negative_int,
        default=6,
        help="number of steps in which phases are timed; 0 for none (%(default)s)",
    )
    parser.add_argument(
        "--torch",
        nargs="?",
        const=sys.executable,
        metavar="PYTHON",
        help="measure PyTorch too, with this Python or another one that has torch and torchvision",
    )
    parser.add_argument("--torch-compile", action="store_true", help="with --torch: compiled models too")
    add_out(parser)
    parser.set_defaults(measure=_train)


def add_run(commands: Subcommands) -> None:
    """Adds the command ``run``."""
    parser = add_subcommand(
        commands,
        "run",
        "measure a whole training run: start-up, training, data wait, evaluation, checkpoints",
        (
            "ppcls benchmark run -c configs/quickstart.yaml",
            "ppcls benchmark run -c configs/quickstart.yaml --epochs 2 --rounds 3 --out run",
        ),
        _RUN_DESCRIPTION,
    )
    add_config_options(parser)
    parser.add_argument(
        "--epochs", type=positive_int, metavar="N", help="epochs to train (default: Global.epochs)"
    )
    parser.add_argument("--rounds", type=positive_int, default=1, help="number of runs (%(default)s)")
    parser.add_argument(
        "--timeout",
        type=positive_float,
        default=86400.0,
        help="time limit of one run in seconds (%(default)g)",
    )
    add_out(parser)
    parser.set_defaults(measure=_run)


def _run(arguments: argparse.Namespace) -> None:
    if arguments.epochs is not None:
        arguments.override = [*arguments.override, f"Global.epochs={arguments.epochs}"]
    config = read_config(arguments)
    if config is None:
        return
    check_out(arguments)
    inspection = inspect_machine(Path(arguments.config), arguments.override)
    measure = partial(run_training, config, arguments.config, arguments.override, arguments.timeout)
    candidate = Candidate("run", f"{config.Arch.name}, {config.Global.epochs} epochs", measure)

    empty = new_results("run", dump_config(config), inspection.machine, inspection.versions)
    chart = ChartSpec("Wall-clock time of a run", "time", "part")

    def make_results(measured: list[Measurements[str]]) -> Results:
        return empty.filled(make_run_rows(measured), [chart])

    measure_and_report(arguments, [candidate], arguments.rounds, make_results)


def _train(arguments: argparse.Namespace) -> None:
    config = read_config(arguments)
    if config is None:
        return
    if read_launch().world_size > 1:
        raise UserError(
            "benchmark.py train starts its processes itself (--processes); start it without a launcher"
        )
    check_out(arguments)
    pytorch = _find_pytorch(arguments) if arguments.torch else None
    effort = read_effort(arguments)
    inspection = inspect_machine(Path(arguments.config), arguments.override)
    device = inspection.device
    axes = {name: getattr(arguments, name) for name in _AXES}
    variants = find_variants(config, device, arguments.source, axes)
    task = TrainTask(
        config=arguments.config,
        overrides=tuple(arguments.override),
        source="synthetic",
        warm_up=effort.warm_up,
        steps=effort.counted,
        seconds=effort.seconds,
        phase_steps=arguments.phase_steps,
    )
    candidates = make_candidates(task, variants, device, config, effort.timeout)
    if pytorch is not None:
        inspection.versions["PyTorch"] = pytorch.version
        torch_variants = list(pytorch.variants(variants))
        candidates += pytorch.candidates(torch_variants, task, config, inspection, effort.timeout)
    write_output(f"{device.describe()}: variants: {len(candidates)}, rounds: {effort.rounds}\n")

    empty = new_results("train", dump_config(config), inspection.machine, inspection.versions)

    def make_results(measured: list[MeasuredVariant]) -> Results:
        rows, findings = make_rows(measured, inspection), find_conclusions(measured, inspection)
        return empty.filled(rows, make_charts(measured), findings)

    measure_and_report(arguments, candidates, effort.rounds, make_results)


def _find_pytorch(arguments: argparse.Namespace) -> PyTorchPython:
    pytorch = find_pytorch(arguments.torch, compiled=arguments.torch_compile)
    write_output(f"PyTorch {pytorch.version} of {pytorch.python}\n")
    return pytorch
