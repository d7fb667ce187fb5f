"""``ppcls benchmark train`` and ``run``: measure the speed of training steps and of whole runs."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

from ppcls.bench.measure.runner import Candidate, Effort
from ppcls.bench.results.schema import new_results
from ppcls.bench.run.train_command import make_rows as make_run_rows
from ppcls.bench.run.train_command import run_training
from ppcls.bench.train.pytorch import find_pytorch, pytorch_candidates, pytorch_variants
from ppcls.bench.train.results import explain_rows, make_rows
from ppcls.bench.train.tasks import TrainTask, inspect_machine, make_candidates
from ppcls.bench.train.variants import PRECISIONS, find_variants
from ppcls.cli import options
from ppcls.cli.benchmark import common
from ppcls.config.load import dump_config
from ppcls.errors import UserError
from ppcls.runtime.launch import read_launch

_DESCRIPTION = """Train a config for a few steps in several variants, each in a new process.

The options under "axes" choose the variants: every combination of their values is measured, and all other
settings are those of the config. Without these options, the first variant is the config itself, and each
further variant changes one thing: the precision, the layout, or the number of GPUs (1, 2, 4 …)."""
_RUN_DESCRIPTION = """Start tools/train.py in a new process, and print how its wall-clock time is spent.

The time is divided into start-up (imports, data set and model, until the first batch is requested), training,
data wait (the device waits for the loader), evaluation, checkpoints, and the rest (end of the process). The
run uses one process. It writes to a temporary folder, which is deleted at the end. The result shows how much
a faster training step would speed up a whole run."""
_AXES = ("precision", "layout", "processes", "batch_size")


def add_train(commands: options.Subcommands) -> None:
    """Adds the subcommand ``train``."""
    parser = options.add_subcommand(
        commands,
        "train",
        "measure training steps for several precisions, layouts and numbers of GPUs, and time their phases",
        (
            "ppcls benchmark train -c configs/ResNet50_photos.yaml --out tour",
            "ppcls benchmark train -c configs/ResNet50_photos.yaml --precision TF32 O1 --layout NCHW NHWC",
            "ppcls benchmark train -c configs/ResNet50_photos.yaml --processes 1 2 --source synthetic",
        ),
        _DESCRIPTION,
    )
    options.add_config_options(parser)
    axes = parser.add_argument_group("axes")
    for option, choices, text in (
        (
            "--precision",
            list(PRECISIONS),
            "precisions; O1 and O2: mixed precision in float16; O1-bfloat16 and O2-bfloat16: in bfloat16",
        ),
        ("--layout", ["NCHW", "NHWC"], "layouts of images and activations"),
    ):
        axes.add_argument(option, nargs="+", default=[], choices=choices, help=text)
    common.add_numbers(axes, "--processes", "numbers of GPUs, or of processes on a CPU", default=[])
    common.add_numbers(axes, "--batch-size", "numbers of images per batch and process", default=[])
    parser.add_argument(
        "--source",
        nargs="+",
        default=["synthetic", "loader"],
        choices=["synthetic", "loader", "bare"],
        help="sources of the batches. synthetic: one random batch on the device; loader: the config's data; "
        "bare: one random batch, but in the training loop of Paddle's documentation instead of ppcls's "
        "(default: synthetic loader)",
    )
    common.add_effort(parser, "steps", Effort())
    text = "number of steps whose phases are timed; 0 disables this (default: %(default)s)"
    parser.add_argument("--phase-steps", type=options.non_negative_int, default=6, help=text)
    text = (
        "also measure PyTorch, with the interpreter PYTHON, which needs torch and torchvision (without a "
        "value: the current interpreter)"
    )
    parser.add_argument("--torch", nargs="?", const=sys.executable, metavar="PYTHON", help=text)
    parser.add_argument(
        "--torch-compile", action="store_true", help="with --torch: also measure compiled models"
    )
    common.add_out(parser, _train)


def add_run(commands: options.Subcommands) -> None:
    """Adds the subcommand ``run``."""
    parser = options.add_subcommand(
        commands,
        "run",
        "measure a whole training run: start-up, training, data wait, evaluation, checkpoints",
        (
            "ppcls benchmark run -c configs/quickstart.yaml",
            "ppcls benchmark run -c configs/quickstart.yaml --epochs 2 --rounds 3 --out run",
        ),
        _RUN_DESCRIPTION,
    )
    options.add_config_options(parser)
    text = "number of epochs (default: Global.epochs)"
    parser.add_argument("--epochs", type=options.positive_int, metavar="N", help=text)
    parser.add_argument(
        "--rounds", type=options.positive_int, default=1, help="number of runs (default: %(default)s)"
    )
    text = "time limit of one run in seconds (default: %(default)g)"
    parser.add_argument("--timeout", type=options.positive_float, default=86400.0, help=text)
    common.add_out(parser, _run)


def _run(arguments: argparse.Namespace) -> None:
    if arguments.epochs is not None:
        arguments.override = [*arguments.override, f"Global.epochs={arguments.epochs}"]
    config = options.read_config(arguments)
    if config is None:
        return
    common.check_out(arguments)
    inspection = inspect_machine(Path(arguments.config), arguments.override)
    measure = partial(run_training, config, arguments.config, arguments.override, arguments.timeout)
    name = f"{config.Arch.name}, {config.Global.epochs} epochs"
    empty = new_results("run", dump_config(config), inspection.machine, inspection.versions)
    runs = [Candidate("run", name, measure, {"part": "whole run"})]
    common.measure_and_report(arguments, empty, runs, make_rows=lambda: make_run_rows(runs))


def _train(arguments: argparse.Namespace) -> None:
    config = options.read_config(arguments)
    if config is None:
        return
    if read_launch().world_size > 1:
        raise UserError(
            "ppcls benchmark train starts its processes itself (--processes); run it without a launcher"
        )
    common.check_out(arguments)
    versions = {}
    if arguments.torch:
        versions["PyTorch"] = find_pytorch(arguments.torch)
        common.report(f"PyTorch {versions['PyTorch']} in {arguments.torch}")
    inspection = inspect_machine(Path(arguments.config), arguments.override)
    axes = {name: getattr(arguments, name) for name in _AXES}
    variants = find_variants(config, inspection, arguments.source, axes)
    effort = common.read_effort(arguments)
    overrides, phases = arguments.override, arguments.phase_steps
    task = TrainTask(config=arguments.config, overrides=overrides, phase_steps=phases, **asdict(effort))
    candidates = make_candidates(variants, task, inspection, config)
    if arguments.torch:
        theirs = list(pytorch_variants(variants, compiled=arguments.torch_compile))
        candidates += pytorch_candidates(arguments.torch, theirs, task, inspection, config)
    common.report(f"{inspection.describe()}: variants: {len(candidates)}, rounds: {effort.rounds}")
    empty = new_results("train", dump_config(config), inspection.machine, inspection.versions | versions)
    common.measure_and_report(
        arguments,
        empty,
        candidates,
        lambda: explain_rows(candidates, inspection),
        lambda: make_rows(candidates, inspection),
    )
