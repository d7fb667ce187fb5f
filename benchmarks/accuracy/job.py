"""Describes a config for `benchmarks.accuracy.torch_training`, which trains the same run with PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ppcls.data.index.idx import IdxDataset
from ppcls.errors import UserError

if TYPE_CHECKING:
    from ppcls.data.section import Split
    from ppcls.recipe.schema import Config

_TRANSFORMS = {
    "DecodeImage", "ResizeImage", "Pad", "RandomCropImage", "RandFlipImage", "NormalizeImage",
    "RandomErasing",
}  # fmt: skip


def describe_run(config: Config, weights: Path, *, compiled: bool) -> dict[str, Any]:
    """Returns the settings of the run, which `torch_training` reads as JSON.

    Args:
        config: Config of a WideResNet on an `IdxDataset`.
        weights: File of the initial weights, from `write_weights`.
        compiled: Whether PyTorch compiles the network.

    Raises:
        UserError: The config has a part that `torch_training` does not have.
    """
    arch = config.Arch.exported
    if arch.name != "WideResNet":
        raise UserError(
            f"Arch.name: expected WideResNet, which the script for PyTorch defines, got {arch.name}"
        )
    train = config.DataLoader.need_train()
    optimizer = config.Optimizer
    _check("Optimizer.name", optimizer.kind, "Momentum")
    _check("Optimizer.lr.name", optimizer.lr.kind, "Cosine")
    _check("Loss.Train", config.Loss.Train[0].kind, "CELoss")
    rule = optimizer.model_dump()
    schedule = rule["lr"]
    loss = config.Loss.Train[0].model_dump()
    transforms = _transforms(train)
    normalize = transforms["NormalizeImage"]
    amp = config.AMP
    return {
        "seed": config.Global.seed,
        "epochs": config.Global.epochs,
        "eval_interval": config.Global.eval_interval,
        "compile": compiled,
        "precision": amp.dtype if amp is not None and amp.use_amp else "float32",
        "classes": arch.class_num,
        "depth": arch.depth or 28,
        "widen_factor": arch.widen_factor or 2,
        "batch_norm_momentum": arch.batch_norm_momentum or 0.999,
        "weights": str(weights),
        "train": _files(train),
        "test": _files(config.DataLoader.splits["Eval"]),
        "batch_size": train.sampler.rows(1),
        "learning_rate": schedule["learning_rate"],
        "warmup_epochs": schedule["warmup_epoch"],
        "momentum": rule["momentum"],
        "nesterov": rule["use_nesterov"],
        "weight_decay": (rule["regularizer"] or {"coeff": 0.0})["coeff"],
        "smoothing": loss.get("epsilon") or 0.0,
        "ema": None if config.EMA is None else config.EMA.model_dump(include={"decay", "warmup"}),
        "mean": normalize["mean"][0],
        "std": normalize["std"][0],
        "padding": transforms["Pad"]["padding"][0],
        "flip": transforms["RandFlipImage"].get("prob", 0.5),
        "erase": _erasing(transforms.get("RandomErasing")),
    }


def write_weights(config: Config, file: Path) -> None:
    """Writes the weights with which the run starts, as arrays by name (.npz)."""
    from ppcls.api import build_state

    state = build_state(config)
    np.savez(file, **{name: value.numpy() for name, value in state.model.state_dict().items()})


def _check(key: str, found: Any, expected: str) -> None:
    if found != expected:
        raise UserError(f"{key}: expected {expected}, as in the script for PyTorch, got {found}")


def _files(split: Split) -> dict[str, str]:
    dataset = split.dataset
    if not isinstance(dataset, IdxDataset):
        raise UserError(
            f"DataLoader: expected IdxDataset, which the script for PyTorch reads, got {dataset.kind}"
        )
    return {"image_file": dataset.image_file, "label_file": dataset.label_file}


def _transforms(split: Split) -> dict[str, dict[str, Any]]:
    """Returns the keys of each training transform, by its name."""
    transforms = {spec.kind: spec.model_dump() for spec in split.dataset.transform_ops}
    if unknown := sorted(set(transforms) - _TRANSFORMS):
        raise UserError(f"DataLoader.Train: the script for PyTorch does not have {', '.join(unknown)}")
    return transforms


def _erasing(spec: dict[str, Any] | None) -> dict[str, float] | None:
    if spec is None:
        return None
    return {"probability": spec["EPSILON"], "sl": spec["sl"], "sh": spec["sh"], "r1": spec["r1"]}
