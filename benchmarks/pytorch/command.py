"""``python benchmarks/run.py pytorch``: measures ppcls beside PyTorch and Paddle's own loop."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from benchmarks.common import charts_of, out_option
from ppcls.cli.arguments.options import option
from ppcls.cli.benchmark import common
from ppcls.cli.benchmark.train import TrainBenchmarkOptions
from ppcls.cli.command import command
from ppcls.cli.shared_options import read_config


@dataclass(frozen=True, kw_only=True)
class PyTorchOptions(TrainBenchmarkOptions):
    """Measure training steps of ppcls, of Paddle's own loop, and of PyTorch.

    ppcls benchmark train explains the variants and the options under "axes".
    """

    examples: ClassVar[Sequence[str]] = (
        "python benchmarks/run.py pytorch -c configs/ResNet50_photos.yaml --torch-compile",
        "python benchmarks/run.py pytorch -c configs/ResNet50_photos.yaml --source synthetic bare --torch "
        "none",
    )

    source: tuple[Literal["synthetic", "loader", "bare"], ...] = option(  # type: ignore[assignment]
        ("synthetic",),
        "sources of the batches. synthetic: one random batch on the device; loader: the config's data; bare: "
        "one random batch, but in the training loop of Paddle's documentation instead of ppcls's",
    )
    torch: str = option(
        sys.executable,
        "Python interpreter with torch and torchvision; none: without PyTorch (default: the current "
        "interpreter)",
        metavar="PYTHON",
    )
    torch_compile: bool = option(False, "also measure compiled models of PyTorch")
    out: Path | None = out_option()


@command("pytorch", PyTorchOptions)
def measure_pytorch(options: PyTorchOptions) -> None:
    """Measures the training steps of ppcls and of other software in the same rounds."""
    config = read_config(options)
    if config is None:
        return
    from benchmarks.pytorch.candidates import find_pytorch, pytorch_candidates, pytorch_variants
    from ppcls.bench.results.schema import new_results
    from ppcls.bench.train.results import explain_rows, make_rows
    from ppcls.bench.train.tasks import inspect_machine, make_candidates
    from ppcls.bench.train.variants import config_variant, find_variants
    from ppcls.recipe.load import dump_config

    common.check_out(options.out)
    versions = {}
    if options.torch != "none":
        versions["PyTorch"] = find_pytorch(options.torch)
        common.report(f"PyTorch {versions['PyTorch']} in {options.torch}")
    inspection = inspect_machine(Path(options.config), options.override)
    base = config_variant(config.DataLoader.need_train().sampler, config.Arch, config.AMP, inspection)
    variants = find_variants(base, inspection, options.source, options.axes)
    worker = Path(__file__).resolve().parents[1] / "worker.py"
    candidates = make_candidates(variants, options.task, inspection, base, worker)
    if versions:
        theirs = list(pytorch_variants(variants, compiled=options.torch_compile))
        candidates += pytorch_candidates(options.torch, theirs, options.task, inspection, config)
    common.report(f"{inspection.describe()}: variants: {len(candidates)}, rounds: {options.rounds}")
    with charts_of(options.out):
        common.measure_and_report(
            options.out,
            options.rounds,
            new_results(
                "train",
                options.config,
                dump_config(config),
                inspection.machine,
                inspection.versions | versions,
            ),
            candidates,
            lambda: explain_rows(candidates, inspection),
            lambda: make_rows(candidates, inspection),
        )
