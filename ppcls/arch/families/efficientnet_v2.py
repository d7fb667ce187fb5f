"""EfficientNetV2 (Tan and Le 2021, https://arxiv.org/abs/2104.00298).

In the first stages, a full convolution replaces the 1x1 and the depthwise convolution of an inverted
residual. As in EfficientNet, convolutions with stride 2 are padded as in TensorFlow, for feature maps with
even sides.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import partial
from typing import ClassVar

from paddle import ParamAttr, Tensor, nn
from paddle.nn import functional as F
from paddle.regularizer import L2Decay

from ppcls.arch.families.efficientnet import EfficientNetConvNorm, Nested
from ppcls.arch.layers.conv_norm import ConvNorm, DataFormat, FanOutNormal
from ppcls.arch.layers.sequence import ResidualSequence, named
from ppcls.arch.layers.squeeze_excitation import SqueezeExcitation
from ppcls.arch.public.names import PublicNames

# Stride of the first block, and expansion, per stage (table 4). Blocks of the first three stages are fused.
_STAGES = ((1, 1), (2, 4), (2, 4), (2, 4), (1, 6), (2, 6), (1, 6))
_FUSED = 3
_FEATURES = 1280
_DROP = 0.2  # probability of skipping the last block


def _conv(
    in_channels: int,
    out_channels: int,
    kernel: int,
    stride: int,
    data_format: DataFormat,
    groups: int = 1,
    kind: type[ConvNorm] = EfficientNetConvNorm,
) -> ConvNorm:
    # TensorFlow pads [0, 1] for even sides. One more row and column rounds odd sides up and does not change
    # the output of even ones.
    padding = None if stride == 1 else [0, 2, 0, 2]
    normal = FanOutNormal(depthwise=True)
    conv = partial(kind, epsilon=1e-3, padding=padding, initializer=normal, decay=False)
    return conv(in_channels, out_channels, kernel, stride, groups, data_format=data_format)


class EfficientNetV2SqueezeExcitation(SqueezeExcitation):
    """A `SqueezeExcitation` with the parameter names and initial weights of this family."""

    names = ("_se_reduce", "_se_expand")

    @staticmethod
    def convolution(in_channels: int, out_channels: int, data_format: DataFormat) -> nn.Layer:
        """Returns a 1x1 convolution with a bias and the initial weights of this family."""
        attr = ParamAttr(initializer=FanOutNormal())
        return Nested(nn.Conv2D(in_channels, out_channels, 1, weight_attr=attr, data_format=data_format))


def make_block(
    in_channels: int,
    out_channels: int,
    stride: int,
    expansion: int,
    fused: bool,
    drop: float,
    data_format: DataFormat,
) -> ResidualSequence:
    """Returns an inverted residual with squeeze-and-excitation, or a fused block without it (figure 2).

    Args:
        expansion: Number of channels within the block divided by ``in_channels``.
        fused: Whether a 3x3 convolution replaces the 1x1 and the depthwise convolution.
        drop: Probability of skipping the block for an image in training.
    """
    conv = partial(_conv, data_format=data_format)
    width = in_channels * expansion
    if expansion == 1:
        layers = named("_project_conv", "_norm1", conv(in_channels, out_channels, 3, stride), nn.Swish())
    else:
        first = conv(in_channels, width, 3, stride) if fused else conv(in_channels, width, 1, 1)
        layers = named("_expand_conv", "_norm0", first, nn.Swish())
        last = conv(width, out_channels, 1, 1)
        if not fused:
            depthwise = conv(width, width, 3, stride, groups=width)
            layers |= named("_depthwise_conv", "_norm1", depthwise, nn.Swish())
            squeezed = max(1, in_channels // 4)
            layers["_se"] = EfficientNetV2SqueezeExcitation(width, squeezed, F.swish, F.sigmoid, data_format)
        layers |= named("_project_conv", "_norm1" if fused else "_norm2", last)
    return ResidualSequence(layers, stride == 1 and in_channels == out_channels, drop)


def _reject_even_padding(_model: nn.Layer, _names: Collection[str], source: str) -> str:
    if re.search(r"(?<!tf_)efficientnetv2", source):
        return (
            "timm's efficientnetv2_* models are not supported, because their padding differs; use weights of "
            "timm's tf_efficientnetv2_* models"
        )
    return ""


class EfficientNetV2(nn.Layer):  # type: ignore[misc]
    """The EfficientNetV2 network.

    Args:
        depths: Number of blocks per stage.
        widths: Number of channels per stage.
        dropout: Dropout rate before the classifier.
    """

    public_names: ClassVar[PublicNames] = PublicNames(
        timm={
            r"^_stem\._conv_stem\._conv\.": "conv_stem.",
            r"^_stem\._norm\.": "bn1.",
            r"^_head\._conv_head\.": "conv_head.",
            r"^_head\._norm\.": "bn2.",
            r"^_fc\.": "classifier.",
            r"^_blocks\.(\d+)\.": "blocks.{stage}.{block}.",
            r"^(blocks\.0\.\d+)\.\w+_conv\._conv\.": r"\1.conv.",
            r"^(blocks\.[12]\.\d+)\._expand_conv\._conv\.": r"\1.conv_exp.",
            r"\._expand_conv\._conv\.": ".conv_pw.",
            r"\._depthwise_conv\._conv\.": ".conv_dw.",
            r"\._project_conv\._conv\.": ".conv_pwl.",
            r"^(blocks\.0\.\d+)\._norm(\d)\.": r"\1.bn\2.",
            r"^(blocks\.\d\.\d+)\._norm(\d)\.": r"\1.bn{\2+1}.",
            r"\._se\._se_(\w+)\._conv\.": r".se.conv_\1.",
        },
        reject_file=_reject_even_padding,
    )

    def __init__(
        self,
        depths: tuple[int, ...],
        widths: tuple[int, ...],
        dropout: float,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
    ) -> None:
        super().__init__()
        self.depths = depths
        channels = widths[0]
        blocks = list[nn.Layer]()
        stem = _conv(input_image_channel, channels, 3, 2, data_format)
        self._stem = ResidualSequence(named("_conv_stem", "_norm", stem, nn.Swish()), shortcut=False)
        for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            for i in range(depth):
                stride, expansion = _STAGES[stage]
                settings = 1 if i else stride, expansion, stage < _FUSED, _DROP * len(blocks) / sum(depths)
                blocks.append(make_block(channels, width, *settings, data_format))
                channels = width
        self._blocks = nn.Sequential(*blocks)
        head = _conv(channels, _FEATURES, 1, 1, data_format, kind=ConvNorm)
        self._head = ResidualSequence(named("_conv_head", "_norm", head, nn.Swish()), shortcut=False)
        self._pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self._drop = nn.Dropout(dropout)
        # PaddleClas takes the second axis of the weight for the inputs, but in Paddle it is that of the
        # outputs.
        bound = class_num**-0.5
        uniform = ParamAttr(initializer=nn.initializer.Uniform(-bound, bound))
        no_decay = ParamAttr(regularizer=L2Decay(0.0))
        self._fc = nn.Linear(_FEATURES, class_num, weight_attr=uniform, bias_attr=no_decay)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        return self._fc(self._drop(self._pool(self._head(self._blocks(self._stem(x))))).flatten(1))


_M = (24, 48, 80, 160, 176, 304, 512)
_L = (32, 64, 96, 192, 224, 384, 640)
EfficientNetV2_S = partial(EfficientNetV2, (2, 4, 4, 6, 9, 15), (24, 48, 64, 128, 160, 256), 0.1)
EfficientNetV2_M = partial(EfficientNetV2, (3, 5, 5, 7, 14, 18, 5), _M, 0.3)
EfficientNetV2_L = partial(EfficientNetV2, (4, 7, 7, 10, 19, 25, 7), _L, 0.4)
EfficientNetV2_XL = partial(EfficientNetV2, (4, 8, 8, 16, 24, 32, 8), (32, 64, 96, 192, 256, 512, 640), 0.4)
