"""ResNeXt trained on images with hashtags (Mahajan et al. 2018, https://arxiv.org/abs/1805.00932).

The blocks are wide ResNeXt blocks with 32 groups. "32x48d" has 48 channels per group in the first stage.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar

from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import ConvNorm, DataFormat
from ppcls.arch.public.names import PublicNames

_GROUPS = 32
_DEPTHS = (3, 4, 23, 3)
# output channels of the stem and of the first stage
_STEM = 64
_FIRST = 256


class ShortUnderscoredConvNorm(ConvNorm):
    """A `ConvNorm` whose parameters have the names of this network."""

    names: ClassVar[tuple[str, str]] = ("_conv", "_bn")


class WideBottleneck(nn.Layer):  # type: ignore[misc]
    """A bottleneck of 1x1, grouped 3x3 and 1x1 convolutions. The first two have ``width`` channels."""

    def __init__(
        self, in_channels: int, width: int, out_channels: int, stride: int, data_format: DataFormat
    ) -> None:
        super().__init__()
        conv = partial(ShortUnderscoredConvNorm, data_format=data_format)
        self._conv0 = conv(in_channels, width, 1, act=F.relu)
        self._conv1 = conv(width, width, 3, stride, _GROUPS, F.relu)
        self._conv2 = conv(width, out_channels, 1)
        self._short = nn.Sequential()
        if stride > 1 or in_channels != out_channels:
            self._short.add_sublayer("_conv", conv(in_channels, out_channels, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/stride, W/stride]."""
        shortcut: Tensor = self._short(x)
        return self._conv2.add_relu(self._conv1(self._conv0(x)), shortcut)


class WideResNeXt101(nn.Layer):  # type: ignore[misc]
    """The ResNeXt-101 network.

    Args:
        width: Number of channels per group in the first stage.
    """

    public_names: ClassVar[PublicNames] = PublicNames(
        timm={
            r"^_conv_stem\._conv\.": "conv1.",
            r"^_conv_stem\._bn\.": "bn1.",
            r"^_conv(\d)_(\d+)\.": r"layer\1.\2.",
            r"\._short\._conv\._conv\.": ".downsample.0.",
            r"\._short\._conv\._bn\.": ".downsample.1.",
            r"\._conv(\d)\._conv\.": r".conv{\1+1}.",
            r"\._conv(\d)\._bn\.": r".bn{\1+1}.",
            r"^_out\.": "fc.",
        },
    )

    def __init__(
        self,
        width: int,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
    ) -> None:
        super().__init__()
        stem = ShortUnderscoredConvNorm(input_image_channel, _STEM, 7, 2, act=F.relu, data_format=data_format)
        self._conv_stem = stem
        self._pool = nn.MaxPool2D(3, 2, padding=1, data_format=data_format)
        self._blocks: list[Callable[[Tensor], Tensor]] = []
        channels = _STEM
        for stage, depth in enumerate(_DEPTHS):
            for i in range(depth):
                stride = 2 if stage and not i else 1
                out = _FIRST << stage
                block = WideBottleneck(channels, width * _GROUPS << stage, out, stride, data_format)
                self._blocks.append(self.add_sublayer(f"_conv{stage + 1}_{i}", block))
                channels = out
        self._avg_pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self._out = nn.Linear(channels, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        x = self._pool(self._conv_stem(x))
        for block in self._blocks:
            x = block(x)
        return self._out(self._avg_pool(x).flatten(1))


ResNeXt101_32x8d_wsl = partial(WideResNeXt101, 8)
ResNeXt101_32x16d_wsl = partial(WideResNeXt101, 16)
ResNeXt101_32x32d_wsl = partial(WideResNeXt101, 32)
ResNeXt101_32x48d_wsl = partial(WideResNeXt101, 48)
