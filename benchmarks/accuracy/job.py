"""Describes a config for `benchmarks.accuracy.torch_training`, which trains the same run with PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.pytorch.candidates import TIMM_MODELS
from ppcls.data.index.idx import IdxDataset, read_idx
from ppcls.data.transforms.batch import CutmixOperator, MixupOperator, OpSampler
from ppcls.errors import UserError

if TYPE_CHECKING:
    from ppcls.arch.section import Arch
    from ppcls.data.section import Split
    from ppcls.data.transforms.batch import BatchTransform
    from ppcls.optimizer.base import Optimizer
    from ppcls.recipe.schema import Config

# The transforms of the script for PyTorch, in the order in which it applies them.
_TRANSFORMS = (
    "DecodeImage", "ResizeImage", "Pad", "RandomCropImage", "RandFlipImage", "NormalizeImage",
    "RandomErasing",
)  # fmt: skip
_EVAL_TRANSFORMS = ("DecodeImage", "ResizeImage", "NormalizeImage")
_TIMM = TIMM_MODELS | {
    "DeiT_tiny_patch16_224": "deit_tiny_patch16_224",
    "DeiT_small_patch16_224": "deit_small_patch16_224",
    "ResNet34": "resnet34",
}
# Options of ``Arch`` and their names in timm. The initial weights come from ppcls, so options that only
# change these are not listed.
_OPTIONS = {"img_size": "img_size", "patch_size": "patch_size", "drop_path_rate": "drop_path_rate"}
_WEIGHT_OPTIONS = {"layer_scale_init_value", "head_init_scale"}
_OTHER_OPTIONS = {
    "depth",
    "widen_factor",
    "wide_block",
    "stride_list",
    "use_first_short_conv",
}  # read by `_network`


def describe_run(config: Config, weights: Path, *, compiled: bool) -> dict[str, Any]:
    """Returns the settings of the run, which `torch_training` reads as JSON.

    Args:
        config: Config of a WideResNet, or of a network that timm has, on an `IdxDataset`.
        weights: File of the initial weights, from `write_weights`.
        compiled: Whether PyTorch compiles the network.

    Raises:
        UserError: The config has a part that `torch_training` does not have.
    """
    arch = config.Arch.exported
    train = config.DataLoader.need_train()
    loss = config.Loss.Train[0].model_dump()
    _check("Loss.Train", [spec.kind for spec in config.Loss.Train], ["CELoss"])
    _check("Loss.Train.0.CELoss.logit_adjustment", loss["logit_adjustment"], None)
    _check("Global.update_freq", config.Global.update_freq, 1)
    _check("Global.auto_scale_lr", config.Global.auto_scale_lr, False)
    _check("DataLoader.Train.sampler.name", train.sampler.kind, "DistributedBatchSampler")
    amp = config.AMP
    network = _network(arch)
    test = config.DataLoader.splits["Eval"]
    transforms = _transforms("Train", train, _TRANSFORMS)
    normalize = transforms["NormalizeImage"]
    for_test = _transforms("Eval", test, _EVAL_TRANSFORMS)
    for key in ("mean", "std"):
        _check(f"DataLoader.Eval: NormalizeImage.{key}", for_test["NormalizeImage"][key], normalize[key])
    batch_size = train.sampler.rows(1)
    images = len(read_idx(Path(_dataset(train).label_file)))
    drop_last = train.sampler.drop_last
    per_epoch = images // batch_size if drop_last else -(-images // batch_size)
    rate = config.Optimizer.lr.build(config.Global.epochs, per_epoch)
    return {
        "seed": config.Global.seed,
        "epochs": config.Global.epochs,
        "eval_interval": config.Global.eval_interval,
        "compile": compiled,
        "precision": amp.dtype if amp is not None and amp.use_amp else "float32",
        "classes": arch.class_num,
        "network": network,
        "weights": str(weights),
        "train": _images(train, transforms),
        "test": _images(test, for_test),
        "batch_size": batch_size,
        "drop_last": drop_last,
        "optimizer": _optimizer(config.Optimizer),
        "sam": _sharpness_aware(config.Optimizer),
        "learning_rates": [rate(update) for update in range(config.Global.epochs * per_epoch)],
        "smoothing": loss.get("epsilon") or 0.0,
        "ema": None if config.EMA is None else config.EMA.model_dump(include={"decay", "warmup"}),
        "mean": list(normalize["mean"]),
        "std": list(normalize["std"]),
        "padding": transforms["Pad"]["padding"][0] if "Pad" in transforms else 0,
        "flip": 0.5 if "RandFlipImage" in transforms else 0.0,
        "erase": _erasing(transforms.get("RandomErasing")),
        "mix": _mixing(train.dataset.batch_transform_ops),
    }


def write_weights(config: Config, file: Path) -> list[str]:
    """Writes the weights with which the run starts, as arrays by PyTorch's names (.npz).

    Returns:
        The names of the parameters without weight decay.
    """
    from ppcls.api import build_state
    from ppcls.weights.timm_names import write_names
    from ppcls.weights.torch_names import to_timm

    model = build_state(config).model
    arch = config.Arch.exported
    arrays = {name: value.numpy() for name, value in model.state_dict().items()}
    if arch.name == "WideResNet":
        names = {name: name for name in arrays}
        arrays["fc.weight"] = arrays["fc.weight"].T.copy()
        arrays = {
            name.replace("._mean", ".running_mean").replace("._variance", ".running_var"): value
            for name, value in arrays.items()
        }
    else:
        names = dict(write_names(model, arch.name).names)
        arrays = to_timm(model, arrays, arch.name)
    np.savez(file, **arrays)
    parameters = dict(model.named_parameters())
    return [
        theirs
        for theirs, ours in names.items()
        if ours in parameters and config.Optimizer.exempts(ours, parameters[ours].ndim == 1)
    ]


def _check(key: str, found: Any, expected: Any) -> None:
    """Raises a `UserError` if the script for PyTorch does not have a setting."""
    if found != expected:
        raise UserError(f"{key}: expected {expected}, as in the script for PyTorch, got {found}")


def _network(arch: Arch) -> dict[str, Any]:
    """Returns the settings of `torch_networks.build_network`."""
    options = arch.options
    if unknown := sorted(set(options) - {*_OPTIONS, *_WEIGHT_OPTIONS, *_OTHER_OPTIONS}):
        raise UserError(f"Arch.{unknown[0]}: the script for PyTorch does not have this option; remove it")
    network: dict[str, Any] = {
        "timm": None,
        "options": {_OPTIONS[key]: value for key, value in options.items() if key in _OPTIONS},
        "strides": None,
        "stem_patch": None,
        "batch_norm_momentum": arch.batch_norm_momentum,
    }
    if arch.name == "WideResNet":
        depth = options.get("depth", 28)
        if arch.batch_norm_momentum is None:
            network["batch_norm_momentum"] = 0.999
        block = options.get("wide_block", "fixmatch")
        return network | {"depth": depth, "widen_factor": options.get("widen_factor", 2), "block": block}
    if arch.name not in _TIMM:
        known = ", ".join(("WideResNet", *sorted(_TIMM)))
        raise UserError(f"Arch.name: expected a network that PyTorch trains, too ({known}), got {arch.name}")
    network["timm"] = _TIMM[arch.name]
    if arch.name.startswith("ConvNeXt"):
        network["stem_patch"] = network["options"].pop("patch_size", None)
    if arch.stride_list is not None:
        first, pooling, *stages = arch.stride_list
        _check("Arch.stride_list", [first, *stages], [first, 2, 2, 2])
        network["strides"] = [first, pooling]
    return network


def _optimizer(optimizer: Optimizer) -> dict[str, Any]:
    """Returns the settings of `torch_training.build_optimizer`; ``no_decay`` is set later."""
    if optimizer.kind not in ("Momentum", "AdamW"):
        raise UserError(
            f"Optimizer.name: expected Momentum or AdamW, as in the script for PyTorch, got {optimizer.kind}"
        )
    for key in ("clip_norm", "clip_value", "freeze", "train_only"):
        _check(f"Optimizer.{key}", getattr(optimizer, key), None)
    _check("Optimizer.by_name", optimizer.by_name, ())
    _check("Optimizer.layerwise_decay", optimizer.block_decay, None)
    keys = ("momentum", "use_nesterov", "beta1", "beta2", "epsilon")
    settings = {key: value for key, value in optimizer.model_dump().items() if key in keys}
    return settings | {"name": optimizer.kind, "weight_decay": optimizer.decay, "no_decay": []}


def _sharpness_aware(optimizer: Optimizer) -> dict[str, Any] | None:
    """Returns the settings of the second pass of SAM; None without one."""
    if optimizer.sam_rho is None:
        return None
    return {"rho": optimizer.sam_rho, "first_epoch": optimizer.sam_first_epoch}


def _images(split: Split, transforms: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Returns the files of a split, and height and width of its images."""
    dataset = _dataset(split)
    width, height = _image_size(dataset, transforms)
    files = {"image_file": dataset.image_file, "label_file": dataset.label_file}
    return {**files, "size": [height, width]}


def _image_size(dataset: IdxDataset, transforms: dict[str, dict[str, Any]]) -> tuple[int, int]:
    """Returns width and height of the images: those of ``ResizeImage``, or without it those of the file."""
    if "ResizeImage" in transforms and (size := transforms["ResizeImage"]["size"]) is not None:
        return tuple(size)
    height, width = read_idx(Path(dataset.image_file)).shape[1:3]
    return width, height


def _dataset(split: Split) -> IdxDataset:
    dataset = split.dataset
    if not isinstance(dataset, IdxDataset):
        raise UserError(
            f"DataLoader: expected IdxDataset, which the script for PyTorch reads, got {dataset.kind}"
        )
    return dataset


def _transforms(name: str, split: Split, expected: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Returns the keys of each transform of a split, by its name.

    Args:
        name: Name of the split.
        split: The split.
        expected: Transforms of the script for PyTorch, in its order.

    Raises:
        UserError: The script lacks a transform or one of its settings, or applies them in another order.
    """
    kinds = [spec.kind for spec in split.dataset.transform_ops]
    place = f"DataLoader.{name}"
    if unknown := sorted(set(kinds) - set(expected)):
        raise UserError(f"{place}: the script for PyTorch does not have {', '.join(unknown)}")
    _check(f"{place}: transforms", kinds, [kind for kind in expected if kind in kinds])
    transforms = {spec.kind: spec.model_dump() for spec in split.dataset.transform_ops}
    _check(f"{place}: NormalizeImage", "NormalizeImage" in transforms, True)
    size = _image_size(_dataset(split), transforms)
    required: dict[str, dict[str, Any]] = {
        "ResizeImage": {"size": size, "interpolation": "bilinear", "backend": "cv2"},
        "Pad": {"fill": (0.0,), "padding_mode": "constant"},
        "RandomCropImage": {"size": size},
        "RandFlipImage": {"flip_code": 1},
        "NormalizeImage": {"scale": 1 / 255},
        "RandomErasing": {"mean": (0.0,), "mode": "const", "use_log_aspect": False},
    }
    for kind in transforms.keys() & required.keys():
        for key, value in required[kind].items():
            _check(f"{place}: {kind}.{key}", transforms[kind][key], value)
    if "Pad" in transforms:
        padding = transforms["Pad"]["padding"]
        _check(f"{place}: Pad.padding", padding, padding[:1] * len(padding))
        _check(f"{place}: Pad without RandomCropImage", "RandomCropImage" in transforms, True)
    return transforms


def _erasing(spec: dict[str, Any] | None) -> dict[str, float] | None:
    if spec is None:
        return None
    return {"probability": spec["EPSILON"], "sl": spec["sl"], "sh": spec["sh"], "r1": spec["r1"]}


def _mixing(transforms: tuple[BatchTransform, ...]) -> dict[str, Any] | None:
    """Returns probability and alpha of Mixup and of CutMix, and the last epoch with them; None for no mixing.

    Raises:
        UserError: The script for PyTorch lacks the batch transform.
    """
    if not transforms:
        return None
    (transform,) = transforms  # the section accepts at most one
    mix: dict[str, Any] = {kind: {"prob": 0.0, "alpha": 1.0} for kind in ("mixup", "cutmix")}
    mix["last_epoch"] = transform.last_epoch
    if isinstance(transform, OpSampler):
        mix["mixup"] = transform.MixupOperator.model_dump()
        mix["cutmix"] = transform.CutmixOperator.model_dump()
    elif isinstance(transform, MixupOperator):
        mix["mixup"] = {"prob": 1.0, "alpha": transform.alpha}
    elif isinstance(transform, CutmixOperator):
        mix["cutmix"] = {"prob": 1.0, "alpha": transform.alpha}
    else:
        raise UserError(f"DataLoader.Train: the script for PyTorch does not have {transform.kind}")
    return mix
