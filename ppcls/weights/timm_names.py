"""Translates between parameter names of our networks and those of timm and torchvision.

If a network computes other numbers than the one of the same name in timm, an error explains the difference.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from paddle import nn
from paddle.vision import models

from ppcls.arch.families.alexnet import AlexNet
from ppcls.arch.families.darknet import DarkNet53
from ppcls.arch.families.densenet import DenseNet
from ppcls.arch.families.dpn import DPN
from ppcls.arch.families.efficientnet import EfficientNet, TinyNet
from ppcls.arch.families.efficientnet_lite import EfficientNetLite
from ppcls.arch.families.efficientnet_v2 import EfficientNetV2
from ppcls.arch.families.ghostnet import GhostNet
from ppcls.arch.families.hrnet import HRNet
from ppcls.arch.families.inception_v3 import InceptionV3
from ppcls.arch.families.inception_v4 import InceptionV4
from ppcls.arch.families.levit import LeViT
from ppcls.arch.families.mixnet import MixNet
from ppcls.arch.families.mobilenet import MobileNetV1Net, MobileNetV2Net, MobileNetV3Net
from ppcls.arch.families.mobilenet_v4 import MobileNetV4
from ppcls.arch.families.pp_lcnet import PPLCNet
from ppcls.arch.families.res2net import Res2Net
from ppcls.arch.families.resnest import ResNeSt
from ppcls.arch.families.resnet import BasicSEResNet, ResNet
from ppcls.arch.families.squeezenet import SqueezeNet
from ppcls.arch.families.swin_transformer import SwinTransformer
from ppcls.arch.families.swin_transformer_v2 import SwinTransformerV2
from ppcls.arch.families.vgg import VGG
from ppcls.arch.families.xception import Xception
from ppcls.arch.families.xception_deeplab import XceptionDeepLab
from ppcls.arch.layers.mobile import LateFeatures
from ppcls.arch.layers.residual import NumberedResNet
from ppcls.errors import UserError
from ppcls.weights.timm_rules import apply_rules, timm_rules, torchvision_rules

_MOBILENET = "the first block of PaddleClas's {0} has one more convolution; set Arch.name: {1}, Paddle's own"
# Networks that differ from those of timm and torchvision, and how.
_DIFFERENT: dict[type[nn.Layer], str] = {
    VGG: "PaddleClas's VGG has no bias in its convolutions; set Arch.name: vgg11 … vgg19, Paddle's own",
    MobileNetV2Net: _MOBILENET.format("MobileNetV2", "mobilenet_v2"),
    MobileNetV3Net: _MOBILENET.format("MobileNetV3", "mobilenet_v3_large or mobilenet_v3_small"),
    SqueezeNet: "the max pooling of PaddleClas's SqueezeNet drops incomplete windows at the edge",
    Xception: "a block of PaddleClas's Xception has two separable convolutions, one of timm's has three",
}
# Networks that fit only as their `timm_variant`, and how the others differ; see also `_check_file`.
_VARIANTS: dict[type[nn.Layer], str] = {
    BasicSEResNet: "PaddleClas's SE-ResNet squeezes 64 channels more, and projects its first shortcut",
    DarkNet53: "PaddleClas's DarkNet53 has ReLU instead of leaky ReLU",
    GhostNet: "PaddleClas's GhostNet differs in squeeze-and-excitation and in the last convolution",
    InceptionV4: "PaddleClas's InceptionV4 has its 1x7 and 7x1 convolutions in another order",
    LeViT: "PaddleClas's LeViT has one classifier, timm's has two",
    MobileNetV1Net: "PaddleClas's MobileNetV1 has ReLU instead of ReLU6",
    MobileNetV4: "attention in PaddleClas's MobileNetV4 divides products by a larger number",
    PPLCNet: "the last convolution of PaddleClas's PPLCNet has no bias",
    TinyNet: "PaddleClas's TinyNet rounds its numbers of blocks up",
    Res2Net: "PaddleClas's Res2Net does not count padding in average pooling, and has another first block",
    ResNeSt: "PaddleClas's ResNeSt does not count padding in average pooling",
    XceptionDeepLab: "the last block of PaddleClas's Xception_deeplab is dilated",
}
_VARIANT = "Arch.timm_variant: True"
# Names of timm's networks whose weights have the names and shapes of another network's.
_ANTIALIASED = re.compile(r"resne[xt]t?(aa|blur)\d|efficientnet_blur_|mobilenetv4_conv_(aa|blur)_")
_WINDOWS = re.compile(r"window(\d+)(?:to(\d+))?_")  # of Swin Transformer V2: in pretraining, and after it
_EVEN_V2 = re.compile(r"(?<!tf_)efficientnetv2")
_EFFICIENTNET = (EfficientNet, EfficientNetLite)
_MOBILENET_V3 = (models.MobileNetV3Large, models.MobileNetV3Small)
_TORCHVISION_B5 = 2048  # features of EfficientNetB5; from there on torchvision's epsilon is ours
_EPSILON, _INCEPTION_EPSILON = 1e-5, 1e-3  # of BatchNorm in networks of `_other_epsilon`; the other is ours


class Translation(NamedTuple):
    """How a file's weights correspond to a model's.

    Attributes:
        names: Names in the file, where BatchNorm's statistics have Paddle's names, to names in the model.
        epsilon: BatchNorm's epsilon where the weights come from, if it is not that of the model.
        factors: Names in the model to factors on the weights from the file. Dropout that scales its output
            at inference, as PaddleClas's does, needs larger weights in the next layer.
        biases: Names in the file of convolutions' biases that the model lacks, to the mean of the following
            BatchNorm, from which they are subtracted.
    """

    names: dict[str, str]
    epsilon: float | None = None
    factors: Mapping[str, float] = MappingProxyType({})
    biases: Mapping[str, str] = MappingProxyType({})


def read_names(model: nn.Layer, names: Iterable[str], source: str) -> Translation:
    """Returns how weights of timm or torchvision correspond to those of a model.

    Args:
        names: All names of the file, except that BatchNorm's statistics have Paddle's.
        source: The file or its name on the hub, for errors.

    Raises:
        UserError: The network differs from the one of the same name in timm.
    """
    file_names, own = set(names), model.state_dict().keys()
    derived = tuple(f".{name}" for name in getattr(model, "derived", ()))
    identical = file_names >= {name for name in own if not name.endswith(derived)}
    if _ANTIALIASED.search(source):
        raise UserError(
            f"{source}: this network of timm smooths features before it halves their size, which no "
            "architecture of ppcls does"
        )
    if isinstance(model, SwinTransformerV2) and (windows := _WINDOWS.search(source)):
        sides = int(windows[1]), int(windows[2] or windows[1])
        if sides != model.window_sides:
            raise UserError(
                f"{source}: expected windows of {model.window_sides[0]} tokens in pretraining and "
                f"{model.window_sides[1]} after it, got {sides[0]} and {sides[1]}"
            )
    _check_family(model, source, identical=identical)
    if identical and not isinstance(model, EfficientNetLite):  # which has timm's names
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
    """Returns how a model's weights correspond to those of timm, for export.

    Args:
        architecture: Its name, for errors.

    Raises:
        UserError: timm has no network that computes the same numbers.
    """
    rules, names = timm_rules(model), model.state_dict()
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
    """Returns a name of a file in its present form: old torchvision files have ``norm.1`` for ``norm1``."""
    return re.sub(r"\.(norm|conv)\.(\d)\.", r".\1\2.", name) if isinstance(model, DenseNet) else name


def _other_epsilon(model: nn.Layer, *, timm: bool) -> float | None:
    """Returns the epsilon of BatchNorm in timm or torchvision if it is not the model's."""
    if isinstance(model, _EFFICIENTNET) and model.timm_variant:
        large = isinstance(model, EfficientNet) and model._fc.weight.shape[0] >= _TORCHVISION_B5
        return None if large and not timm else _EPSILON
    if isinstance(model, (DPN, InceptionV3, InceptionV4, models.InceptionV3)):
        return _INCEPTION_EPSILON
    return _EPSILON if isinstance(model, _MOBILENET_V3) and timm else None


def _factors(model: nn.Layer) -> dict[str, float]:
    """Returns the factors of a translation."""
    if isinstance(model, AlexNet):
        return dict.fromkeys(("_fc6.weight", "_fc7.weight"), 1 / (1 - model.drop.p))
    if isinstance(model, (LateFeatures, InceptionV3, models.InceptionV3)):
        return {"fc.weight": 1 / (1 - model.dropout.p)}
    if isinstance(model, InceptionV4):
        return {"out.weight": 1 / (1 - model._drop.p)}
    return {"_fc.weight": 1 / (1 - model._drop.p)} if isinstance(model, XceptionDeepLab) else {}


def _biases(model: nn.Layer, names: Mapping[str, str]) -> dict[str, str]:
    """Maps names of convolution biases in the file to the BatchNorm means that absorb them."""
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
        source: Where the weights are, for errors.
        identical: Whether the weights have the model's names, as those of the network's authors can have.

    Raises:
        UserError: It has none.
    """
    kinds = () if identical else _DIFFERENT.items()
    difference = next((text for kind, text in kinds if isinstance(model, kind)), "")
    if not difference and not identical and not getattr(model, "timm_variant", True):
        reason = next((text for kind, text in _VARIANTS.items() if isinstance(model, kind)), "")
        difference = f"{reason}; set {_VARIANT}" if reason else ""
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
    if isinstance(model, _EFFICIENTNET):
        is_tensorflow = "tf_efficientnet" in source
        if model.timm_variant and is_tensorflow:
            raise UserError(f"{source}: this network pads as in TensorFlow; set Arch.timm_variant: False")
        is_export = isinstance(model, EfficientNetLite) and "efficientnet_lite" not in source
        if not model.timm_variant and not is_tensorflow and not is_export:
            raise UserError(
                f"{source}: its name must contain tf_efficientnet. Other EfficientNets of timm and "
                f"torchvision differ in padding and epsilon; for these set {_VARIANT}"
            )
    if isinstance(model, EfficientNetV2) and _EVEN_V2.search(source):
        raise UserError(
            f"{source}: timm's efficientnetv2 differs in padding; use tf_efficientnetv2_* of timm"
        )
    if isinstance(model, MixNet) and not re.search(r"(?<!tf_)mixnet", source):
        raise UserError(
            f"{source}: its name must contain mixnet, and not tf_mixnet: timm's tf_mixnet_* have the same "
            "names, but other padding and epsilon, and are not supported"
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
