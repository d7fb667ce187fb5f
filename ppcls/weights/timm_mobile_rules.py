"""Rules that rename the parameters of networks for small devices to the names in timm and torchvision.

The docstring of `ppcls.weights.timm_rules` describes the rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

from paddle import nn
from paddle.vision import models

Replacement = str | Callable[[re.Match[str]], str]
Rules = Sequence[tuple[str, Replacement]]


def unit(pattern: str, conv: Replacement, norm: Replacement) -> Rules:
    """Returns the rules of a convolution and its BatchNorm, which have two kinds of names in ppcls."""
    return [(rf"{pattern}_?conv\.", conv), (rf"{pattern}(?:_batch_norm|bn)\.", norm)]


def shift(template: str, by: int) -> Replacement:
    """Returns a replacement that fills ``template`` with a match's groups. Adds ``by`` to numbers."""

    def replace(match: re.Match[str]) -> str:
        return template.format(*(int(part) + by if part.isdigit() else part for part in match.groups()))

    return replace


def block_positions(firsts: Iterable[bool]) -> list[tuple[int, int]]:
    """Returns the stage and the position in the stage of each block.

    Args:
        firsts: For each block, whether it is the first block of a stage.
    """
    positions: list[tuple[int, int]] = []
    for first in firsts:
        stage, i = positions[-1] if positions else (-1, 0)
        positions.append((stage + 1, 0) if first else (stage, i + 1))
    return positions


def positions_of(depths: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the stage and the position in the stage of each block.

    Args:
        depths: Number of blocks per stage.
    """
    starts = {0, *accumulate(depths)}
    return block_positions(i in starts for i in range(sum(depths)))


def _in_stage(pattern: str, depths: Sequence[int]) -> tuple[str, Replacement]:
    """Returns a rule that replaces the number of a block by its stage and its position in the stage.

    Args:
        pattern: Pattern with one group, which matches the number of the block, counted from 0.
        depths: Number of blocks per stage.
    """
    places = positions_of(depths)
    return pattern, lambda match: "blocks.{}.{}.".format(*places[int(match[1])])


_INVERTED = {  # names in timm of the convolutions and norms of an inverted residual
    False: {"expand": ("conv_pw", "bn1"), "depthwise": ("conv_dw", "bn2"), "project": ("conv_pwl", "bn3")},
    True: {"depthwise": ("conv_dw", "bn1"), "project": ("conv_pw", "bn2")},  # a block without expansion
}
_SEPARABLE: Rules = [  # rules for the layers of a depthwise separable convolution
    *unit(r"\.(?:dw_conv|depthwise_conv)\.", ".conv_dw.", ".bn1."),
    *unit(r"\.(?:pw_conv|pointwise_conv)\.", ".conv_pw.", ".bn2."),
]


def _efficientnet_positions(model: nn.Layer) -> list[tuple[int, int]]:
    starts = dict[int, bool]()
    for name in model.state_dict():
        if match := re.match(r"_ef\.(_blocks|block)\.(\d+)\.\.", name):
            starts[int(match[2])] = match[1] == "_blocks"
    return block_positions(starts[i] for i in sorted(starts))


def efficientnet(model: nn.Layer) -> Rules:
    """Returns the rules of EfficientNet."""
    places = _efficientnet_positions(model)
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


def torchvision_efficientnet(model: nn.Layer) -> Rules:
    """Returns the rules of EfficientNet for torchvision's names."""
    places = _efficientnet_positions(model)
    squeezes = any("._se." in name for name in model.state_dict())

    def rename(match: re.Match[str]) -> str:
        stage, i = places[int(match[1])]
        parts = "eds"[stage == 0 :] + "p" if squeezes else "ed"[stage == 0 :] + "p"
        return f"features.{stage + 1}.{i}.block.{parts.index(match[2][0])}."

    return [
        (r"^_ef\._conv_stem\._conv\._conv\._conv\.", "features.0.0."),
        (r"^_ef\._conv_stem\._conv\._bn\.|^_ef\._conv_stem\._bn\.", "features.0.1."),
        (r"^_conv\._conv\._conv\.", "features.8.0."),
        (r"^_conv\._bn\.", "features.8.1."),
        (r"^_fc\.", "classifier.1."),
        (r"\._se\._conv(\d)\._conv\.", r"._se.fc\1."),
        (r"cn\._conv\._conv\._conv\.", "cn.0."),
        (r"cn\._conv\._bn\.", "cn.1."),
        (r"^_ef\.(?:_blocks|block)\.(\d+)\.\._(se|[edp]cn)\.", rename),
    ]


_V2_DEPTHS = (1, 2, 3, 4, 3, 3, 1)


def mobilenet_v2(_: nn.Layer) -> Rules:
    """Returns the rules of Paddle's MobileNetV2."""
    places = positions_of(_V2_DEPTHS)

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


def mobilenet_v3(model: nn.Layer) -> Rules:
    """Returns the rules of Paddle's MobileNetV3."""
    depths = next(depths for kind, depths in _V3_DEPTHS.items() if isinstance(model, kind))
    places = positions_of(depths)
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


def torchvision_mobilenet_v3(model: nn.Layer) -> Rules:
    """Returns the rules of Paddle's MobileNetV3 for torchvision's names."""
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


MOBILENET_V1: Rules = [
    *unit(r"^conv\.", "conv_stem.", "bn1."),
    _in_stage(r"^blocks\.(\d+)\.", (1, 2, 2, 6, 2)),
    *_SEPARABLE,
    (r"^fc\.", "classifier."),
]
_LCNET_HEAD: Rules = [
    (r"^last_conv\.", "conv_head."),
    (r"^fc\.", "classifier."),
]
_LCNET_STARTS = {"blocks2": 0, "blocks3": 1, "blocks4": 3, "blocks5": 5, "blocks6": 11}
LCNET: Rules = [
    *unit(r"^conv1\.", "conv_stem.", "bn1."),
    (r"^(blocks\d)\.(\d)\.", lambda match: f"blocks.{_LCNET_STARTS[match[1]] + int(match[2])}."),
    _in_stage(r"^blocks\.(\d+)\.", (1, 2, 2, 2, 4, 2)),
    *_SEPARABLE,
    (r"\.se\.conv1\.", ".se.conv_reduce."),
    (r"\.se\.conv2\.", ".se.conv_expand."),
    *_LCNET_HEAD,
]
LCNET_V2: Rules = [
    (r"\.pw_conv_(\d)\.", lambda match: f".pw_conv.{int(match[1]) - 1}."),
    (r"\.se\.conv(\d)\.", r".se.fc\1."),
    *_LCNET_HEAD,
]
_MIXNET_PARTS = {"exp_conv": ("conv_pw", "bn1"), "conv1": ("conv_dw", "bn2"), "conv2": ("conv_pwl", "bn3")}


def mixnet(model: nn.Layer) -> Rules:
    """Returns the rules of MixNet."""
    halving = model.depths[-1] // 2  # timm splits the last stage into two stages

    def start(match: re.Match[str]) -> str:
        stage, i = int(match[1]), int(match[2]) - 1
        later = stage == len(model.depths) and i >= halving
        return f"blocks.{stage + later}.{i - later * halving}."

    return [
        (r"^features\.init_block\.conv1\.conv\.", "conv_stem."),
        (r"^features\.init_block\.conv1\.bn\.", "bn1."),
        (r"^features\.init_block\.conv2\.conv1\.conv\.", "blocks.0.0.conv_dw."),
        (r"^features\.init_block\.conv2\.conv1\.bn\.", "blocks.0.0.bn1."),
        (r"^features\.init_block\.conv2\.conv2\.conv\.", "blocks.0.0.conv_pw."),
        (r"^features\.init_block\.conv2\.conv2\.bn\.", "blocks.0.0.bn2."),
        (r"^features\.stage(\d)\.unit(\d)\.", start),
        (r"\.se\.conv1\.", ".se.conv_reduce."),
        (r"\.se\.conv2\.", ".se.conv_expand."),
        (r"\.(exp_conv|conv\d)\.conv\.", lambda match: f".{_MIXNET_PARTS[match[1]][0]}."),
        (r"\.(exp_conv|conv\d)\.bn\.", lambda match: f".{_MIXNET_PARTS[match[1]][1]}."),
        (r"^features\.final_block\.conv\.", "conv_head."),
        (r"^features\.final_block\.bn\.", "bn2."),
        (r"^output\.", "classifier."),
    ]


GHOSTNET: Rules = [
    *unit(r"^conv1\.", "conv_stem.", "bn1."),
    *unit(r"^conv_last\.", "blocks.9.0.conv.", "blocks.9.0.bn1."),
    _in_stage(r"^_ghostbottleneck_(\d+)\.", (1, 1, 1, 1, 1, 1, 5, 1, 4)),
    *unit(r"\.depthwise_conv\.", ".conv_dw.", ".bn_dw."),
    (r"\.se_block\.squeeze\.", ".se.conv_reduce."),
    (r"\.se_block\.excitation\.", ".se.conv_expand."),
    *unit(r"\.shortcut_depthwise\.", ".shortcut.0.", ".shortcut.1."),
    *unit(r"\.shortcut_conv\.", ".shortcut.2.", ".shortcut.3."),
    (r"\.ghost_module_(\d)\.", r".ghost\1."),
    (r"\._conv\.", ".0."),
    (r"\._batch_norm\.", ".1."),
    (r"^fc_0\.0\.", "conv_head."),
    (r"^fc_1\.", "classifier."),
]
_UNIT = {  # names in torchvision of the layers of ShuffleNetV2's units, without and with downsampling
    "pw": ("branch2", 0),
    "dw": ("branch2", 3),
    "linear": ("branch2", 5),
    "dw_1": ("branch1", 0),
    "linear_1": ("branch1", 2),
    "pw_2": ("branch2", 0),
    "dw_2": ("branch2", 3),
    "linear_2": ("branch2", 5),
}


def _rename_unit(match: re.Match[str]) -> str:
    branch, index = _UNIT[match[3]]
    index += match[4] == "_batch_norm"
    return f"stage{match[1]}.{int(match[2]) - 1}.{branch}.{index}."


TORCHVISION_SHUFFLENET_V2: Rules = [
    *unit(r"^_conv1\.", "conv1.0.", "conv1.1."),
    *unit(r"^_last_conv\.", "conv5.0.", "conv5.1."),
    (r"^(\d)_(\d)\._conv_(\w+)\.(_conv|_batch_norm)\.", _rename_unit),
    (r"^_fc\.", "fc."),
]
