"""PeleeNet (Wang et al. 2018, https://arxiv.org/abs/1804.06882), whose dense layers have two branches."""

from __future__ import annotations

from typing import ClassVar

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import ConvNorm, DataFormat, FanOutNormal
from ppcls.arch.layers.transformer import linear

_STEM = 32
_GROWTH = 32
_BLOCKS = ((3, 1), (4, 2), (8, 4), (6, 4))  # number of layers, and factor for the width of 1x1 convolutions
_DROP = 0.05


class PeleeConv(ConvNorm):
    """A `ConvNorm` with ReLU, whose parameters have the names of this network."""

    names: ClassVar[tuple[str, str]] = ("conv", "norm")

    def __init__(
        self, in_channels: int, out: int, kernel: int, stride: int = 1, *, data_format: DataFormat
    ) -> None:
        normal = FanOutNormal()
        super().__init__(in_channels, out, kernel, stride, 1, F.relu, data_format, initializer=normal)


class TwoWayStem(nn.Layer):  # type: ignore[misc]
    """Halves the size by a convolution, and again by parallel max pooling and convolutions (figure 2)."""

    def __init__(self, in_channels: int, data_format: DataFormat) -> None:
        super().__init__()
        self.stem1 = PeleeConv(in_channels, _STEM, 3, 2, data_format=data_format)
        self.stem2a = PeleeConv(_STEM, _STEM // 2, 1, data_format=data_format)
        self.stem2b = PeleeConv(_STEM // 2, _STEM, 3, 2, data_format=data_format)
        self.stem3 = PeleeConv(2 * _STEM, _STEM, 1, data_format=data_format)
        # The second convolution rounds odd sides up, as the max pooling does.
        self.pool = nn.MaxPool2D(2, 2, ceil_mode=True, data_format=data_format)
        self._axis = 1 if data_format == "NCHW" else 3

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to [B, 32, H/4, W/4]."""
        x = self.stem1(x)
        return self.stem3(paddle.concat([self.pool(x), self.stem2b(self.stem2a(x))], self._axis))


class TwoWayDense(nn.Layer):  # type: ignore[misc]
    """Appends the outputs of two branches, with one and two 3x3 convolutions, to the channels (figure 1).

    Args:
        width: Number of output channels of the 1x1 convolution at the start of each branch.
    """

    def __init__(self, in_channels: int, width: int, data_format: DataFormat) -> None:
        super().__init__()
        growth = _GROWTH // 2
        self.branch1a = PeleeConv(in_channels, width, 1, data_format=data_format)
        self.branch1b = PeleeConv(width, growth, 3, data_format=data_format)
        self.branch2a = PeleeConv(in_channels, width, 1, data_format=data_format)
        self.branch2b = PeleeConv(width, growth, 3, data_format=data_format)
        self.branch2c = PeleeConv(growth, growth, 3, data_format=data_format)
        self._axis = 1 if data_format == "NCHW" else 3

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C + 32, H, W]."""
        one = self.branch1b(self.branch1a(x))
        two = self.branch2c(self.branch2b(self.branch2a(x)))
        return paddle.concat([x, one, two], self._axis)


class PeleeNet(nn.Layer):  # type: ignore[misc]
    """The PeleeNet network."""

    def __init__(
        self,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
    ) -> None:
        super().__init__()
        self.features = nn.Sequential()
        channels = _STEM
        self.features.add_sublayer("stemblock", TwoWayStem(input_image_channel, data_format))
        for i, (depth, ratio) in enumerate(_BLOCKS, 1):
            block = nn.Sequential()
            for j in range(depth):
                width = _GROWTH // 2 * ratio
                if 2 * width > channels:
                    width = channels // 8 * 4
                block.add_sublayer(f"denselayer{j + 1}", TwoWayDense(channels, width, data_format))
                channels += _GROWTH
            self.features.add_sublayer(f"denseblock{i}", block)
            transition = PeleeConv(channels, channels, 1, data_format=data_format)
            self.features.add_sublayer(f"transition{i}", transition)
            if i < len(_BLOCKS):
                halve = nn.AvgPool2D(2, 2, data_format=data_format)
                self.features.add_sublayer(f"transition{i}_pool", halve)
        self.pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self.dropout = nn.Dropout(_DROP)
        self.classifier = linear(channels, class_num, deviation=0.01)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        return self.classifier(self.dropout(self.pool(self.features(x)).flatten(1)))
