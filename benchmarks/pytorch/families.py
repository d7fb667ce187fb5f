"""``python benchmarks/run.py families``: measures how fast networks of eight families train beside timm."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from benchmarks.common import charts_of, out_option
from benchmarks.pytorch.candidates import TIMM_MODELS, find_pytorch, pytorch_candidates
from ppcls.cli.arguments.options import option
from ppcls.cli.benchmark import common
from ppcls.cli.command import command
from ppcls.errors import UserError
from ppcls.report.summary.rounding import format_ratio_with_range

if TYPE_CHECKING:  # not needed for --help
    from ppcls.bench.measure.runner import Candidate
    from ppcls.bench.train.variants import Inspection, Variant

_CONFIG = Path(__file__).resolve().parents[2] / "configs/ResNet50_photos.yaml"
# Transformers and ConvNeXt are usually trained with AdamW, the others with SGD, as in the config.
_WITH_ADAMW = ("ConvNeXt_tiny", "SwinTransformer_tiny_patch4_window7_224", "ViT_base_patch16_224")
# ResNet18 is too small to keep such a GPU busy. It is the network that most people train on a CPU.
_ON_GPUS = tuple(model for model in TIMM_MODELS if model != "ResNet18")
_ADAMW = "{name: AdamW, weight_decay: 0.05, lr: {name: Cosine, learning_rate: 1.0e-4}}"


@dataclass(frozen=True, kw_only=True)
class FamiliesOptions(common.EffortOptions):
    """Measure training steps of networks of several families on one batch, beside timm in PyTorch.

    ppcls trains with the fused kernels in NHWC, on a GPU also with a CUDA graph; PyTorch trains in
    channels_last, eager and compiled. Both use AMP O1, or float32 on a CPU. The random batch stays on the
    device, so data loading is not measured. Each measurement is a process of its own. To use several GPUs,
    start the command once for each, with other --models and the variable CUDA_VISIBLE_DEVICES.
    """

    examples: ClassVar[Sequence[str]] = (
        "python benchmarks/run.py families --torch PYTHON --out families",
        "python benchmarks/run.py families --models ResNet50 ViT_base_patch16_224 --batch-size 64",
        "python benchmarks/run.py families --models ResNet18 ResNet50 --precision float32 --batch-size 8",
    )

    models: tuple[str, ...] = option(_ON_GPUS, "architectures to measure")
    precision: Literal["O1", "O1-bfloat16", "float32"] = option(
        "O1", "O1 is float16, O1-bfloat16 is bfloat16; a CPU needs float32"
    )
    batch_size: int = option(128, "number of images per batch", gt=0)
    torch: str = option(
        sys.executable,
        "Python interpreter with torch, torchvision and timm (default: the current interpreter)",
        metavar="PYTHON",
    )
    out: Path | None = out_option()


@command("families", FamiliesOptions)
def measure_families(options: FamiliesOptions) -> None:
    """Measures all models, and prints one table."""
    if unknown := sorted(set(options.models) - set(TIMM_MODELS)):
        raise UserError(f"--models: expected names among {', '.join(TIMM_MODELS)}, got {', '.join(unknown)}")
    from ppcls.bench.results.schema import new_results
    from ppcls.recipe.load import dump_config, load_config

    common.check_out(options.out)
    version = find_pytorch(options.torch)
    common.report(f"PyTorch {version} in {options.torch}")
    families = {model: list(_candidates(options, model)) for model in options.models}
    measured = [candidate for group in families.values() for _, candidate in group]
    inspection = families[options.models[0]][0][0]
    with charts_of(options.out):
        common.measure_and_report(
            options.out,
            options.rounds,
            new_results(
                "train",
                str(_CONFIG),
                dump_config(load_config(str(_CONFIG))),
                inspection.machine,
                inspection.versions | {"PyTorch": version},
            ),
            measured,
            lambda: _compare(families),
        )


def _candidates(options: FamiliesOptions, model: str) -> Iterator[tuple[Inspection, Candidate[Variant]]]:
    """Yields the facts about a model and its candidates: ppcls, PyTorch, and PyTorch compiled."""
    from benchmarks.pytorch.candidates import pytorch_variants
    from ppcls.bench.train.tasks import TrainTask, inspect_machine, make_candidates
    from ppcls.bench.train.variants import config_variant
    from ppcls.recipe.load import load_config

    overrides = [
        f"Arch.name={model}",
        "Arch.data_format=NHWC",
        f"DataLoader.Train.sampler.batch_size={options.batch_size}",
        "Global.fused_kernels=True",
        f"AMP.use_amp={options.precision != 'float32'}",
        "AMP.level=O1",
        f"AMP.dtype={'bfloat16' if options.precision == 'O1-bfloat16' else 'float16'}",
    ]
    if model in _WITH_ADAMW:
        overrides.append(f"Optimizer={_ADAMW}")
    config = load_config(str(_CONFIG), overrides)
    inspection = inspect_machine(_CONFIG, overrides)
    effort = asdict(options.effort(None))
    task = TrainTask(config=str(_CONFIG), overrides=overrides, phase_steps=0, **effort)
    sampler = config.DataLoader.need_train().sampler
    base = config_variant(sampler, config.Arch, config.AMP, inspection)
    theirs = pytorch_variants([base], compiled=True)
    candidates = make_candidates([base], task, inspection, base)
    candidates += pytorch_candidates(options.torch, list(theirs), task, inspection, config, timm=True)
    for candidate in candidates:
        yield inspection, replace(candidate, name=f"{model}, {candidate.name}")


def _compare(families: dict[str, list[tuple[Any, Candidate[Variant]]]]) -> Iterator[str]:
    """Yields one sentence per model that compares ppcls with the faster way of PyTorch."""
    for model, group in families.items():
        ours, *theirs = [candidate for _, candidate in group]
        theirs = [candidate for candidate in theirs if candidate.samples]
        if ours.samples and theirs:
            best = max(theirs, key=lambda candidate: candidate.rate.median)
            times = format_ratio_with_range(ours.ratio(best).values, "times")
            yield f"{model}: ppcls has {times} the images/s of {best.key.framework} with timm."
        if ours.samples:
            yield f"{model}: {ours.samples[0]['execution']}."
