"""Rules from the parameter names of our networks, which are PaddleClas's, to those of timm and torchvision.

A family's rules are patterns and replacements, as of `re.sub`, which are applied one after the other. They
may depend on the model, for example on which blocks start a stage. Parameters that no rule changes have the
same names. Only networks that compute the same numbers have rules: `tests/support/timm_reference.py` compares
their logits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

from paddle import nn
from paddle.vision import models

from ppcls.arch.families.convnext import ConvNeXt
from ppcls.arch.families.densenet import DenseNet
from ppcls.arch.families.efficientnet import EfficientNet
from ppcls.arch.families.efficientnet_lite import EfficientNetLite
from ppcls.arch.families.pp_hgnet import PPHGNet, PPHGNetV2
from ppcls.arch.families.regnet import RegNet
from ppcls.arch.families.repvgg import RepVGG
from ppcls.arch.families.resnet import ResNet
from ppcls.arch.families.swin_transformer import SwinTransformer
from ppcls.arch.families.vision_transformer import VisionTransformer
from ppcls.arch.layers.residual import NumberedResNet

_Replacement = str | Callable[[re.Match[str]], str]
Rules = Sequence[tuple[str, _Replacement]]


def timm_rules(model: nn.Layer) -> Rules | None:
    """Returns the rules to timm's names; None for a family that timm does not have."""
    return next((rules(model) for kind, rules in _TIMM.items() if isinstance(model, kind)), None)


def torchvision_rules(model: nn.Layer) -> Rules:
    """Returns the rules to torchvision's names, which are timm's in some families."""
    found = next((rules(model) for kind, rules in _TORCHVISION.items() if isinstance(model, kind)), None)
    return (timm_rules(model) or ()) if found is None else found


def apply_rules(rules: Rules, name: str) -> str:
    """Returns the name that follows from ``name``."""
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def _shift(template: str, by: int) -> _Replacement:
    """Returns a replacement that fills ``template`` with a match's groups and adds ``by`` to numbers."""

    def replace(match: re.Match[str]) -> str:
        return template.format(*(int(part) + by if part.isdigit() else part for part in match.groups()))

    return replace


def _positions(firsts: Iterable[bool]) -> list[tuple[int, int]]:
    """Returns (stage, position in the stage) of each block, given whether it starts a stage."""
    positions: list[tuple[int, int]] = []
    for first in firsts:
        stage, i = positions[-1] if positions else (-1, 0)
        positions.append((stage + 1, 0) if first else (stage, i + 1))
    return positions


def _resnet(model: nn.Layer) -> Rules:
    """ResNet, ResNeXt, SE-ResNet, and their "vd" variants, which timm names "d"."""
    numbered = isinstance(model, NumberedResNet)
    conv, norm = ("_conv", "_batch_norm") if numbered else ("conv", "bn")
    stem = r"^conv1_(\d)" if numbered else r"^stem\.(\d)"
    pooled = int(any(isinstance(layer, nn.AvgPool2D) for layer in model.sublayers()))
    names = model.state_dict()
    start: list[tuple[str, _Replacement]]
    if "conv1_1._conv.weight" in names or "stem.1.conv.weight" in names:
        by = -1 if numbered else 0
        start = [
            (rf"{stem}\.{conv}\.", lambda match: f"conv1.{3 * (int(match[1]) + by)}."),
            (
                rf"{stem}\.{norm}\.",
                lambda match: "bn1." if int(match[1]) + by == 2 else f"conv1.{3 * (int(match[1]) + by) + 1}.",
            ),
        ]
    else:
        single = "conv" if numbered else r"stem\.0"
        start = [(rf"^{single}\.{conv}\.", "conv1."), (rf"^{single}\.{norm}\.", "bn1.")]
    blocks: tuple[str, _Replacement] = (
        r"^bb_(\d)_(\d+)\.",
        lambda match: f"layer{int(match[1]) + 1}.{match[2]}.",
    )
    if not numbered:
        count = len(model.blocks)
        places = _positions(i == 0 or f"blocks.{i}.short.conv.weight" in names for i in range(count))
        blocks = (
            r"^blocks\.(\d+)\.",
            lambda match: f"layer{places[int(match[1])][0] + 1}.{places[int(match[1])][1]}.",
        )
    return [
        *start,
        blocks,
        (rf"^(layer.*)\.conv(\d)\.{conv}\.", _shift("{}.conv{}.", 1)),
        (rf"^(layer.*)\.conv(\d)\.{norm}\.", _shift("{}.bn{}.", 1)),
        (rf"\.short\.{conv}\.", f".downsample.{pooled}."),
        (rf"\.short\.{norm}\.", f".downsample.{pooled + 1}."),
        (r"\.scale\.squeeze\.", ".se.fc1."),
        (r"\.scale\.excitation\.", ".se.fc2."),
        (r"^out\.", "fc."),
    ]


_INVERTED = {  # parts of an inverted residual in timm's names: convolution and norm
    False: {"expand": ("conv_pw", "bn1"), "depthwise": ("conv_dw", "bn2"), "project": ("conv_pwl", "bn3")},
    True: {"depthwise": ("conv_dw", "bn1"), "project": ("conv_pw", "bn2")},  # a block that does not expand
}


def _efficientnet(model: nn.Layer) -> Rules:
    """EfficientNet with the padding and the epsilon of TensorFlow, which are also ours."""
    expands = dict[int, bool]()
    for name in model.state_dict():
        if match := re.match(r"_ef\.(_blocks|block)\.(\d+)\.\.", name):
            expands[int(match[2])] = match[1] == "_blocks"
    places = _positions(expands[i] for i in sorted(expands))
    parts = {"e": "expand", "d": "depthwise", "p": "project"}

    def rename(match: re.Match[str]) -> str:
        stage, i = places[int(match[1])]
        conv, norm = _INVERTED[stage == 0][parts[match[2]]]
        return f"blocks.{stage}.{i}.{norm if match[3] == '_bn' else conv}."

    return [
        (r"^_ef\._conv_stem\._conv\._conv\._conv\.", "conv_stem."),
        (r"^_ef\._conv_stem\._conv\._bn\.|^_ef\._conv_stem\._bn\.", "bn1."),
        (r"^_conv\._conv\._conv\.", "conv_head."),
        (r"^_conv\._bn\.", "bn2."),
        (r"^_fc\.", "classifier."),
        (r"\._se\._conv1\._conv\.", "._se.conv_reduce."),
        (r"\._se\._conv2\._conv\.", "._se.conv_expand."),
        (
            r"^_ef\.(?:_blocks|block)\.(\d+)\.\._se\.",
            lambda match: "blocks.{}.{}.se.".format(*places[int(match[1])]),
        ),
        (r"^_ef\.(?:_blocks|block)\.(\d+)\.\._([edp])cn\._conv\.(_conv\._conv|_bn)\.", rename),
        (r"^_ef\.(?:_blocks|block)\.(\d+)\.\._([edp])cn\.(_bn)\.", rename),
    ]


_V2_DEPTHS = (1, 2, 3, 4, 3, 3, 1)


def _mobilenet_v2(_: nn.Layer) -> Rules:
    starts = {0, *accumulate(_V2_DEPTHS)}
    places = _positions(i in starts for i in range(sum(_V2_DEPTHS)))

    def rename(match: re.Match[str]) -> str:
        stage, i = places[int(match[1]) - 1]
        parts = _INVERTED[stage == 0]
        order = [name for pair in parts.values() for name in pair]
        indexes = [f"{j}.{k}" for j in range(len(parts) - 1) for k in (0, 1)]
        indexes += [str(len(parts) - 1), str(len(parts))]
        return f"blocks.{stage}.{i}.{order[indexes.index(match[2])]}."

    return [
        (r"^features\.0\.0\.", "conv_stem."),
        (r"^features\.0\.1\.", "bn1."),
        (r"^features\.18\.0\.", "conv_head."),
        (r"^features\.18\.1\.", "bn2."),
        (r"^features\.(\d+)\.conv\.([\d.]+)\.", rename),
        (r"^classifier\.1\.", "classifier."),
    ]


_V3_DEPTHS = {models.MobileNetV3Large: (1, 2, 3, 4, 2, 3), models.MobileNetV3Small: (1, 2, 3, 2, 3)}


def _mobilenet_v3(model: nn.Layer) -> Rules:
    depths = next(depths for kind, depths in _V3_DEPTHS.items() if isinstance(model, kind))
    starts = {0, *accumulate(depths)}
    places = _positions(i in starts for i in range(sum(depths)))
    parts = {"expand_conv": "expand", "bottleneck_conv": "depthwise", "linear_conv": "project"}

    def rename(match: re.Match[str]) -> str:
        stage, i = places[int(match[1])]
        return f"blocks.{stage}.{i}.{_INVERTED[stage == 0][parts[match[2]]][int(match[3])]}."

    return [
        (r"^conv\.0\.", "conv_stem."),
        (r"^conv\.1\.", "bn1."),
        (r"^lastconv\.0\.", f"blocks.{len(depths)}.0.conv."),
        (r"^lastconv\.1\.", f"blocks.{len(depths)}.0.bn1."),
        (r"^blocks\.(\d+)\.(\w+_conv)\.(\d)\.", rename),
        (
            r"^blocks\.(\d+)\.mid_se\.fc",
            lambda match: "blocks.{}.{}.se.fc".format(*places[int(match[1])]),
        ),
        (r"\.se\.fc1\.", ".se.conv_reduce."),
        (r"\.se\.fc2\.", ".se.conv_expand."),
        (r"^classifier\.0\.", "conv_head."),
        (r"^classifier\.3\.", "classifier."),
    ]


def _torchvision_mobilenet_v3(model: nn.Layer) -> Rules:
    names, count = model.state_dict(), len(model.blocks)

    def rename(match: re.Match[str]) -> str:
        block = int(match[1])
        parts = [
            part
            for part in ("expand_conv", "bottleneck_conv", "mid_se", "linear_conv")
            if any(name.startswith(f"blocks.{block}.{part}.") for name in names)
        ]
        return f"features.{block + 1}.block.{parts.index(match[2])}."

    return [
        (r"^conv\.", "features.0."),
        (r"^lastconv\.", f"features.{count + 1}."),
        (r"^blocks\.(\d+)\.(\w+)\.", rename),
    ]


_CONVNEXT: Rules = [
    (r"^head\.", "head.fc."),
    (r"^norm\.", "head.norm."),
    (r"^downsample_layers\.0\.", "stem."),
    (r"^stages\.(\d)\.", r"stages.\1.blocks."),
    (r"^downsample_layers\.(\d)\.", r"stages.\1.downsample."),
    (r"\.dwconv\.", ".conv_dw."),
    (r"\.pwconv(\d)\.", r".mlp.fc\1."),
]
_TORCHVISION_CONVNEXT: Rules = [
    (r"^head\.", "classifier.2."),
    (r"^norm\.", "classifier.0."),
    (r"^downsample_layers\.(\d)\.", lambda match: f"features.{2 * int(match[1])}."),
    (r"^stages\.(\d)\.", lambda match: f"features.{2 * int(match[1]) + 1}."),
    (r"\.gamma$", ".layer_scale"),
    (r"\.dwconv\.", ".block.0."),
    (r"\.norm\.", ".block.2."),
    (r"\.pwconv1\.", ".block.3."),
    (r"\.pwconv2\.", ".block.5."),
]
_DENSENET: Rules = [
    (r"^conv1_func\._conv\.", "features.conv0."),
    (r"^conv1_func\._batch_norm\.", "features.norm0."),
    (r"^batch_norm\.", "features.norm5."),
    (
        r"^db_conv_(\d)\.conv\d_(\d+)\.",
        lambda match: f"features.denseblock{int(match[1]) - 1}.denselayer{match[2]}.",
    ),
    (r"^tr_conv(\d)_blk\.conv_ac_func\._conv\.", _shift("features.transition{}.conv.", -1)),
    (r"^tr_conv(\d)_blk\.conv_ac_func\._batch_norm\.", _shift("features.transition{}.norm.", -1)),
    (r"\.bn_ac_func(\d)\._conv\.", r".conv\1."),
    (r"\.bn_ac_func(\d)\._batch_norm\.", r".norm\1."),
    (r"^out\.", "classifier."),
]
_REGNET: Rules = [
    (r"^conv\.", "stem."),
    (r"^s(\d)_b(\d+)\.", r"s\1.b\2."),
    (r"\.conv(\d)\.", _shift(".conv{}.", 1)),
    (r"\.short\.", ".downsample."),
    (r"\._conv\.", ".conv."),
    (r"\._batch_norm\.", ".bn."),
    (r"^out\.", "head.fc."),
]
_TORCHVISION_REGNET: Rules = [
    (r"^conv\.", "stem."),
    (r"^s(\d)_b(\d+)\.", lambda match: f"trunk_output.block{match[1]}.block{match[1]}-{int(match[2]) - 1}."),
    (r"\.conv(\d)\.", lambda match: f".f.{'abc'[int(match[1])]}."),
    (r"\.short\.", ".proj."),
    (r"\._conv\.", ".0."),
    (r"\._batch_norm\.", ".1."),
    (r"^out\.", "fc."),
]
_REPVGG: Rules = [
    (r"^stage0\.", "stem."),
    (r"^stage(\d)\.", _shift("stages.{}.", -1)),
    (r"\.rbr_dense\.", ".conv_kxk."),
    (r"\.rbr_1x1\.", ".conv_1x1."),
    (r"\.rbr_identity\.", ".identity."),
    (r"^linear\.", "head.fc."),
]
_SWIN: Rules = [
    (r"^layers\.(\d)\.downsample\.", _shift("layers.{}.downsample.", 1)),
    (r"^head\.", "head.fc."),
]
_TORCHVISION_SWIN: Rules = [
    (r"^patch_embed\.proj\.", "features.0.0."),
    (r"^patch_embed\.norm\.", "features.0.2."),
    (r"^layers\.(\d)\.blocks\.", lambda match: f"features.{2 * int(match[1]) + 1}."),
    (r"^layers\.(\d)\.downsample\.", lambda match: f"features.{2 * int(match[1]) + 2}."),
    (r"\.mlp\.fc1\.", ".mlp.0."),
    (r"\.mlp\.fc2\.", ".mlp.3."),
]
_TORCHVISION_VIT: Rules = [
    (r"^cls_token$", "class_token"),
    (r"^pos_embed$", "encoder.pos_embedding"),
    (r"^patch_embed\.proj\.", "conv_proj."),
    (r"^blocks\.(\d+)\.", r"encoder.layers.encoder_layer_\1."),
    (r"\.norm(\d)\.", r".ln_\1."),
    (r"\.attn\.qkv\.", ".self_attention.in_proj_"),
    (r"\.attn\.proj\.", ".self_attention.out_proj."),
    (r"\.mlp\.fc1\.", ".mlp.0."),
    (r"\.mlp\.fc2\.", ".mlp.3."),
    (r"^norm\.", "encoder.ln."),
    (r"^head\.", "heads.head."),
]
_HGNET: Rules = [
    (r"\.aggregation_conv\.|\.aggregation_squeeze_conv\.", ".aggregation.0."),
    (r"\.att\.conv\.", ".aggregation.1.conv."),
    (r"\.aggregation_excitation_conv\.", ".aggregation.1."),
    (r"^last_conv\.", "head.last_conv.0."),
    (r"^lab\.", "head.last_conv.2."),
    (r"^fc\.", "head.fc."),
]
_VGG: Rules = [
    (r"^classifier\.0\.", "pre_logits.fc1."),
    (r"^classifier\.3\.", "pre_logits.fc2."),
    (r"^classifier\.6\.", "head.fc."),
]
_TIMM: dict[type[nn.Layer], Callable[[nn.Layer], Rules]] = {
    ResNet: _resnet,
    NumberedResNet: _resnet,
    ConvNeXt: lambda _: _CONVNEXT,
    DenseNet: lambda _: _DENSENET,
    RegNet: lambda _: _REGNET,
    RepVGG: lambda _: _REPVGG,
    EfficientNet: _efficientnet,
    SwinTransformer: lambda _: _SWIN,
    PPHGNet: lambda _: [(r"^stem\.", "stem.stem."), *_HGNET],
    PPHGNetV2: lambda _: _HGNET,
    VisionTransformer: lambda _: (),
    EfficientNetLite: lambda _: (),
    models.ResNet: lambda _: (),
    models.VGG: lambda _: _VGG,
    models.MobileNetV2: _mobilenet_v2,
    models.MobileNetV3Large: _mobilenet_v3,
    models.MobileNetV3Small: _mobilenet_v3,
}
_TORCHVISION: dict[type[nn.Layer], Callable[[nn.Layer], Rules]] = {
    ConvNeXt: lambda _: _TORCHVISION_CONVNEXT,
    RegNet: lambda _: _TORCHVISION_REGNET,
    SwinTransformer: lambda _: _TORCHVISION_SWIN,
    VisionTransformer: lambda _: _TORCHVISION_VIT,
    models.VGG: lambda _: (),  # Paddle's functions have torchvision's names
    models.MobileNetV2: lambda _: (),
    models.MobileNetV3Large: _torchvision_mobilenet_v3,
    models.MobileNetV3Small: _torchvision_mobilenet_v3,
}
