"""Rules that rename the parameters of EfficientNetV2 and of networks with attention to the names in timm.

The docstring of `ppcls.weights.timm_rules` describes the rules.
"""

from __future__ import annotations

import re

from paddle import nn

from ppcls.weights.timm_mobile_rules import Rules, positions_of

_FUSED_STAGES = 3  # number of first stages of EfficientNetV2 with fused blocks
_CONVS = {"_expand_conv": "conv_pw", "_depthwise_conv": "conv_dw", "_project_conv": "conv_pwl"}


def efficientnet_v2(model: nn.Layer) -> Rules:
    """Returns the rules of EfficientNetV2."""
    places = positions_of(model.depths)

    def rename_conv(match: re.Match[str]) -> str:
        stage, i = places[int(match[1])]
        conv = _CONVS[match[2]]
        if stage == 0:
            conv = "conv"
        elif stage < _FUSED_STAGES and match[2] == "_expand_conv":
            conv = "conv_exp"
        return f"blocks.{stage}.{i}.{conv}."

    def rename_norm(match: re.Match[str]) -> str:
        stage, i = places[int(match[1])]
        return f"blocks.{stage}.{i}.bn{int(match[2]) + (stage > 0)}."

    return [
        (r"^_stem\._conv_stem\._conv\.", "conv_stem."),
        (r"^_stem\._norm\.", "bn1."),
        (r"^_head\._conv_head\.", "conv_head."),
        (r"^_head\._norm\.", "bn2."),
        (r"^_fc\.", "classifier."),
        (r"^_blocks\.(\d+)\.(\w+_conv)\._conv\.", rename_conv),
        (r"^_blocks\.(\d+)\._norm(\d)\.", rename_norm),
        (
            r"^_blocks\.(\d+)\._se\._se_(\w+)\._conv\.",
            lambda match: "blocks.{}.{}.se.conv_{}.".format(*places[int(match[1])], match[2]),
        ),
    ]


def mobilenet_v4(model: nn.Layer) -> Rules:
    """Returns the rules of MobileNetV4."""
    places = positions_of(model.depths)
    return [
        (r"^conv_stem\.conv\.", "conv_stem."),
        (r"^conv_stem\.bn\.", "bn1."),
        (r"^conv_head\.conv\.", "conv_head."),
        (r"^conv_head\.bn\.", "norm_head."),
        (r"^blocks\.(\d+)\.", lambda match: "blocks.{}.{}.".format(*places[int(match[1])])),
        (r"^(blocks\.\d+\.\d+)\.bn\.", r"\1.bn1."),
        (r"\.conv_(exp|pwl)\.conv\.", r".conv_\1."),
        (r"\.conv_exp\.bn\.", ".bn1."),
        (r"\.conv_pwl\.bn\.", ".bn2."),
        (r"\.(key|value)_down_proj\.conv\.", r".attn.\1.down_conv."),
        (r"\.(key|value)_down_proj\.bn\.", r".attn.\1.norm."),
        (r"\.(query|key|value)_proj\.", r".attn.\1.proj."),
        (r"^(blocks\.\d+\.\d+)\.proj\.", r"\1.attn.output.proj."),
    ]


_INVERTED: Rules = [  # rules for the layers of an inverted residual of MobileViT
    (r"\.(?:conv\.0|block\.exp_1x1)\.(conv|norm)\.", r".conv1_1x1.\1."),
    (r"\.(?:conv\.1|block\.conv_3x3)\.(conv|norm)\.", r".conv2_kxk.\1."),
    (r"\.block\.red_1x1\.(conv|norm)\.", r".conv3_1x1.\1."),
    (r"\.conv\.2\.", ".conv3_1x1.conv."),
    (r"\.conv\.3\.", ".conv3_1x1.norm."),
]
MOBILEVIT: Rules = [
    (r"^mv2_block_1\.", "stages.0.0."),
    (r"^mv2_block_([234])\.", lambda match: f"stages.1.{int(match[1]) - 2}."),
    (r"^mv2_block_(\d)\.", lambda match: f"stages.{int(match[1]) - 3}.0."),
    (r"^mvit_block_(\d)\.", lambda match: f"stages.{int(match[1]) + 1}.1."),
    *_INVERTED,
    (r"(conv\w*)\.norm\.", r"\1.bn."),
    (r"\.transformer\.norm\.", ".norm."),
    (r"\.transformer\.layers\.(\d)\.attn_norm\.", r".transformer.\1.norm1."),
    (r"\.transformer\.layers\.(\d)\.mlp_norm\.", r".transformer.\1.norm2."),
    (r"\.transformer\.layers\.", ".transformer."),
    (r"\.conv1\.", ".conv_kxk."),
    (r"\.conv2\.", ".conv_1x1."),
    (r"\.conv3\.", ".conv_proj."),
    (r"\.conv4\.", ".conv_fusion."),
    (r"^conv3x3\.", "stem."),
    (r"^conv1x1\.", "final_conv."),
    (r"^linear\.", "head.fc."),
]
MOBILEVIT_V2: Rules = [
    (r"^conv_1\.", "stem."),
    (r"^layer_(\d)\.", lambda match: f"stages.{int(match[1]) - 1}."),
    *_INVERTED,
    (r"\.local_rep\.0\.", ".conv_kxk."),
    (r"\.local_rep\.1\.conv\.", ".conv_1x1."),
    (r"\.norm\.", ".bn."),
    (r"\.global_rep\.(\d)\.pre_norm_attn\.0\.", r".transformer.\1.norm1."),
    (r"\.global_rep\.(\d)\.pre_norm_attn\.1\.", r".transformer.\1.attn."),
    (r"\.global_rep\.(\d)\.pre_norm_ffn\.0\.", r".transformer.\1.norm2."),
    (r"\.global_rep\.(\d)\.pre_norm_ffn\.1\.", r".transformer.\1.mlp.fc1."),
    (r"\.global_rep\.(\d)\.pre_norm_ffn\.4\.", r".transformer.\1.mlp.fc2."),
    (r"\.global_rep\.\d\.", ".norm."),
    (r"^classifier\.fc\.", "head.fc."),
]


def nextvit(model: nn.Layer) -> Rules:
    """Returns the rules of Next-ViT."""
    places = positions_of(model.depths)
    return [
        (r"^features\.(\d+)\.", lambda match: "stages.{}.blocks.{}.".format(*places[int(match[1])])),
        (r"\.mlp\.conv(\d)\.", r".mlp.fc\1."),
        (r"^proj_head\.0\.", "head.fc."),
    ]


def levit(model: nn.Layer) -> Rules:
    """Returns the rules of LeViT."""
    starts = [f"stages.0.blocks.{i}." for i in range(model.depths[0])]
    for stage, depth in enumerate(model.depths[1:], start=1):
        starts += [f"stages.{stage}.downsample."] + [f"stages.{stage}.blocks.{i}." for i in range(depth)]

    def start(match: re.Match[str]) -> str:
        block, is_mlp = starts[int(match[1]) // 2], int(match[1]) % 2
        return block + ("mlp." if is_mlp else "attn_downsample." if "down" in block else "attn.")

    return [
        (r"^patch_embed\.(\d)\.", lambda match: f"stem.conv{int(match[1]) // 2 + 1}."),
        (r"^blocks\.(\d+)\.(?:m\.)?", start),
        (r"\.mlp\.([02])\.", lambda match: f".mlp.ln{int(match[1]) // 2 + 1}."),
        (r"\.(q|proj)\.1\.", r".\1.ln."),
        (r"\.c\.", ".linear."),
        (r"\.l\.", ".linear."),
    ]
