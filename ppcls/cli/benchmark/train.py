"""``ppcls benchmark train`` and ``run``: measure the speed of training steps and of whole runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

from ppcls.cli.benchmark import common
from ppcls.cli.command import command
from ppcls.cli.options import option
from ppcls.cli.shared_options import RequiredConfigOptions, read_config
from ppcls.errors import UserError

_AXES = "axes"


@dataclass(frozen=True, kw_only=True)
class TrainBenchmarkOptions(common.EffortOptions, RequiredConfigOptions):
    """Measure training steps for several precisions, layouts and numbers of GPUs, and time their phases.

    Each variant trains for a few steps in a new process.

    The options under "axes" choose the variants: every combination of their values is measured, and all other
    settings are those of the config. Without these options, the first variant is the config itself, and each
    further variant changes one thing: the precision, the layout, or the number of GPUs (1, 2, 4 …).
    """

    examples: ClassVar[Sequence[str]] = (
        "ppcls benchmark train -c configs/ResNet50_photos.yaml --out tour",
        "ppcls benchmark train -c configs/ResNet50_photos.yaml --precision TF32 O1 --layout NCHW NHWC",
        "ppcls benchmark train -c configs/ResNet50_photos.yaml --processes 1 2 --source synthetic",
    )

    precision: tuple[Literal["float32", "TF32", "O1", "O2", "O1-bfloat16", "O2-bfloat16"], ...] = option(
        (),
        "precisions; O1 and O2: mixed precision in float16; O1-bfloat16 and O2-bfloat16: in bfloat16",
        group=_AXES,
    )
    layout: tuple[Literal["NCHW", "NHWC"], ...] = option((), "layouts of images and activations", group=_AXES)
    processes: tuple[int, ...] = option((), "numbers of GPUs, or of processes on a CPU", gt=0, group=_AXES)
    batch_size: tuple[int, ...] = option((), "numbers of images per batch and process", gt=0, group=_AXES)
    source: tuple[Literal["synthetic", "loader", "bare"], ...] = option(
        ("synthetic", "loader"),
        "sources of the batches. synthetic: one random batch on the device; loader: the config's data; bare: "
        "one random batch, but in the training loop of Paddle's documentation instead of ppcls's",
    )
    steps: int | None = option(
        None,
        "number of steps in one measurement (default: as many as fit into --seconds)",
        gt=0,
    )
    phase_steps: int = option(6, "number of steps whose phases are timed; 0 disables this", ge=0)
    torch: str | None = option(
        None,
        "also measure PyTorch, with the interpreter PYTHON, which needs torch and torchvision (without a "
        "value: the current interpreter)",
        metavar="PYTHON",
        without_value="",
    )
    torch_compile: bool = option(False, "with --torch: also measure compiled models")
    out: Path | None = common.out_option()


@dataclass(frozen=True, kw_only=True)
class RunBenchmarkOptions(RequiredConfigOptions):
    """Measure a whole training run: start-up, training, data wait, evaluation, checkpoints.

    Starts tools/train.py in a new process, and prints how its wall-clock time is spent.

    The time is divided into start-up (imports, data set and model, until the first batch is requested),
    training, data wait (the device waits for the loader), evaluation, checkpoints, and the rest (end of the
    process). The run uses one process. It writes to a temporary folder, which is deleted at the end. The
    result shows how much a faster training step would speed up a whole run.
    """

    examples: ClassVar[Sequence[str]] = (
        "ppcls benchmark run -c configs/quickstart.yaml",
        "ppcls benchmark run -c configs/quickstart.yaml --epochs 2 --rounds 3 --out run",
    )

    epochs: int | None = option(None, "number of epochs (default: Global.epochs)", gt=0)
    rounds: int = option(1, "number of runs", gt=0)
    timeout: float = option(86_400.0, "time limit of one run in seconds", gt=0)
    out: Path | None = common.out_option()


@command("run", RunBenchmarkOptions)
def measure_run(options: RunBenchmarkOptions) -> None:
    """Measures whole training runs."""
    if options.epochs is not None:
        options = replace(options, override=(*options.override, f"Global.epochs={options.epochs}"))
    config = read_config(options)
    if config is None:
        return
    common.check_out(options.out)
    from ppcls.bench.measure.runner import Candidate
    from ppcls.bench.results.schema import new_results
    from ppcls.bench.run.train_command import make_rows, run_training
    from ppcls.bench.train.tasks import inspect_machine
    from ppcls.recipe.load import dump_config

    inspection = inspect_machine(Path(options.config), options.override)
    measure = partial(run_training, config, options.config, options.override, options.timeout)
    name = f"{config.Arch.name}, {config.Global.epochs} epochs"
    empty = new_results("run", dump_config(config), inspection.machine, inspection.versions)
    runs = [Candidate("run", name, measure, {"part": "whole run"})]
    common.measure_and_report(options.out, options.rounds, empty, runs, make_rows=lambda: make_rows(runs))


@command("train", TrainBenchmarkOptions)
def measure_train(options: TrainBenchmarkOptions) -> None:
    """Measures training steps."""
    config = read_config(options)
    if config is None:
        return
    from ppcls.bench.results.schema import new_results
    from ppcls.bench.train.pytorch import find_pytorch, pytorch_candidates, pytorch_variants
    from ppcls.bench.train.results import explain_rows, make_rows
    from ppcls.bench.train.tasks import TrainTask, inspect_machine, make_candidates
    from ppcls.bench.train.variants import find_variants
    from ppcls.recipe.load import dump_config
    from ppcls.runtime.launch import read_launch

    if read_launch().world_size > 1:
        raise UserError(
            "ppcls benchmark train starts its processes itself (--processes); run it without a launcher"
        )
    common.check_out(options.out)
    versions = {}
    torch = sys.executable if options.torch == "" else options.torch  # "": the option without a value
    if torch:
        versions["PyTorch"] = find_pytorch(torch)
        common.report(f"PyTorch {versions['PyTorch']} in {torch}")
    inspection = inspect_machine(Path(options.config), options.override)
    axes = {
        "precision": options.precision,
        "layout": options.layout,
        "processes": options.processes,
        "batch_size": options.batch_size,
    }
    variants = find_variants(config, inspection, options.source, axes)
    effort = options.effort(options.steps)
    task = TrainTask(
        config=options.config,
        overrides=list(options.override),
        phase_steps=options.phase_steps,
        **asdict(effort),
    )
    candidates = make_candidates(variants, task, inspection, config)
    if torch:
        theirs = list(pytorch_variants(variants, compiled=options.torch_compile))
        candidates += pytorch_candidates(torch, theirs, task, inspection, config)
    common.report(f"{inspection.describe()}: variants: {len(candidates)}, rounds: {effort.rounds}")
    empty = new_results("train", dump_config(config), inspection.machine, inspection.versions | versions)
    common.measure_and_report(
        options.out,
        effort.rounds,
        empty,
        candidates,
        lambda: explain_rows(candidates, inspection),
        lambda: make_rows(candidates, inspection),
    )
