"""``ppcls benchmark train`` and ``run``: measure the speed of training steps and of whole runs."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

from ppcls.bench.measure.runner import Candidate
from ppcls.bench.results.schema import new_results
from ppcls.bench.run.train_command import make_rows as make_run_rows
from ppcls.bench.run.train_command import run_training
from ppcls.bench.train.pytorch import find_pytorch, pytorch_candidates, pytorch_variants
from ppcls.bench.train.results import explain_rows, make_rows
from ppcls.bench.train.tasks import TrainTask, inspect_machine, make_candidates
from ppcls.bench.train.variants import find_variants
from ppcls.cli import options
from ppcls.cli.benchmark import common
from ppcls.config.load import dump_config
from ppcls.errors import UserError
from ppcls.runtime.launch import read_launch

_AXES = ("precision", "layout", "processes", "batch_size")


def measure_run(arguments: argparse.Namespace) -> None:
    """Measures whole training runs."""
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


def measure_train(arguments: argparse.Namespace) -> None:
    """Measures training steps."""
    config = options.read_config(arguments)
    if config is None:
        return
    if read_launch().world_size > 1:
        raise UserError(
            "ppcls benchmark train starts its processes itself (--processes); run it without a launcher"
        )
    common.check_out(arguments)
    versions = {}
    if arguments.torch == "":  # the option without a value
        arguments.torch = sys.executable
    if arguments.torch:
        versions["PyTorch"] = find_pytorch(arguments.torch)
        common.report(f"PyTorch {versions['PyTorch']} in {arguments.torch}")
    inspection = inspect_machine(Path(arguments.config), arguments.override)
    axes = {name: getattr(arguments, name) for name in _AXES}
    variants = find_variants(config, inspection, arguments.source, axes)
    effort = common.read_effort(arguments)
    overrides = arguments.override
    phases = arguments.phase_steps
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
