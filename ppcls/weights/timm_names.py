"""Translates between the parameter names of ppcls and those of timm and torchvision.

If a network computes different numbers than timm's network of the same name, an error explains this.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from paddle import nn
from paddle.vision import models

from ppcls.arch.families.alexnet import AlexNet
from ppcls.arch.families.densenet import DenseNet
from ppcls.arch.families.dpn import DPN
from ppcls.arch.families.efficientnet import EfficientNet
from ppcls.arch.families.efficientnet_lite import EfficientNetLite
from ppcls.arch.families.efficientnet_v2 import EfficientNetV2
from ppcls.arch.families.hrnet import HRNet
from ppcls.arch.families.inception_v3 import InceptionV3
from ppcls.arch.families.inception_v4 import InceptionV4
from ppcls.arch.families.mixnet import MixNet
from ppcls.arch.families.resnest import ResNeSt
from ppcls.arch.families.resnet import ResNet
from ppcls.arch.families.swin_transformer import SwinTransformer
from ppcls.arch.families.swin_transformer_v2 import SwinTransformerV2
from ppcls.arch.families.xception_deeplab import XceptionDeepLab
from ppcls.arch.layers.mobile import LateFeatures
from ppcls.arch.layers.residual import NumberedResNet
from ppcls.errors import UserError
from ppcls.weights.timm_rules import apply_rules, family_entry, timm_rules, torchvision_rules

_VARIANT = "Arch.timm_variant: True"
# Names of timm's networks whose weights have the same names and shapes as those of another network.
_ANTIALIASED = re.compile(r"resne[xt]t?(aa|blur)\d|efficientnet_blur_|mobilenetv4_conv_(aa|blur)_")
_WINDOWS = re.compile(r"window(\d+)(?:to(\d+))?_")  # Swin Transformer V2's windows in and after pretraining
_EVEN_V2 = re.compile(r"(?<!tf_)efficientnetv2")
_EFFICIENTNET = (EfficientNet, EfficientNetLite)
_MOBILENET_V3 = (models.MobileNetV3Large, models.MobileNetV3Small)
_TORCHVISION_B5 = 2048  # features of EfficientNetB5; torchvision has the same epsilon from B5 on
# epsilons of BatchNorm in timm or torchvision
_EPSILON = 1e-5
_INCEPTION_EPSILON = 1e-3


class Translation(NamedTuple):
    """The relation between the weights in a file and the weights of a model.

    Attributes:
        names: Name in the model for each name in the file, in which BatchNorm's statistics already have
            Paddle's names.
        epsilon: BatchNorm's epsilon in the network of the file; None if it is the same as in the model.
        factors: Factor for each weight in the file, by its name in the model. PaddleClas's dropout scales its
            output at inference. Therefore the next layer needs larger weights.
        biases: For each bias of a convolution in the file that the model does not have, the name of the mean
            of the next BatchNorm. The bias is subtracted from this mean.
    """

    names: dict[str, str]
    epsilon: float | None = None
    factors: Mapping[str, float] = MappingProxyType({})
    biases: Mapping[str, str] = MappingProxyType({})


def read_names(model: nn.Layer, names: Iterable[str], source: str) -> Translation:
    """Returns the translation of weights of timm or torchvision to those of a model.

    Args:
        model: Model for the weights.
        names: All names in the file, with Paddle's names for BatchNorm's statistics.
        source: Path of the file, or its name on the Hugging Face hub, for error messages.

    Raises:
        UserError: The network differs from the network with the same name in timm.
    """
    file_names = set(names)
    own = model.state_dict().keys()
    derived = tuple(f".{name}" for name in getattr(model, "derived", ()))
    identical = file_names >= {name for name in own if not name.endswith(derived)}
    if _ANTIALIASED.search(source):
        raise UserError(
            f"{source}: this network of timm smooths features before it halves their size; ppcls has no such "
            "architecture, use other weights"
        )
    if isinstance(model, SwinTransformerV2) and (windows := _WINDOWS.search(source)):
        sides = int(windows[1]), int(windows[2] or windows[1])
        if sides != model.window_sides:
            raise UserError(
                f"{source}: expected windows of {model.window_sides[0]} tokens in pretraining and "
                f"{model.window_sides[1]} after it, got {sides[0]} and {sides[1]}; choose the architecture "
                "with these windows"
            )
    _check_family(model, source, identical=identical)
    if identical and not isinstance(model, EfficientNetLite):  # EfficientNetLite always has timm's names
        return Translation({name: name for name in file_names})
    _check_file(model, file_names, source)
    theirs = {_plain(model, name): name for name in file_names}
    pairs = [
        {theirs.get(theirs_name := apply_rules(rules, name), theirs_name): name for name in own}
        for rules in (timm_rules(model) or (), torchvision_rules(model))
    ]
    best = max(pairs, key=lambda pair: len(pair.keys() & file_names))
    epsilon = _other_epsilon(model, timm=best is pairs[0])
    return Translation(best, epsilon, _factors(model), _biases(model, best))


def write_names(model: nn.Layer, architecture: str) -> Translation:
    """Returns the translation of a model's weights to those of timm, for export.

    Args:
        model: The model.
        architecture: Name of the architecture, for error messages.

    Raises:
        UserError: timm has no network that computes the same numbers.
    """
    rules = timm_rules(model)
    names = model.state_dict()
    _check_family(model, architecture, identical=False)
    if rules is None or architecture.startswith(("ViT_small", "ResNeSt50_fast")):
        raise UserError(f"{architecture}: timm has no network that computes the same numbers")
    if "blocks.0.short.conv.weight" in names and "blocks.0.conv2.conv.weight" not in names:
        raise UserError(
            f"{architecture}: in timm, the shortcut of the first block has no convolution; train with "
            "Arch.use_first_short_conv: False"
        )
    pairs = {apply_rules(rules, name): name for name in names}
    return Translation(pairs, _other_epsilon(model, timm=True), _factors(model), _biases(model, pairs))


def _plain(model: nn.Layer, name: str) -> str:
    """Returns the current form of a name. Old torchvision files have ``norm.1`` instead of ``norm1``."""
    return re.sub(r"\.(norm|conv)\.(\d)\.", r".\1\2.", name) if isinstance(model, DenseNet) else name


def _other_epsilon(model: nn.Layer, *, timm: bool) -> float | None:
    """Returns the epsilon of BatchNorm in timm or torchvision; None if it is the same as in the model."""
    if isinstance(model, _EFFICIENTNET) and model.timm_variant:
        large = isinstance(model, EfficientNet) and model._fc.weight.shape[0] >= _TORCHVISION_B5
        return None if large and not timm else _EPSILON
    if isinstance(model, (DPN, InceptionV3, InceptionV4, models.InceptionV3)):
        return _INCEPTION_EPSILON
    return _EPSILON if isinstance(model, _MOBILENET_V3) and timm else None


def _factors(model: nn.Layer) -> dict[str, float]:
    """Returns `Translation.factors` for a model."""
    if isinstance(model, AlexNet):
        return dict.fromkeys(("_fc6.weight", "_fc7.weight"), 1 / (1 - model.drop.p))
    if isinstance(model, (LateFeatures, InceptionV3, models.InceptionV3)):
        return {"fc.weight": 1 / (1 - model.dropout.p)}
    if isinstance(model, InceptionV4):
        return {"out.weight": 1 / (1 - model._drop.p)}
    return {"_fc.weight": 1 / (1 - model._drop.p)} if isinstance(model, XceptionDeepLab) else {}


def _biases(model: nn.Layer, names: Mapping[str, str]) -> dict[str, str]:
    """Returns `Translation.biases` for a model."""
    means = {theirs: name for theirs, name in names.items() if name.endswith("._mean")}
    if isinstance(model, ResNeSt):
        norm = ".conv2.bn1._mean"
        return {
            theirs.replace(norm, ".conv2.fc1.bias"): name for theirs, name in means.items() if norm in theirs
        }
    heads = ("cls_head_conv_list.", "conv_last.") if isinstance(model, HRNet) else ()
    return {
        theirs.replace(".1._mean", ".0.bias"): name
        for theirs, name in means.items()
        if name.startswith(heads)
    }


def _check_family(model: nn.Layer, source: str, *, identical: bool) -> None:
    """Checks that timm has a network that computes the same numbers as a model.

    Args:
        model: The model.
        source: Path or name of the weights, for error messages.
        identical: Whether the weights have the names of the model, which is possible for weights of the
            network's authors.
    """
    difference = None if identical else family_entry(model, "different")
    if not difference and not identical and not getattr(model, "timm_variant", True):
        reason = family_entry(model, "variant")  # `_check_file` checks further differences
        difference = f"{reason}; set {_VARIANT}" if reason else None
    if isinstance(model, SwinTransformer) and model.shifts_single_window:
        difference = (
            "PaddleClas's Swin shifts windows even if one window covers the whole feature map; set "
            "Arch.shift_single_window: False"
        )
    if difference:
        raise UserError(
            f"{source}: weights of timm or torchvision do not fit this architecture: {difference}"
        )


def _check_file(model: nn.Layer, names: set[str], source: str) -> None:
    """Checks from the names in a file and the name of the file that its network equals the model."""
    if isinstance(model, _EFFICIENTNET):
        is_tensorflow = "tf_efficientnet" in source
        if model.timm_variant and is_tensorflow:
            raise UserError(f"{source}: this network pads as in TensorFlow; set Arch.timm_variant: False")
        is_export = isinstance(model, EfficientNetLite) and "efficientnet_lite" not in source
        if not model.timm_variant and not is_tensorflow and not is_export:
            raise UserError(
                f"{source}: expected a file name with 'tf_efficientnet'. Other EfficientNets of timm and "
                f"torchvision differ in padding and epsilon; to use them, set {_VARIANT}"
            )
    if isinstance(model, EfficientNetV2) and _EVEN_V2.search(source):
        raise UserError(
            f"{source}: timm's efficientnetv2_* models are not supported, because their padding differs; use "
            "weights of timm's tf_efficientnetv2_* models"
        )
    if isinstance(model, MixNet) and not re.search(r"(?<!tf_)mixnet", source):
        raise UserError(
            f"{source}: expected a file name with 'mixnet' but without 'tf_mixnet'; timm's tf_mixnet_* "
            "models are not supported: their parameters have the same names, but padding and epsilon differ"
        )
    if isinstance(model, _MOBILENET_V3) and "tf_mobilenetv3" in source:
        raise UserError(
            f"{source}: timm's tf_mobilenetv3_* models are not supported, because their padding differs; use "
            "weights of timm's mobilenetv3_*_100 models"
        )
    if isinstance(model, (ResNet, NumberedResNet)):
        first = "blocks.0.short.conv.weight" if isinstance(model, ResNet) else "bb_0_0.short._conv.weight"
        if first in model.state_dict() and not any(name.startswith("layer1.0.downsample.") for name in names):
            option = "; set Arch.use_first_short_conv: False" if isinstance(model, ResNet) else ""
            raise UserError(
                f"{source}: the shortcut of the first block has no convolution in the file, but has one in "
                f"the model{option}"
            )
