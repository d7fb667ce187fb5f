"""Variants of training with PyTorch, for comparison with ppcls, and the processes that measure them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ppcls.bench.measure.runner import Candidate
from ppcls.bench.train.tasks import TrainTask, make_candidate
from ppcls.bench.train.variants import PRECISIONS, Inspection, Variant
from ppcls.data.transforms.base import check_chain
from ppcls.engine.autotune.processes import MeasurementFailed, MeasuringProcess
from ppcls.errors import UserError
from ppcls.recipe.schema import Config

EAGER = "PyTorch"
COMPILED = "PyTorch, compiled"
# timm's names of networks that ppcls has too. Others are taken from torchvision.
TIMM_MODELS = {
    "ConvNeXt_tiny": "convnext_tiny",
    "DenseNet121": "densenet121",
    "EfficientNetB0": "efficientnet_b0",
    "MobileNetV3_large_x1_0": "mobilenetv3_large_100",
    "ResNet18": "resnet18",
    "ResNet50": "resnet50",
    "ResNeXt50_32x4d": "resnext50_32x4d",
    "SwinTransformer_tiny_patch4_window7_224": "swin_tiny_patch4_window7_224",
    "ViT_base_patch16_224": "vit_base_patch16_224",
}
_WORKER = str(Path(__file__).with_name("torch_worker.py"))
_IMPORT_SECONDS = 300.0  # timeout of importing PyTorch


def find_pytorch(python: str) -> str:
    """Returns the versions of PyTorch and torchvision for a Python interpreter.

    Raises:
        UserError: The interpreter cannot be started, or cannot import PyTorch and torchvision.
    """
    try:
        return str(MeasuringProcess([python, _WORKER], {}, _IMPORT_SECONDS).run()["version"])
    except MeasurementFailed as failure:
        raise UserError(
            f"--torch {python}: {failure.reason}; expected a Python interpreter with torch and torchvision"
        ) from None


def pytorch_variants(variants: Sequence[Variant], *, compiled: bool) -> Iterator[Variant]:
    """Yields the variants of PyTorch that correspond to ppcls's variants on synthetic data.

    Each is eager and, if ``compiled``, also compiled. O2 becomes O1, because PyTorch supports only autocast,
    which corresponds to O1.
    """
    synthetic = [
        replace(variant, precision=variant.precision.replace("O2", "O1"))
        for variant in variants
        if variant.source == "synthetic"
    ]
    for variant in dict.fromkeys(synthetic):
        for framework in (EAGER, COMPILED) if compiled else (EAGER,):
            yield replace(variant, framework=framework)


def pytorch_candidates(
    python: str,
    variants: Sequence[Variant],
    task: TrainTask,
    inspection: Inspection,
    config: Config,
    *,
    timm: bool = False,
) -> list[Candidate[Variant]]:
    """Returns candidates that measure variants of training with PyTorch.

    Args:
        python: Python interpreter with PyTorch.
        variants: Variants to measure, from `pytorch_variants`.
        task: Task of all variants.
        inspection: Facts about the machine.
        config: Config of the run to compare with.
        timm: Whether to train the networks of `TIMM_MODELS`, instead of those of torchvision.
    """
    split = config.DataLoader.need_train()
    base = {
        "model": config.Arch.exported.name,
        "timm": TIMM_MODELS.get(config.Arch.exported.name) if timm else None,
        "optimizer": config.Optimizer.kind,
        "classes": config.Arch.class_num,
        "parameters": inspection.rgb_parameters,
        "size": check_chain(split.dataset.transform_ops).size,
        "device": inspection.device,
        "warm_up": task.warm_up,
        "settle": inspection.settle_seconds,
        "steps": task.counted,
        "seconds": task.seconds,
    }

    def make_process(variant: Variant) -> MeasuringProcess:
        cores = max(1, inspection.cores // variant.processes)
        torch_task = base | {
            "batch_size": variant.batch_size or split.sampler.rows(variant.processes),
            "processes": variant.processes,
            "threads": min(inspection.threads, cores),
            "format": PRECISIONS[variant.precision].format,
            "layout": variant.layout,
            "cudnn_search": not config.Global.deterministic,
            "accumulate": config.Global.update_freq,
            "compile": variant.framework == COMPILED,
        }
        count = str(variant.processes)
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", count]
        command = [python, *(launcher if variant.processes > 1 else []), _WORKER]
        return MeasuringProcess(command, torch_task, task.timeout, variant.environment())

    return [make_candidate(variant, inspection, make_process) for variant in variants]
