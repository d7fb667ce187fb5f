"""Rules that rename the parameters of larger convolutional networks to the names in timm.

The docstring of `ppcls.weights.timm_rules` describes the rules.
"""

from __future__ import annotations

import re

from paddle import nn

from ppcls.weights.timm_mobile_rules import Rules, block_positions, shift, unit

_MIXED = ("5b", "5c", "5d", "6a", "6b", "6c", "6d", "6e", "7a", "7b", "7c")  # InceptionV3's blocks in timm
INCEPTION_V3: Rules = [
    (r"^inception_stem\.conv_", "Conv2d_"),
    (r"^inception_block_list\.(\d+)\.", lambda match: f"Mixed_{_MIXED[int(match[1])]}."),
    (r"\.branch_pool_conv\.", ".branch_pool."),
    (r"\.0\.", ".conv."),
    (r"\.1\.", ".bn."),
]
_V4_STARTS = {"inceptionA": 5, "reductionA": 10, "inceptionB": 10, "reductionB": 18, "inceptionC": 18}
_V4_STEM = {"_1": "0", "_2": "1", "_3": "2", "2": "3.conv", "3": "5.conv"}
_V4_C = {
    **{"3_0": "1_0", "3_1": "1_1a", "3_2": "1_1b"},
    **{"4_0": "2_0", "4_00": "2_1", "4_000": "2_2", "4_1": "2_3a", "4_2": "2_3b"},
}
INCEPTION_V4: Rules = [
    (r"\._conv\.(?=\w+$)", ".conv."),
    (r"\._batch_norm\.", ".bn."),
    (r"^_inception_stem\._conv(_\d|2|3)\.", lambda match: f"features.{_V4_STEM[match[1]]}."),
    (r"^_inception_stem\._conv(\d)_(\d)\.", shift("features.4.branch{}.{}.", -1)),
    (r"^(_inceptionC_\d)\._conv([34]_\d+)\.", lambda match: f"{match[1]}.branch{_V4_C[match[2]]}."),
    (
        r"^_(inception[ABC]|reduction[AB])(?:_(\d))?\.",
        lambda match: f"features.{_V4_STARTS[match[1]] + int(match[2] or 0)}.",
    ),
    (r"\._conv1\.", ".branch3.1."),
    (r"\._conv2\.", ".branch0."),
    (r"\._conv(\d)_(\d)\.", lambda match: f".branch{int(match[1]) - 2}.{int(match[2]) - 1}."),
    (r"^out\.", "last_linear."),
]
RESNEST: Rules = [
    *unit(
        r"^stem\.conv(\d)\.",
        lambda match: f"conv1.{3 * int(match[1]) - 3}.",
        lambda match: "bn1." if match[1] == "3" else f"conv1.{3 * int(match[1]) - 2}.",
    ),
    (r"^(layer\d)\.layer\d_bottleneck_", r"\1."),
    *unit(r"\.conv2\.conv1\.", ".conv2.conv.", ".conv2.bn0."),
    *unit(r"\.conv2\.conv2\.", ".conv2.fc1.", ".conv2.bn1."),
    (r"\.conv2\.conv3\.", ".conv2.fc2."),
    (r"\.conv4\.", ".downsample.1."),
    (r"^(layer\d\.\d+)\._batch_norm\.", r"\1.downsample.2."),
    *unit(r"\.conv([13])\.", r".conv\1.", r".bn\1."),
    (r"^out\.", "fc."),
]
RESNEXT_WSL: Rules = [
    (r"^_conv_stem\._conv\.", "conv1."),
    (r"^_conv_stem\._bn\.", "bn1."),
    (r"^_conv(\d)_(\d+)\.", r"layer\1.\2."),
    (r"\._short\._conv\._conv\.", ".downsample.0."),
    (r"\._short\._conv\._bn\.", ".downsample.1."),
    (r"\._conv(\d)\._conv\.", shift(".conv{}.", 1)),
    (r"\._conv(\d)\._bn\.", shift(".bn{}.", 1)),
    (r"^_out\.", "fc."),
]


def xception(model: nn.Layer) -> Rules:
    """Returns the rules of Xception_deeplab."""
    order = list(dict.fromkeys(match[1] for name in model.state_dict() if (match := _XCEPTION.match(name))))
    return [
        (r"^_conv(\d)\._", shift("stem.{}.", -1)),
        (_XCEPTION.pattern, lambda match: f"blocks.{order.index(match[1])}."),
        (r"\._short\._", ".shortcut."),
        (r"^(blocks\.\d+)\._conv(\d)\.", r"\1.stack.conv\2."),
        (r"\._(conv|bn)1\.", r".\1_dw."),
        (r"\._(conv|bn)2\.", r".\1_pw."),
        (r"^_fc\.", "head.fc."),
    ]


_XCEPTION = re.compile(r"^(xception_\d+/\w+/block\d+|_exit_flow_\d)\.")  # name of a block of Xception


def dpn(model: nn.Layer) -> Rules:
    """Returns the rules of DPN."""
    names = model.state_dict()
    count = sum(name.endswith(".c1x1_a_func._conv.weight") for name in names)
    places = block_positions(f"dpn{i}.c1x1_w_func._conv.weight" in names for i in range(1, count + 1))

    def rename(match: re.Match[str]) -> str:
        stage, i = places[int(match[1]) - 1]
        part = f"c1x1_w_s{2 if stage else 1}" if match[2] == "c1x1_w" else match[2]
        return f"features.conv{stage + 2}_{i + 1}.{part}."

    return [
        (r"^conv1_x_1_func\.", "features.conv1_1."),
        (r"^conv5_x_x_bn\.", "features.conv5_bn_ac.bn."),
        (r"^dpn(\d+)\.(\w+)_func\.", rename),
        *unit(r"\.", ".conv.", ".bn."),
        (r"^out\.", "classifier."),
    ]


def _rename_fusion(match: re.Match[str]) -> str:
    count = int(match[1])  # number of resolutions
    names = [
        f"{to}.{source}." if source > to else f"{to}.{source}.{i}."
        for to in range(count)
        for source in range(count)
        for i in range(max(to - source, int(source > to)))
    ]
    return f"stage{count}.{match[2]}.fuse_layers.{names[int(match[3])]}"


HRNET: Rules = [
    *unit(r"^conv_layer1_(\d)\.", r"conv\1.", r"bn\1."),
    (r"^conv_tr1_1\.", "transition1.0."),
    (r"^conv_tr1_2\.", "transition1.1.0."),
    (r"^conv_tr(\d)\.", r"transition\1.\1.0."),
    (r"^st(\d)\.stage_func_list\.(\d)\.fuse_func\.residual_func_list\.(\d+)\.", _rename_fusion),
    (r"^st(\d)\.stage_func_list\.(\d)\.basic_block_list\.", r"stage\1.\2.branches."),
    (r"^last_cls\.func_list\.(\d)\.", r"incre_modules.\1.0."),
    (r"^cls_head_conv_list\.", "downsamp_modules."),
    (r"^conv_last\.", "final_layer."),
    (r"\.conv_down\.", ".downsample."),
    *unit(r"\.conv(\d)\.", r".conv\1.", r".bn\1."),
    *unit(r"\.", ".0.", ".1."),
    (r"^fc\.", "classifier."),
]
