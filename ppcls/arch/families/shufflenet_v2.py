"""ShuffleNetV2 (Ma et al. 2018, https://arxiv.org/abs/1807.11164)."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import Activation, DataFormat, UnderscoredConvNorm, kaiming_conv
from ppcls.arch.layers.shuffle import interleave
from ppcls.arch.public.names import PublicNames

_DEPTHS = (4, 8, 4)
_STEM = 24


_conv = partial(kaiming_conv, kind=UnderscoredConvNorm, decay=True)


class ShuffleUnit(nn.Layer):  # type: ignore[misc]
    """Three convolutions of half of the channels, followed by a shuffle of all channels (figure 3c)."""

    def __init__(self, channels: int, act: Activation, data_format: DataFormat) -> None:
        super().__init__()
        half = channels // 2
        conv = _conv(data_format)
        self._conv_pw = conv(half, half, 1, act=act)
        self._conv_dw = conv(half, half, 3, 1, half)
        self._conv_linear = conv(half, half, 1, act=act)
        self._layout = data_format

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to the same shape."""
        untouched, x = paddle.split(x, 2, axis=1 if self._layout == "NCHW" else 3)
        return interleave(untouched, self._conv_linear(self._conv_dw(self._conv_pw(x))), self._layout)


class DownsamplingUnit(nn.Layer):  # type: ignore[misc]
    """Halves the size in two branches, of two and three convolutions, and shuffles channels (figure 3d)."""

    def __init__(self, in_channels: int, out_channels: int, act: Activation, data_format: DataFormat) -> None:
        super().__init__()
        half = out_channels // 2
        conv = _conv(data_format)
        self._conv_dw_1 = conv(in_channels, in_channels, 3, 2, in_channels)
        self._conv_linear_1 = conv(in_channels, half, 1, act=act)
        self._conv_pw_2 = conv(in_channels, half, 1, act=act)
        self._conv_dw_2 = conv(half, half, 3, 2, half)
        self._conv_linear_2 = conv(half, half, 1, act=act)
        self._layout = data_format

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/2, W/2]."""
        first = self._conv_linear_1(self._conv_dw_1(x))
        second = self._conv_linear_2(self._conv_dw_2(self._conv_pw_2(x)))
        return interleave(first, second, self._layout)


class ShuffleNetV2(nn.Layer):  # type: ignore[misc]
    """The ShuffleNetV2 network.

    Args:
        widths: Number of channels per stage.
        features: Number of channels of the last convolution.
        act: Activation of all convolutions except depthwise convolutions.
    """

    public_names: ClassVar[PublicNames] = PublicNames(
        torchvision={
            r"^_conv1\.": ("conv1.0.", "conv1.1."),
            r"^_last_conv\.": ("conv5.0.", "conv5.1."),
            r"^(\d)_(\d)\._conv_": r"stage\1.{\2-1}.",
            r"\.pw(?:_2)?\.": (".branch2.0.", ".branch2.1."),
            r"\.dw(?:_2)?\.": (".branch2.3.", ".branch2.4."),
            r"\.linear(?:_2)?\.": (".branch2.5.", ".branch2.6."),
            r"\.dw_1\.": (".branch1.0.", ".branch1.1."),
            r"\.linear_1\.": (".branch1.2.", ".branch1.3."),
            r"^_fc\.": "fc.",
        },
    )

    def __init__(
        self,
        widths: tuple[int, int, int],
        features: int,
        act: Activation = F.relu,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
    ) -> None:
        super().__init__()
        self._conv1 = _conv(data_format)(input_image_channel, _STEM, 3, 2, act=act)
        self._max_pool = nn.MaxPool2D(3, stride=2, padding=1, data_format=data_format)
        channels = _STEM
        self._blocks = []
        for stage, (width, depth) in enumerate(zip(widths, _DEPTHS, strict=True), 2):
            for i in range(depth):
                unit = (
                    ShuffleUnit(width, act, data_format)
                    if i
                    else DownsamplingUnit(channels, width, act, data_format)
                )
                self._blocks.append(self.add_sublayer(f"{stage}_{i + 1}", unit))
            channels = width
        self._last_conv = _conv(data_format)(channels, features, 1, act=act)
        self._avg_pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self._fc = nn.Linear(features, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        x = self._max_pool(self._conv1(x))
        for block in self._blocks:
            x = block(x)
        return self._fc(self._avg_pool(self._last_conv(x)).flatten(1))


# Table 5 of the paper. The table does not contain x0_25 and x0_33.
ShuffleNetV2_x0_25 = partial(ShuffleNetV2, (24, 48, 96), 512)
ShuffleNetV2_x0_33 = partial(ShuffleNetV2, (32, 64, 128), 512)
ShuffleNetV2_x0_5 = partial(ShuffleNetV2, (48, 96, 192), 1024)
ShuffleNetV2_x1_0 = partial(ShuffleNetV2, (116, 232, 464), 1024)
ShuffleNetV2_x1_5 = partial(ShuffleNetV2, (176, 352, 704), 1024)
ShuffleNetV2_x2_0 = partial(ShuffleNetV2, (244, 488, 976), 2048)
ShuffleNetV2_swish = partial(ShuffleNetV2, (116, 232, 464), 1024, F.swish)
