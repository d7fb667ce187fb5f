"""``python benchmarks/run.py infer``: measures models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from benchmarks.common import RequestOptions, charts_of, out_option
from ppcls.cli.arguments.options import option
from ppcls.cli.benchmark.common import check_out, measure_and_report, report
from ppcls.cli.command import command
from ppcls.cli.shared_options import trust_option
from ppcls.errors import UserError


@dataclass(frozen=True, kw_only=True)
class InferBenchmarkOptions(RequestOptions):
    """Measure the latency and images/s of a model for several batch sizes and numbers of threads.

    Predicts one batch after another. The time of a batch is measured from its images in host memory to its
    scores in host memory. With --torch, timm's networks of the same architectures follow, eager and compiled:
    on a GPU in float16, from 8-bit images, and on a CPU in float32, from normalized images.
    """

    examples: ClassVar[Sequence[str]] = (
        "python benchmarks/run.py infer --model runs/pets/best_model",
        "python benchmarks/run.py infer --model inference onnx/inference.onnx --batch-size 1 32 --out infer",
        "python benchmarks/run.py infer --random ResNet50 ConvNeXt_tiny --batch-size 1 128 --torch PYTHON",
    )

    model: tuple[Path, ...] = option(
        (), "models: checkpoint folders, or folders written by ppcls export", metavar="PATH"
    )
    random: tuple[str, ...] = option(
        (),
        "architectures to measure with random weights, on a GPU in float16 as `AMP.level: O2` trains them",
        metavar="NAME",
    )
    exported: bool = option(
        False, "export the models of --random by --format ppcls in float16, and measure the exported models"
    )
    override: tuple[str, ...] = option(
        (), "set values of Global, such as Global.device=cpu", names=["-o"], metavar="KEY=VALUE"
    )
    batch_size: tuple[int, ...] = option((1, 8, 32), "images per batch", gt=0)
    threads: tuple[int, ...] = option(
        (), "numbers of CPU threads for the model (default: number of cores)", gt=0
    )
    torch: str | None = option(
        None,
        "also measure timm with this Python interpreter, which has torch, torchvision and timm",
        metavar="PYTHON",
    )
    trust: bool = trust_option()
    out: Path | None = out_option()


@command("infer", InferBenchmarkOptions)
def measure_infer(options: InferBenchmarkOptions) -> None:
    """Measures the latency of models."""
    from benchmarks.infer.random_models import write_random_models
    from ppcls.files.temporary import temporary_folder

    if not options.model and not options.random:
        raise UserError("nothing to measure; use --model PATH or --random NAME")
    check_out(options.out)
    with temporary_folder("models") as folder:
        random = write_random_models(options.random, options.override, folder, exported=options.exported)
        _measure(options, [*options.model, *random])


def _measure(options: InferBenchmarkOptions, paths: Sequence[Path]) -> None:
    from benchmarks.infer.requests import (
        find_latencies,
        find_models,
        inspect_machine,
        make_candidates,
        pytorch_requests,
    )
    from benchmarks.pytorch.candidates import find_pytorch
    from ppcls.bench.results.schema import new_results
    from ppcls.config.base.yaml import dump_yaml

    models = find_models(paths, options.override, trust=options.trust)
    machine = inspect_machine(paths[0], options.override, trust=options.trust)
    effort = options.effort(options.requests)
    axes = (options.threads or (machine["cores"],), options.batch_size)
    candidates = make_candidates(models, machine["device"], axes, options.override, effort)
    if options.torch is not None:
        report(f"PyTorch {find_pytorch(options.torch)} in {options.torch}")
        candidates += pytorch_requests(options.torch, models, machine["device"], axes, effort)
    device = machine["machine"]["Device"]
    report(f"{device}: variants: {len(candidates)}, rounds: {effort.rounds}")
    names = [*map(str, options.model), *options.random]  # not the temporary files of random models
    described = {
        name: source.description.model_dump(mode="json")
        for name, (_, source) in zip(names, models, strict=True)
    }
    config = dump_yaml(described)
    empty = new_results("infer", " ".join(names), config, machine["machine"], machine["versions"])
    with charts_of(options.out):
        measure_and_report(options.out, effort.rounds, empty, candidates, lambda: find_latencies(candidates))
