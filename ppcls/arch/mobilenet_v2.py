"""MobileNetV2 (Sandler et al. 2018, https://arxiv.org/abs/1801.04381), parameters as in PaddleClas.

The first block widens by a factor of 1 with a convolution of its own, which the paper leaves out.

Parameters, in millions: MobileNetV2_x0_25 1.5, MobileNetV2_x0_5 2.0, MobileNetV2_x0_75 2.6, MobileNetV2 3.5,
MobileNetV2_x1_5 6.9, MobileNetV2_x2_0 11.3.
"""

from __future__ import annotations

from functools import partial

from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.conv_norm import DataFormat, UnderscoredConvNorm
from ppcls.arch.inverted_residual import InvertedResidual

# Table 2: expansion, channels, blocks, stride of the first one.
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class InvertedResidualUnit(InvertedResidual):
    """`InvertedResidual` under this network's names; a stage's first one is not added to its input."""

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
        self._added = not first


class Stage(nn.Layer):  # type: ignore[misc]
    """Blocks of one width, ``conv{number}_2`` and so on in checkpoints."""

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
            block = InvertedResidualUnit(
                out_channels if i else in_channels,
                out_channels,
                expansion,
                1 if i else stride,
                i == 0,
                data_format,
            )
            self._blocks.append(self.add_sublayer(name, block))

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] to [B, C', H/stride, W/stride], or the same in NHWC."""
        for block in self._blocks:
            x = block(x)
        return x


class MobileNetV2Net(nn.Layer):  # type: ignore[misc]
    """A MobileNetV2.

    Args:
        scale: Of all channels; the last convolution never has fewer than 1,280.
        class_num: Number of classes.
        data_format: Layout of the input; parameters have the same shapes in both.
        input_image_channel: Channels of the input.
    """

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
            stage = Stage(number, channels, width, expansion, depth, stride, data_format)
            self._stages.append(self.add_sublayer(f"conv{number}", stage))
            channels = width
        features = int(1280 * max(1.0, scale))
        self.conv9 = conv(channels, features, 1)
        self.avg_pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self.out = nn.Linear(features, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W], or [B, H, W, C] under NHWC, to logits [B, class_num]."""
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
