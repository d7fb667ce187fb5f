"""The names of ``paddle.vision``'s networks in timm and torchvision; see `ppcls.arch.public.names`.

The classes are not ours, so they can't have the attribute ``public_names``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from paddle import nn
from paddle.vision import models

from ppcls.arch.families.densenet import DenseNet
from ppcls.arch.families.inception_v3 import InceptionV3
from ppcls.arch.public.names import EPSILON, PublicNames, Rule


def _mobilenet_v3_rules(model: nn.Layer) -> list[Rule]:
    names = model.state_dict()
    order = ("expand_conv", "bottleneck_conv", "mid_se", "linear_conv")

    def rename(match: re.Match[str]) -> str:
        block = match[1]
        parts = [part for part in order if any(name.startswith(f"blocks.{block}.{part}.") for name in names)]
        return f"features.{int(block) + 1}.block.{parts.index(match[2])}."

    return [(r"^lastconv\.", f"features.{len(model.blocks) + 1}."), (r"^blocks\.(\d+)\.(\w+)\.", rename)]


def _reject_tensorflow(_model: nn.Layer, _names: Collection[str], source: str) -> str:
    if "tf_mobilenetv3" in source:
        return (
            "timm's tf_mobilenetv3_* models are not supported, because their padding differs; use weights of "
            "timm's mobilenetv3_*_100 models"
        )
    return ""


PADDLE_VISION_NAMES: Mapping[type[nn.Layer], PublicNames] = {
    models.DenseNet: DenseNet.public_names,
    models.InceptionV3: InceptionV3.public_names,
    models.MobileNetV2: PublicNames(
        timm={
            r"^features\.0\.0\.": "conv_stem.",
            r"^features\.0\.1\.": "bn1.",
            r"^features\.18\.0\.": "conv_head.",
            r"^features\.18\.1\.": "bn2.",
            r"^features\.(\d+)\.conv\.": "blocks.{stage}.{block}.",
            r"^blocks\.0\.0\.0\.0\.": "blocks.0.0.conv_dw.",
            r"^blocks\.0\.0\.0\.1\.": "blocks.0.0.bn1.",
            r"^blocks\.0\.0\.1\.": "blocks.0.0.conv_pw.",
            r"^blocks\.0\.0\.2\.": "blocks.0.0.bn2.",
            r"^(blocks\.\d\.\d)\.0\.0\.": r"\1.conv_pw.",
            r"^(blocks\.\d\.\d)\.0\.1\.": r"\1.bn1.",
            r"^(blocks\.\d\.\d)\.1\.0\.": r"\1.conv_dw.",
            r"^(blocks\.\d\.\d)\.1\.1\.": r"\1.bn2.",
            r"^(blocks\.\d\.\d)\.2\.": r"\1.conv_pwl.",
            r"^(blocks\.\d\.\d)\.3\.": r"\1.bn3.",
            r"^classifier\.1\.": "classifier.",
        },
        torchvision={},
        starts=(1, 2, 4, 7, 11, 14, 17),
    ),
    models.MobileNetV3Large: PublicNames(
        timm={
            r"^blocks\.(\d+)\.": "blocks.{stage}.{block}.",
            r"^blocks\.0\.0\.bottleneck_conv\.0\.": "blocks.0.0.conv_dw.",
            r"^blocks\.0\.0\.bottleneck_conv\.1\.": "blocks.0.0.bn1.",
            r"^blocks\.0\.0\.linear_conv\.0\.": "blocks.0.0.conv_pw.",
            r"^blocks\.0\.0\.linear_conv\.1\.": "blocks.0.0.bn2.",
            r"\.expand_conv\.0\.": ".conv_pw.",
            r"\.expand_conv\.1\.": ".bn1.",
            r"\.bottleneck_conv\.0\.": ".conv_dw.",
            r"\.bottleneck_conv\.1\.": ".bn2.",
            r"\.linear_conv\.0\.": ".conv_pwl.",
            r"\.linear_conv\.1\.": ".bn3.",
            r"\.mid_se\.fc1\.": ".se.conv_reduce.",
            r"\.mid_se\.fc2\.": ".se.conv_expand.",
            r"^conv\.0\.": "conv_stem.",
            r"^conv\.1\.": "bn1.",
            r"^classifier\.0\.": "conv_head.",
            r"^classifier\.3\.": "classifier.",
            r"^lastconv\.0\.": "blocks.6.0.conv.",
            r"^lastconv\.1\.": "blocks.6.0.bn1.",
        },
        torchvision={
            r"^conv\.": "features.0.",
        },
        starts=(0, 1, 3, 6, 10, 12),
        first_torchvision=_mobilenet_v3_rules,
        epsilon=lambda _model, timm: EPSILON if timm else None,
        reject_file=_reject_tensorflow,
    ),
    models.MobileNetV3Small: PublicNames(
        timm={
            r"^blocks\.(\d+)\.": "blocks.{stage}.{block}.",
            r"^blocks\.0\.0\.bottleneck_conv\.0\.": "blocks.0.0.conv_dw.",
            r"^blocks\.0\.0\.bottleneck_conv\.1\.": "blocks.0.0.bn1.",
            r"^blocks\.0\.0\.linear_conv\.0\.": "blocks.0.0.conv_pw.",
            r"^blocks\.0\.0\.linear_conv\.1\.": "blocks.0.0.bn2.",
            r"\.expand_conv\.0\.": ".conv_pw.",
            r"\.expand_conv\.1\.": ".bn1.",
            r"\.bottleneck_conv\.0\.": ".conv_dw.",
            r"\.bottleneck_conv\.1\.": ".bn2.",
            r"\.linear_conv\.0\.": ".conv_pwl.",
            r"\.linear_conv\.1\.": ".bn3.",
            r"\.mid_se\.fc1\.": ".se.conv_reduce.",
            r"\.mid_se\.fc2\.": ".se.conv_expand.",
            r"^conv\.0\.": "conv_stem.",
            r"^conv\.1\.": "bn1.",
            r"^classifier\.0\.": "conv_head.",
            r"^classifier\.3\.": "classifier.",
            r"^lastconv\.0\.": "blocks.5.0.conv.",
            r"^lastconv\.1\.": "blocks.5.0.bn1.",
        },
        torchvision={
            r"^conv\.": "features.0.",
        },
        starts=(0, 1, 3, 6, 8),
        first_torchvision=_mobilenet_v3_rules,
        epsilon=lambda _model, timm: EPSILON if timm else None,
        reject_file=_reject_tensorflow,
    ),
    models.ResNet: PublicNames(
        timm={},
    ),
    models.VGG: PublicNames(
        timm={
            r"^classifier\.0\.": "pre_logits.fc1.",
            r"^classifier\.3\.": "pre_logits.fc2.",
            r"^classifier\.6\.": "head.fc.",
        },
        torchvision={},
    ),
}
