"""Translates between parameter names of our networks and those of timm and torchvision.

If a network computes other numbers than the one of the same name in timm, an error explains the difference.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from paddle import nn
from paddle.vision import models

from ppcls.arch.families.densenet import DenseNet
from ppcls.arch.families.efficientnet import EfficientNet
from ppcls.arch.families.ghostnet import GhostNet
from ppcls.arch.families.mobilenet import MobileNetV2Net, MobileNetV3Net
from ppcls.arch.families.res2net import Res2Net
from ppcls.arch.families.resnet import ResNet
from ppcls.arch.families.swin_transformer import SwinTransformer
from ppcls.arch.families.vgg import VGG
from ppcls.arch.layers.residual import NumberedResNet
from ppcls.errors import UserError
from ppcls.weights.timm_rules import apply_rules, timm_rules, torchvision_rules

_MOBILENET = "the first block of PaddleClas's {0} has one more convolution; set Arch.name: {1}, Paddle's own"
# Networks that differ from those of timm and torchvision, and how.
_DIFFERENT: dict[type[nn.Layer], str] = {
    VGG: "PaddleClas's VGG has no bias in its convolutions; set Arch.name: vgg11 … vgg19, Paddle's own",
    MobileNetV2Net: _MOBILENET.format("MobileNetV2", "mobilenet_v2"),
    MobileNetV3Net: _MOBILENET.format("MobileNetV3", "mobilenet_v3_large or mobilenet_v3_small"),
    GhostNet: "PaddleClas's GhostNet has another number of channels in squeeze-and-excitation",
    Res2Net: "the average pooling of PaddleClas's Res2Net does not count padding",
}
_MOBILENET_V3 = (models.MobileNetV3Large, models.MobileNetV3Small)
_TIMM_EPSILON = 1e-5  # of BatchNorm in timm's mobilenetv3_*; Paddle's and torchvision's is 1e-3


class Translation(NamedTuple):
    """How a file's weights correspond to a model's.

    Attributes:
        names: Names in the file, where BatchNorm's statistics have Paddle's names, to names in the model.
        epsilon: BatchNorm's epsilon where the weights come from, if it is not that of the model.
    """

    names: dict[str, str]
    epsilon: float | None = None


def read_names(model: nn.Layer, names: Iterable[str], source: str) -> Translation:
    """Returns how weights of timm or torchvision correspond to those of a model.

    Args:
        model: The model.
        names: All names of the file, except that BatchNorm's statistics have Paddle's.
        source: The file or its name on the hub, for errors.

    Raises:
        UserError: The network differs from the one of the same name in timm.
    """
    found, own = set(names), model.state_dict().keys()
    identical = found >= {name for name in own if not name.endswith(".relative_position_index")}
    _check_family(model, source, identical=identical)
    if identical:
        return Translation({name: name for name in found})
    _check_file(model, found, source)
    theirs = {_plain(model, name): name for name in found}
    pairs = [
        {theirs.get(theirs_name := apply_rules(rules, name), theirs_name): name for name in own}
        for rules in (timm_rules(model) or (), torchvision_rules(model))
    ]
    best = max(pairs, key=lambda pair: len(pair.keys() & found))
    return Translation(best, _timm_epsilon(model) if best is pairs[0] else None)


def write_names(model: nn.Layer, architecture: str) -> Translation:
    """Returns how a model's weights correspond to those of timm, for export.

    Args:
        model: The model.
        architecture: Its name, for errors.

    Raises:
        UserError: timm has no network that computes the same numbers.
    """
    rules, names = timm_rules(model), model.state_dict()
    _check_family(model, architecture, identical=False)
    squeezed = names.get("bb_0_0.scale.squeeze.weight")
    unlike = squeezed is not None and squeezed.shape[1] % 8  # timm's squeeze-and-excitation is wider
    if rules is None or unlike or architecture.startswith("ViT_small") or "stage0.se.down.weight" in names:
        raise UserError(f"{architecture}: timm has no network that computes the same numbers")
    if "blocks.0.short.conv.weight" in names and "blocks.0.conv2.conv.weight" not in names:
        raise UserError(
            f"{architecture}: in timm, the shortcut of the first block has no convolution; train with "
            "Arch.use_first_short_conv: False"
        )
    return Translation({apply_rules(rules, name): name for name in names}, _timm_epsilon(model))


def _plain(model: nn.Layer, name: str) -> str:
    """Returns a name of a file in its present form: old torchvision files have ``norm.1`` for ``norm1``."""
    return re.sub(r"\.(norm|conv)\.(\d)\.", r".\1\2.", name) if isinstance(model, DenseNet) else name


def _timm_epsilon(model: nn.Layer) -> float | None:
    return _TIMM_EPSILON if isinstance(model, _MOBILENET_V3) else None


def _check_family(model: nn.Layer, source: str, *, identical: bool) -> None:
    """Checks that timm has a network that computes the same numbers as a model.

    Args:
        model: The model.
        source: Where the weights are, for errors.
        identical: Whether the weights have the model's names, as those of the network's authors can have.

    Raises:
        UserError: It has none.
    """
    kinds = () if identical else _DIFFERENT.items()
    difference = next((text for kind, text in kinds if isinstance(model, kind)), "")
    if isinstance(model, SwinTransformer) and model.shifts_single_window:
        difference = (
            "PaddleClas's Swin shifts windows also where one window covers the whole feature map; set "
            "Arch.shift_single_window: False"
        )
    if difference:
        raise UserError(
            f"{source}: weights of timm or torchvision do not fit this architecture: {difference}"
        )


def _check_file(model: nn.Layer, names: set[str], source: str) -> None:
    """Checks what a file's names and its own name show about its network.

    Raises:
        UserError: It computes other numbers than the model.
    """
    if isinstance(model, EfficientNet) and "tf_efficientnet" not in source:
        raise UserError(
            f"{source}: its name must contain tf_efficientnet. timm's other EfficientNets differ in "
            "padding and epsilon, which the file does not show"
        )
    if isinstance(model, _MOBILENET_V3) and "tf_mobilenetv3" in source:
        raise UserError(f"{source}: timm's tf_mobilenetv3 differs in padding; use mobilenetv3_*_100 of timm")
    if isinstance(model, (ResNet, NumberedResNet)):
        first = "blocks.0.short.conv.weight" if isinstance(model, ResNet) else "bb_0_0.short._conv.weight"
        if first in model.state_dict() and not any(name.startswith("layer1.0.downsample.") for name in names):
            option = "; set Arch.use_first_short_conv: False" if isinstance(model, ResNet) else ""
            raise UserError(
                f"{source}: the shortcut of its first block has no convolution, but this model's has{option}"
            )
