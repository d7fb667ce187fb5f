"""Translates the parameter names of timm and torchvision into those of our networks, which are PaddleClas's.

Only networks that compute the same numbers are translated: `tests/support/timm_reference.py` compares their
logits. For the others an error explains the difference. ViT and DeiT need no rules: their names are ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from paddle import nn

from ppcls.arch.families.convnext import ConvNeXt
from ppcls.arch.families.densenet import DenseNet
from ppcls.arch.families.efficientnet import EfficientNet
from ppcls.arch.families.ghostnet import GhostNet
from ppcls.arch.families.mobilenet import MobileNetV2Net, MobileNetV3Net
from ppcls.arch.families.regnet import RegNet
from ppcls.arch.families.repvgg import RepVGG
from ppcls.arch.families.resnet import ResNet
from ppcls.arch.families.swin_transformer import SwinTransformer
from ppcls.arch.families.vgg import VGG
from ppcls.arch.layers.residual import NumberedResNet
from ppcls.errors import UserError

_Replacement = str | Callable[[re.Match[str]], str]
_Rules = Sequence[tuple[str, _Replacement]]  # patterns and replacements, as of `re.sub`

# Networks that differ from those of timm and torchvision, and how.
_DIFFERENT: dict[type[nn.Layer], str] = {
    VGG: "PaddleClas's VGG has no bias in its convolutions",
    MobileNetV2Net: "the first block of PaddleClas's MobileNetV2 has one more convolution",
    MobileNetV3Net: "the first block of PaddleClas's MobileNetV3 has one more convolution",
    SwinTransformer: "PaddleClas's Swin shifts windows also where one window covers the whole feature map",
    GhostNet: "PaddleClas's GhostNet has another number of channels in squeeze-and-excitation",
}


@dataclass(frozen=True)
class _TorchFile:
    """A file with weights of timm or torchvision.

    Attributes:
        model: Model that the weights are for.
        names: Names of the weights.
        source: The file or its name on the hub, for errors.
    """

    model: nn.Layer
    names: frozenset[str]
    source: str

    def number_blocks(self, pattern: str) -> dict[tuple[str, str], int]:
        """Returns (stage, block) to the number of the block in the whole network, counted from 0.

        Args:
            pattern: Start of a block's names, with a group for the stage and one for the block.
        """
        found = {(match[1], match[2]) for name in self.names if (match := re.match(pattern, name))}
        ordered = sorted(found, key=lambda pair: (int(pair[0]), int(pair[1])))
        return {pair: number for number, pair in enumerate(ordered)}


def timm_names(model: nn.Layer, names: Iterable[str], source: str) -> Callable[[str], str]:
    """Returns the function that translates a name of timm or torchvision to the name in a model.

    Args:
        model: The model.
        names: All names of the file, except that BatchNorm's statistics have Paddle's.
        source: The file or its name on the hub, for errors.

    Raises:
        UserError: The network differs from the one of the same name in timm.
    """
    file = _TorchFile(model, frozenset(names), source)
    own = file.names >= model.state_dict().keys()
    for kind, difference in _DIFFERENT.items():
        if isinstance(model, kind) and (
            not own or kind is SwinTransformer
        ):  # the authors' Swin has our names
            raise UserError(
                f"{source}: weights of timm or torchvision do not fit this architecture: {difference}; use "
                "weights of PaddleClas"
            )
    rules = (
        () if own else next((rules(file) for kind, rules in _RULES.items() if isinstance(model, kind)), ())
    )

    def translate(name: str) -> str:
        for pattern, replacement in rules:
            name = re.sub(pattern, replacement, name)
        return name

    return translate


def _shift(template: str, by: int) -> _Replacement:
    """Returns a replacement that fills ``template`` with a match's groups and adds ``by`` to numbers."""

    def replace(match: re.Match[str]) -> str:
        return template.format(*(int(part) + by if part.isdigit() else part for part in match.groups()))

    return replace


def _resnet(file: _TorchFile) -> _Rules:
    """ResNet, ResNeXt, SE-ResNet, and their "vd" variants, which timm names "d"."""
    block = r"^layer(\d)\.(\d+)\."
    if isinstance(file.model, ResNet):
        conv, norm, first, stem, classifier = "conv", "bn", "blocks.0", "stem.0", "fc."
        deep = [f"stem.{i}" for i in range(3)]
        numbers = file.number_blocks(block)
        blocks: tuple[str, _Replacement] = block, lambda match: f"blocks.{numbers[match[1], match[2]]}."
    else:
        conv, norm, first, stem, classifier = "_conv", "_batch_norm", "bb_0_0", "conv", "out."
        deep = [f"conv1_{i + 1}" for i in range(3)]
        blocks = r"^layer(\d)\.", _shift("bb_{}_", -1)
    projected = f"{first}.short.{conv}.weight" in file.model.state_dict()
    if projected and not any(name.startswith("layer1.0.downsample.") for name in file.names):
        option = "; set Arch.use_first_short_conv: False" if isinstance(file.model, ResNet) else ""
        raise UserError(
            f"{file.source}: the shortcut of its first block has no convolution, but this model's has{option}"
        )
    pooled = int(any(name.endswith(".downsample.2.weight") for name in file.names))
    if "conv1.weight" in file.names:
        start = [(r"^conv1\.", f"{stem}.{conv}."), (r"^bn1\.", f"{stem}.{norm}.")]
    else:
        start = [(rf"^conv1\.{3 * i}\.", f"{deep[i]}.{conv}.") for i in range(3)]
        start += [(rf"^conv1\.{3 * i + 1}\.", f"{deep[i]}.{norm}.") for i in range(2)]
        start += [(r"^bn1\.", f"{deep[2]}.{norm}.")]
    return [
        *start,
        (r"^(layer.*)\.conv(\d)\.", _shift(f"{{}}.conv{{}}.{conv}.", -1)),
        (r"^(layer.*)\.bn(\d)\.", _shift(f"{{}}.conv{{}}.{norm}.", -1)),
        (rf"\.downsample\.{pooled}\.", f".short.{conv}."),
        (rf"\.downsample\.{pooled + 1}\.", f".short.{norm}."),
        (r"\.se\.fc1\.", ".scale.squeeze."),
        (r"\.se\.fc2\.", ".scale.excitation."),
        blocks,
        (r"^fc\.", classifier),
    ]


def _efficientnet(file: _TorchFile) -> _Rules:
    """EfficientNet with the padding and the epsilon of TensorFlow, which are also ours."""
    if "tf_efficientnet" not in file.source:
        raise UserError(
            f"{file.source}: its name must contain tf_efficientnet. timm's other EfficientNets differ in "
            "padding and epsilon, which the file does not show"
        )
    block = r"^blocks\.(\d+)\.(\d+)\."
    numbers = file.number_blocks(block)
    conv, norm = "_conv._conv._conv.", "_conv._bn."
    first = {"conv_dw": "_dcn", "bn1": "_dcn", "conv_pw": "_pcn", "bn2": "_pcn"}  # blocks that do not expand
    later = {
        "conv_pw": "_ecn",
        "bn1": "_ecn",
        "conv_dw": "_dcn",
        "bn2": "_dcn",
        "conv_pwl": "_pcn",
        "bn3": "_pcn",
    }

    def rename_part(match: re.Match[str]) -> str:
        stage, position, part = match.groups()
        start = f"_ef.{'_blocks' if position == '0' else 'block'}.{numbers[stage, position]}.."
        return f"{start}{(first if stage == '0' else later)[part]}.{conv if 'conv' in part else norm}"

    return [
        (r"^conv_stem\.", f"_ef._conv_stem.{conv}"),
        (r"^bn1\.", f"_ef._conv_stem.{norm}"),
        (r"^conv_head\.", "_conv._conv._conv."),
        (r"^bn2\.", "_conv._bn."),
        (r"^classifier\.", "_fc."),
        (r"\.se\.conv_reduce\.", "._se._conv1._conv."),
        (r"\.se\.conv_expand\.", "._se._conv2._conv."),
        (
            block + r"(?=_se)",
            lambda match: f"_ef.{'_blocks' if match[2] == '0' else 'block'}.{numbers[match[1], match[2]]}..",
        ),
        (block + r"(\w+)\.", rename_part),
    ]


_CONVNEXT: _Rules = [
    (r"^stem\.", "downsample_layers.0."),
    (r"^stages\.(\d)\.downsample\.", r"downsample_layers.\1."),
    (r"^stages\.(\d)\.blocks\.", r"stages.\1."),
    (r"\.conv_dw\.", ".dwconv."),
    (r"\.mlp\.fc(\d)\.", r".pwconv\1."),
    (r"^head\.norm\.", "norm."),
    (r"^head\.fc\.", "head."),
]
_DENSENET: _Rules = [
    (r"^features\.conv0\.", "conv1_func._conv."),
    (r"^features\.norm0\.", "conv1_func._batch_norm."),
    (r"^features\.norm5\.", "batch_norm."),
    (r"^features\.denseblock(\d)\.denselayer", _shift("db_conv_{0}.conv{0}_", 1)),
    (r"\.conv\.?(\d)\.(?=weight)", r".bn_ac_func\1._conv."),
    (r"\.norm\.?(\d)\.", r".bn_ac_func\1._batch_norm."),
    (r"^features\.transition(\d)\.conv\.", _shift("tr_conv{}_blk.conv_ac_func._conv.", 1)),
    (r"^features\.transition(\d)\.norm\.", _shift("tr_conv{}_blk.conv_ac_func._batch_norm.", 1)),
    (r"^classifier\.", "out."),
]
_REGNET: _Rules = [
    (r"^stem\.", "conv."),
    (r"^s(\d)\.b(\d+)\.", r"s\1_b\2."),
    (r"\.conv(\d)\.", _shift(".conv{}.", -1)),
    (r"\.downsample\.", ".short."),
    (r"\.conv\.(?=weight)", "._conv."),
    (r"\.bn\.", "._batch_norm."),
    (r"^head\.fc\.", "out."),
]
_REPVGG: _Rules = [
    (r"^stem\.", "stage0."),
    (r"^stages\.(\d)\.", _shift("stage{}.", 1)),
    (r"\.conv_kxk\.", ".rbr_dense."),
    (r"\.conv_1x1\.", ".rbr_1x1."),
    (r"\.identity\.", ".rbr_identity."),
    (r"^head\.fc\.", "linear."),
]
_RULES: dict[type[nn.Layer], Callable[[_TorchFile], _Rules]] = {
    ResNet: _resnet,
    NumberedResNet: _resnet,
    ConvNeXt: lambda _: _CONVNEXT,
    DenseNet: lambda _: _DENSENET,
    RegNet: lambda _: _REGNET,
    RepVGG: lambda _: _REPVGG,
    EfficientNet: _efficientnet,
}
