"""``ppcls benchmark train``: measures the speed of training steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ppcls.cli.arguments.options import option
from ppcls.cli.benchmark import common
from ppcls.cli.command import command
from ppcls.cli.shared_options import RequiredConfigOptions, read_config
from ppcls.errors import UserError

if TYPE_CHECKING:  # not needed for --help
    from ppcls.bench.train.tasks import TrainTask

_AXES = "axes"
_MOVED = dict.fromkeys(("--torch", "--torch-compile"), "python benchmarks/run.py pytorch in a clone of ppcls")


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
        "ppcls benchmark train -c configs/ResNet50_photos.yaml --processes 1 2 --precision float32 O1 "
        "--cudnn-search off on --source loader --epochs 10 --out table",
    )

    precision: tuple[Literal["float32", "TF32", "O1", "O2", "O1-bfloat16", "O2-bfloat16"], ...] = option(
        (),
        "precisions; O1 and O2: mixed precision in float16; O1-bfloat16 and O2-bfloat16: in bfloat16",
        group=_AXES,
    )
    layout: tuple[Literal["NCHW", "NHWC"], ...] = option((), "layouts of images and activations", group=_AXES)
    processes: tuple[int, ...] = option((), "numbers of GPUs, or of processes on a CPU", gt=0, group=_AXES)
    batch_size: tuple[int, ...] = option((), "numbers of images per batch and process", gt=0, group=_AXES)
    cudnn_search: tuple[Literal["on", "off"], ...] = option(
        (), "whether cuDNN searches for the fastest kernels (default: as in training)", group=_AXES
    )
    epochs: int | None = option(
        None,
        "also print the seconds for this number of epochs, and the speed relative to the first variant, the "
        "baseline; needs the config's data",
        gt=0,
    )
    source: tuple[Literal["synthetic", "loader"], ...] = option(
        ("synthetic", "loader"),
        "sources of the batches. synthetic: one random batch on the device; loader: the config's data",
    )
    steps: int | None = option(
        None,
        "number of steps in one measurement (default: as many as fit into --seconds)",
        gt=0,
    )
    phase_steps: int = option(6, "number of steps whose phases are timed; 0 disables this", ge=0)
    out: Path | None = common.out_option()

    @property
    def axes(self) -> dict[str, Sequence[Any]]:
        """Values of the axes by the fields of `Variant`."""
        return {
            "precision": self.precision,
            "layout": self.layout,
            "processes": self.processes,
            "batch_size": self.batch_size,
            "cudnn_search": self.cudnn_search,
        }

    @property
    def task(self) -> TrainTask:
        """Task of the processes that measure."""
        from ppcls.bench.train.tasks import TrainTask

        return TrainTask(
            config=self.config,
            overrides=list(self.override),
            phase_steps=self.phase_steps,
            **asdict(self.effort(self.steps)),
        )


@command("train", TrainBenchmarkOptions, elsewhere=_MOVED)
def measure_train(options: TrainBenchmarkOptions) -> None:
    """Measures training steps."""
    config = read_config(options)
    if config is None:
        return
    from ppcls.bench.results.schema import new_results
    from ppcls.bench.train.results import add_epochs, explain_rows, make_rows
    from ppcls.bench.train.tasks import inspect_machine, make_candidates
    from ppcls.bench.train.variants import config_variant, find_variants
    from ppcls.recipe.load import dump_config
    from ppcls.runtime.launch import read_launch

    if read_launch().world_size > 1:
        raise UserError("this benchmark starts its processes itself (--processes); run it without a launcher")
    common.check_out(options.out)
    inspection = inspect_machine(Path(options.config), options.override)
    base = config_variant(config.DataLoader.need_train().sampler, config.Arch, config.AMP, inspection)
    variants = find_variants(base, inspection, options.source, options.axes)
    candidates = make_candidates(variants, options.task, inspection, base)
    images = 0
    if options.epochs is not None:
        images = len(config.DataLoader.need_train().dataset.read(config.Arch.class_num))
        for candidate in candidates:
            candidate.base = ("of baseline", candidates[0])
    common.report(f"{inspection.describe()}: variants: {len(candidates)}, rounds: {options.rounds}")
    common.measure_and_report(
        options.out,
        options.rounds,
        new_results("train", options.config, dump_config(config), inspection.machine, inspection.versions),
        candidates,
        lambda: explain_rows(candidates, inspection),
        lambda: add_epochs(make_rows(candidates, inspection), options.epochs, images),
    )
