"""MobileNetV1 (https://arxiv.org/abs/1704.04861), V2 (1801.04381) and V3 (1905.02244).

Two details are those of PaddleClas. The first block of V2 and V3 also has an expanding convolution. The gate
of squeeze-and-excitation in V3 has the slope 0.2 instead of 1/6.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import ConvNorm, DataFormat, UnderscoredConvNorm, round_channels
from ppcls.arch.layers.mobile import DepthwiseSeparable, InvertedResidual, LateFeatures
from ppcls.arch.layers.squeeze_excitation import SqueezeExcitation
from ppcls.arch.public.names import PublicNames

# Table 2 of the V2 paper: expansion, channels, number of blocks, stride of the first block.
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class MobileNetV2Block(InvertedResidual):
    """An `InvertedResidual` with V2's parameter names. The first block of a stage has no shortcut."""

    conv = UnderscoredConvNorm
    names = ("_expand_conv", "_bottleneck_conv", "_weigh", "_linear_conv")

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        expansion: int,
        stride: int,
        first: bool,
        layout: DataFormat,
    ) -> None:
        width = in_channels * expansion
        super().__init__(in_channels, width, out_channels, 3, stride, F.relu6, data_format=layout)
        # Not for the first block of a stage, even if its stride is 1 and its width does not change, as in
        # PaddleClas.
        self._shortcut = not first


class MobileNetV2Stage(nn.Layer):  # type: ignore[misc]
    """A stage of blocks. In checkpoints, their names are ``conv{number}_2`` and so on."""

    def __init__(
        self,
        number: int,
        in_channels: int,
        out_channels: int,
        expansion: int,
        depth: int,
        stride: int,
        data_format: DataFormat,
    ) -> None:
        super().__init__()
        self._blocks = []
        for i in range(depth):
            name = f"conv{number}_{i + 1}" if i else "_first_block"
            block = MobileNetV2Block(
                out_channels if i else in_channels,
                out_channels,
                expansion,
                1 if i else stride,
                i == 0,
                data_format,
            )
            self._blocks.append(self.add_sublayer(name, block))

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/stride, W/stride]."""
        for block in self._blocks:
            x = block(x)
        return x


class MobileNetV2Net(nn.Layer):  # type: ignore[misc]
    """The MobileNetV2 network.

    Args:
        scale: Factor for all numbers of channels. The last convolution has at least 1,280 channels.
    """

    public_names: ClassVar[PublicNames] = PublicNames(
        different=(
            "the first block of PaddleClas's MobileNetV2 has one more convolution; set Arch.name: "
            "mobilenet_v2"
        ),
    )

    def __init__(
        self,
        scale: float = 1.0,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
    ) -> None:
        super().__init__()
        conv = partial(UnderscoredConvNorm, act=F.relu6, data_format=data_format)
        channels = int(32 * scale)
        self.conv1 = conv(input_image_channel, channels, 3, 2)
        self._stages = []
        for number, (expansion, width, depth, stride) in enumerate(_STAGES, start=2):
            width = int(width * scale)
            stage = MobileNetV2Stage(number, channels, width, expansion, depth, stride, data_format)
            self._stages.append(self.add_sublayer(f"conv{number}", stage))
            channels = width
        features = int(1280 * max(1.0, scale))
        self.conv9 = conv(channels, features, 1)
        self.avg_pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self.out = nn.Linear(features, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        x = self.conv1(x)
        for stage in self._stages:
            x = stage(x)
        return self.out(self.avg_pool(self.conv9(x)).flatten(1))


MobileNetV2_x0_25 = partial(MobileNetV2Net, 0.25)
MobileNetV2_x0_5 = partial(MobileNetV2Net, 0.5)
MobileNetV2_x0_75 = partial(MobileNetV2Net, 0.75)
MobileNetV2 = partial(MobileNetV2Net, 1.0)
MobileNetV2_x1_5 = partial(MobileNetV2Net, 1.5)
MobileNetV2_x2_0 = partial(MobileNetV2Net, 2.0)


# V1: output channels of each block at scale 1, and its stride.
_BLOCKS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))


class MobileNetV1Block(DepthwiseSeparable):
    """A `DepthwiseSeparable` whose parameters have the names of V1."""

    names = ("depthwise_conv", "weigh", "pointwise_conv")


class MobileNetV1Net(nn.Layer):  # type: ignore[misc]
    """The MobileNetV1 network.

    Args:
        scale: Factor for all numbers of channels.
        timm_variant: Whether the activation is ReLU6, as in timm, instead of ReLU.
    """

    public_names: ClassVar[PublicNames] = PublicNames(
        timm={
            r"^conv\.": ("conv_stem.", "bn1."),
            r"^blocks\.(\d+)\.": "blocks.{stage}.{block}.",
            r"\.depthwise_conv\.": (".conv_dw.", ".bn1."),
            r"\.pointwise_conv\.": (".conv_pw.", ".bn2."),
            r"^fc\.": "classifier.",
        },
        starts=(0, 1, 3, 5, 11),
        variant="PaddleClas's MobileNetV1 has ReLU instead of ReLU6",
    )

    def __init__(
        self,
        scale: float = 1.0,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
        timm_variant: bool = False,
    ) -> None:
        super().__init__()
        self.timm_variant = timm_variant
        normal = nn.initializer.KaimingNormal()
        act = F.relu6 if timm_variant else F.relu
        conv = partial(ConvNorm, act=act, data_format=data_format, initializer=normal)
        channels = int(32 * scale)
        self.conv = conv(input_image_channel, channels, 3, 2)
        blocks = []
        for width, stride in _BLOCKS:
            blocks.append(MobileNetV1Block(channels, int(width * scale), 3, stride, conv))
            channels = int(width * scale)
        self.blocks = nn.Sequential(*blocks)
        self.avg_pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self.fc = nn.Linear(channels, class_num, weight_attr=paddle.ParamAttr(initializer=normal))

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        return self.fc(self.avg_pool(self.blocks(self.conv(x))).flatten(1))


MobileNetV1_x0_25 = partial(MobileNetV1Net, 0.25)
MobileNetV1_x0_5 = partial(MobileNetV1Net, 0.5)
MobileNetV1_x0_75 = partial(MobileNetV1Net, 0.75)
MobileNetV1 = partial(MobileNetV1Net, 1.0)


Row = tuple[int, int, int, bool, Any, int]

# Table 1 of the V3 paper: kernel, width, channels, whether to use squeeze-and-excitation, activation, stride.
_LARGE: tuple[Row, ...] = (
    (3, 16, 16, False, F.relu, 1),
    (3, 64, 24, False, F.relu, 2),
    (3, 72, 24, False, F.relu, 1),
    (5, 72, 40, True, F.relu, 2),
    (5, 120, 40, True, F.relu, 1),
    (5, 120, 40, True, F.relu, 1),
    (3, 240, 80, False, F.hardswish, 2),
    (3, 200, 80, False, F.hardswish, 1),
    (3, 184, 80, False, F.hardswish, 1),
    (3, 184, 80, False, F.hardswish, 1),
    (3, 480, 112, True, F.hardswish, 1),
    (3, 672, 112, True, F.hardswish, 1),
    (5, 672, 160, True, F.hardswish, 2),
    (5, 960, 160, True, F.hardswish, 1),
    (5, 960, 160, True, F.hardswish, 1),
)
# Table 2 of the V3 paper, with the same columns.
_SMALL: tuple[Row, ...] = (
    (3, 16, 16, True, F.relu, 2),
    (3, 72, 24, False, F.relu, 2),
    (3, 88, 24, False, F.relu, 1),
    (5, 96, 40, True, F.hardswish, 2),
    (5, 240, 40, True, F.hardswish, 1),
    (5, 240, 40, True, F.hardswish, 1),
    (5, 120, 48, True, F.hardswish, 1),
    (5, 144, 48, True, F.hardswish, 1),
    (5, 288, 96, True, F.hardswish, 2),
    (5, 576, 96, True, F.hardswish, 1),
    (5, 576, 96, True, F.hardswish, 1),
)
_GATE = partial(F.hardsigmoid, slope=0.2, offset=0.5)


class MobileNetV3Net(LateFeatures):
    """The MobileNetV3 network.

    Args:
        rows: Rows of table 1 or 2 of the paper.
        width: Number of channels of the last convolution before pooling, at scale 1.
        scale: Factor for all numbers of channels except that of the last convolution.
        dropout_prob: Dropout rate before the classifier.
    """

    public_names: ClassVar[PublicNames] = replace(
        LateFeatures.public_names,
        different=(
            "the first block of PaddleClas's MobileNetV3 has one more convolution; set Arch.name: "
            "mobilenet_v3_large or mobilenet_v3_small"
        ),
    )

    def __init__(
        self,
        rows: tuple[Row, ...],
        width: int,
        scale: float = 1.0,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
        dropout_prob: float = 0.2,
    ) -> None:
        super().__init__()
        conv = partial(ConvNorm, act=F.hardswish, data_format=data_format, decay=False)
        channels = round_channels(16 * scale)
        self.conv = conv(input_image_channel, channels, 3, 2)
        blocks = []
        for kernel, middle, out, use_se, act, stride in rows:
            mid = round_channels(middle * scale)
            out = round_channels(out * scale)
            se = SqueezeExcitation(mid, mid // 4, gate=_GATE, data_format=data_format) if use_se else None
            blocks.append(
                InvertedResidual(channels, mid, out, kernel, stride, act, se, data_format, decay=False)
            )
            channels = out
        self.blocks = nn.Sequential(*blocks)
        last = round_channels(width * scale)
        self.last_second_conv = conv(channels, last, 1)
        self.add_classifier(last, class_num, F.hardswish, dropout_prob, data_format)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        return self.classify(self.last_second_conv(self.blocks(self.conv(x))))


MobileNetV3_small_x0_35 = partial(MobileNetV3Net, _SMALL, 576, 0.35)
MobileNetV3_small_x0_5 = partial(MobileNetV3Net, _SMALL, 576, 0.5)
MobileNetV3_small_x0_75 = partial(MobileNetV3Net, _SMALL, 576, 0.75)
MobileNetV3_small_x1_0 = partial(MobileNetV3Net, _SMALL, 576, 1.0)
MobileNetV3_small_x1_25 = partial(MobileNetV3Net, _SMALL, 576, 1.25)
MobileNetV3_large_x0_35 = partial(MobileNetV3Net, _LARGE, 960, 0.35)
MobileNetV3_large_x0_5 = partial(MobileNetV3Net, _LARGE, 960, 0.5)
MobileNetV3_large_x0_75 = partial(MobileNetV3Net, _LARGE, 960, 0.75)
MobileNetV3_large_x1_0 = partial(MobileNetV3Net, _LARGE, 960, 1.0)
MobileNetV3_large_x1_25 = partial(MobileNetV3Net, _LARGE, 960, 1.25)
