"""Keys of the config that options of ``ppcls train`` for optimizer, augmentation and classes set."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ppcls.config.base.tree import Tree, node_at
from ppcls.errors import UserError

if TYPE_CHECKING:  # not needed for --help
    from ppcls.zoo import Architecture

POLICIES = ("AutoAugment", "RandAugment", "TrivialAugment", "AugMix")
_TRANSFORMS = "DataLoader.Train.dataset.transform_ops"
_MIXING = "DataLoader.Train.dataset.batch_transform_ops"
_SMOOTHED_LOSSES = ("CELoss", "BCELoss", "FocalLoss", "MultiLabelLoss")
# Keys of Arch for a rate of dropout. The first of them that an architecture has is set.
_DROPOUT_KEYS = ("classifier_dropout", "dropout_prob", "drop_rate", "dropout")


def read_optimizer(text: str) -> str:
    """Returns the name of an optimizer whose case may differ, such as ``AdamW`` for ``adamw``."""
    from ppcls.registry import OPTIMIZERS

    names = {name.lower(): name for name in OPTIMIZERS}
    if text.lower() not in names:
        raise argparse.ArgumentTypeError(f"expected one of {', '.join(OPTIMIZERS)}; got '{text}'")
    return names[text.lower()]


def set_weight_decay(tree: Tree, value: float) -> dict[str, Any]:
    """Returns the key of the weight decay of the optimizer in the config."""
    from ppcls.optimizer.base import CoupledOptimizer
    from ppcls.registry import OPTIMIZERS

    name = node_at(tree, "Optimizer.name")
    if isinstance(name, str) and name in OPTIMIZERS and issubclass(OPTIMIZERS[name], CoupledOptimizer):
        # The alias `weight_decay` has no effect if the file sets `regularizer`.
        return {"Optimizer.regularizer": {"name": "L2", "coeff": value}}
    return {"Optimizer.weight_decay": value}


def set_label_smoothing(tree: Tree, share: float) -> dict[str, Any]:
    """Returns the keys of label smoothing of all losses for training that have this key.

    Raises:
        UserError: No loss for training has label smoothing.
    """
    names = _losses(tree)
    keys = {
        f"Loss.Train.{position}.{name}.epsilon": share for position, name in names if name in _SMOOTHED_LOSSES
    }
    if not keys:
        raise UserError(
            f"--label-smoothing {share:g}: Loss.Train has {_join_losses(names)}; label smoothing exists for "
            f"{', '.join(_SMOOTHED_LOSSES)}"
        )
    return keys


def set_class_weights(tree: Tree, rule: str) -> dict[str, Any]:
    """Returns the keys of the class weights of all losses for training that have this key.

    Raises:
        UserError: No loss for training has class weights.
    """
    from ppcls.loss.class_weights import ClassWeightedLoss
    from ppcls.registry import LOSSES

    weighted = [name for name in LOSSES if issubclass(LOSSES[name], ClassWeightedLoss)]
    names = _losses(tree)
    keys = {
        f"Loss.Train.{position}.{name}.class_weight": rule for position, name in names if name in weighted
    }
    if not keys:
        raise UserError(
            f"--class-weights {rule}: Loss.Train has {_join_losses(names)}; class weights exist for "
            f"{', '.join(weighted)}"
        )
    return keys


def _losses(tree: Tree) -> list[tuple[int, str]]:
    """Returns the position and name of each loss for training."""
    losses = node_at(tree, "Loss.Train")
    return [
        (position, name)
        for position, loss in enumerate(losses if isinstance(losses, list) else [])
        for name in (loss if isinstance(loss, dict) else ())
    ]


def _join_losses(names: list[tuple[int, str]]) -> str:
    return ", ".join(name for _, name in names) or "no loss"


def set_mixup(tree: Tree, alpha: float) -> dict[str, Any]:
    """Returns the key of the transforms of batches, with Mixup. With CutMix too, each gets half."""
    return _set_mixing(tree, "MixupOperator", alpha)


def set_cutmix(tree: Tree, alpha: float) -> dict[str, Any]:
    """Returns the key of the transforms of batches, with CutMix; see `set_mixup`."""
    return _set_mixing(tree, "CutmixOperator", alpha)


def _set_mixing(tree: Tree, name: str, alpha: float) -> dict[str, Any]:
    # The other one may come from the file, or from the other option. An OpSampler of the file is replaced.
    # The last epoch of the file is kept. It is a key of the whole transform, not of an operator in OpSampler.
    operators = [item for item in node_at(tree, _MIXING) or [] if isinstance(item, dict)]
    transforms = {key: settings or {} for item in operators for key, settings in item.items()}
    if not all(isinstance(settings, dict) for settings in transforms.values()):
        return {}  # validation reports these settings
    mixing: dict[str, Any] = {}
    ending: dict[str, Any] = {}
    for key, settings in transforms.items():
        rest = dict(settings)
        if "last_epoch" in rest:
            ending = {"last_epoch": rest.pop("last_epoch")}
        if key.endswith("Operator"):
            mixing[key] = rest
    mixing.pop(name, None)
    if alpha:
        mixing[name] = {"alpha": alpha}
    if len(mixing) < 2:
        return {_MIXING: [{key: ending | value} for key, value in mixing.items()]}
    sampled = {key: {**value, "prob": 0.5} for key, value in mixing.items()}
    return {_MIXING: [{"OpSampler": ending | sampled}]}


def set_auto_augment(tree: Tree, policy: str) -> dict[str, Any]:
    """Returns the key of the training transforms, with a policy in front of the first NormalizeImage.

    Raises:
        UserError: The training images are not normalized.
    """
    others = [item for item in _transforms(tree) if not set(POLICIES) & set(item)]
    position = _position_of(others, "NormalizeImage", f"--auto-augment {policy}")
    return {_TRANSFORMS: [*others[:position], {policy: None}, *others[position:]]}


def set_random_erasing(tree: Tree, share: float) -> dict[str, Any]:
    """Returns the key of the training transforms, with RandomErasing after the first NormalizeImage.

    Raises:
        UserError: The training images are not normalized.
    """
    others = [item for item in _transforms(tree) if "RandomErasing" not in item]
    position = _position_of(others, "NormalizeImage", f"--random-erasing {share:g}") + 1
    erasing = [{"RandomErasing": {"EPSILON": share}}] if share else []
    return {_TRANSFORMS: [*others[:position], *erasing, *others[position:]]}


def set_color_jitter(tree: Tree, strength: float) -> dict[str, Any]:
    """Returns the key of the training transforms, with ColorJitter in front of the first NormalizeImage.

    Raises:
        UserError: The training images are not normalized.
    """
    others = [item for item in _transforms(tree) if "ColorJitter" not in item]
    position = _position_of(others, "NormalizeImage", f"--color-jitter {strength:g}")
    names = ("brightness", "contrast", "saturation")
    jitter = [{"ColorJitter": dict.fromkeys(names, strength)}] if strength else []
    return {_TRANSFORMS: [*others[:position], *jitter, *others[position:]]}


def _transforms(tree: Tree) -> list[Mapping[str, Any]]:
    items = node_at(tree, _TRANSFORMS)
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _position_of(transforms: list[Mapping[str, Any]], name: str, option: str) -> int:
    for position, item in enumerate(transforms):
        if name in item:
            return position
    raise UserError(f"{option}: expected {name} in {_TRANSFORMS}; add the transform there in the config file")


def set_freeze(_tree: Tree, _value: bool) -> dict[str, Any]:
    """Returns the keys that train only the last layer."""
    return {"Optimizer.train_only": ["classifier"], "Optimizer.freeze": None}


def set_dropout(tree: Tree, rate: float) -> dict[str, Any]:
    """Returns the key of the dropout rate of the architecture.

    Raises:
        UserError: The architecture has no such key.
    """
    return _set_rate(tree, f"--dropout {rate:g}", "dropout", _DROPOUT_KEYS, rate)


def set_drop_path(tree: Tree, rate: float) -> dict[str, Any]:
    """Returns the key of the rate of stochastic depth of the architecture.

    Raises:
        UserError: The architecture has no such key.
    """
    return _set_rate(tree, f"--drop-path {rate:g}", "stochastic depth", ("drop_path_rate",), rate)


def _set_rate(tree: Tree, option: str, what: str, keys: tuple[str, ...], rate: float) -> dict[str, Any]:
    from ppcls.registry import ARCHITECTURES, suggest_architecture
    from ppcls.zoo import ZOO, architecture

    name = str(node_at(tree, "Arch.name"))
    if name not in ARCHITECTURES:
        raise UserError(f"--model {name}: unknown architecture{suggest_architecture(name, list(ZOO))}")

    def find(each: Architecture) -> str | None:
        return next((key for key in keys if key in each.options), None)

    key = find(architecture(name))
    if key is None:
        families = sorted({each.family for each in ZOO.values() if find(each) is not None})
        raise UserError(
            f"{option}: {name} has no setting for {what}; families of architectures that have it: "
            f"{', '.join(families)}"
        )
    return {f"Arch.{key}": rate}


def set_val_split(tree: Tree, share: float) -> dict[str, Any]:
    """Returns the keys of the share of the images that is used for evaluation.

    Raises:
        UserError: The images are not split at random.
    """
    from ppcls.data.index.class_folders import find_class_root
    from ppcls.data.stored.roots import data_root, naming

    option = f"--val-split {share:g}"
    train = node_at(tree, "DataLoader.Train.dataset")
    if not isinstance(train, dict) or train.get("part") is None:
        raise UserError(
            f"{option}: expected a config that splits a folder of images at random (ImageFolderDataset with "
            "part: train); for lists of images, use `ppcls dataset split`"
        )
    name = str(train.get("image_root"))
    root = data_root(name)
    with naming(name, root):
        if root.is_dir() and find_class_root(root, "val")[1]:
            raise UserError(
                f"{option}: {root} has folders for training and validation, which are used as they are"
            )
    keys = {"DataLoader.Train.dataset.val_share": share}
    if "val_share" in (node_at(tree, "DataLoader.Eval.dataset") or {}):
        keys["DataLoader.Eval.dataset.val_share"] = share
    return keys
