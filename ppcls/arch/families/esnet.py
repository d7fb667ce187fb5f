"""ESNet (Yu et al. 2021, https://arxiv.org/abs/2111.00902), a ShuffleNet with squeeze-and-excitation."""

from __future__ import annotations

from functools import partial

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import DataFormat, kaiming_conv, round_channels
from ppcls.arch.layers.mobile import LateFeatures
from ppcls.arch.layers.shuffle import interleave
from ppcls.arch.layers.squeeze_excitation import SqueezeExcitation

_DEPTHS = (3, 7, 3)
_WIDTHS = (116, 232, 464)  # those of ShuffleNetV2 x1.0
_STEM = 24
_LAST = 1024


class EnhancedShuffleUnit(nn.Layer):  # type: ignore[misc]
    """Convolutions of half of the channels, followed by a shuffle of all channels."""

    def __init__(self, channels: int, data_format: DataFormat) -> None:
        super().__init__()
        half = channels // 2
        conv = kaiming_conv(data_format)
        self.pw_1_1 = conv(half, half, 1, act=F.hardswish)
        self.dw_1 = conv(half, half, 3, 1, half)
        self.se = SqueezeExcitation(channels, channels // 4, data_format=data_format)
        self.pw_1_2 = conv(channels, half, 1, act=F.hardswish)
        self._layout = data_format
        self._axis = 1 if data_format == "NCHW" else 3

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to the same shape."""
        untouched, x = paddle.split(x, 2, axis=self._axis)
        x = self.pw_1_1(x)
        x = self.pw_1_2(self.se(paddle.concat([x, self.dw_1(x)], axis=self._axis)))
        return interleave(untouched, x, self._layout)


class EnhancedDownsamplingUnit(nn.Layer):  # type: ignore[misc]
    """Halves the size in two branches. A depthwise separable convolution combines the branches."""

    def __init__(self, in_channels: int, out_channels: int, data_format: DataFormat) -> None:
        super().__init__()
        half = out_channels // 2
        conv = kaiming_conv(data_format)
        self.dw_1 = conv(in_channels, in_channels, 3, 2, in_channels)
        self.pw_1 = conv(in_channels, half, 1, act=F.hardswish)
        self.pw_2_1 = conv(in_channels, half, 1, act=F.hardswish)
        self.dw_2 = conv(half, half, 3, 2, half)
        self.se = SqueezeExcitation(half, half // 4, data_format=data_format)
        self.pw_2_2 = conv(half, half, 1, act=F.hardswish)
        self.concat_dw = conv(out_channels, out_channels, 3, 1, out_channels, F.hardswish)
        self.concat_pw = conv(out_channels, out_channels, 1, act=F.hardswish)
        self._axis = 1 if data_format == "NCHW" else 3

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/2, W/2]."""
        first = self.pw_1(self.dw_1(x))
        second = self.pw_2_2(self.se(self.dw_2(self.pw_2_1(x))))
        return self.concat_pw(self.concat_dw(paddle.concat([first, second], axis=self._axis)))


class ESNet(LateFeatures):
    """The ESNet network.

    Args:
        scale: Factor for the number of channels of all units.
        dropout_prob: Dropout rate before the classifier.
    """

    def __init__(
        self,
        scale: float,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
        dropout_prob: float = 0.2,
    ) -> None:
        super().__init__()
        conv = kaiming_conv(data_format)
        self.conv1 = conv(input_image_channel, _STEM, 3, 2, act=F.hardswish)
        self.max_pool = nn.MaxPool2D(3, stride=2, padding=1, data_format=data_format)
        units: list[nn.Layer] = []
        channels = _STEM
        for width, depth in zip(_WIDTHS, _DEPTHS, strict=True):
            out = round_channels(width * scale)
            units.append(EnhancedDownsamplingUnit(channels, out, data_format))
            units += [EnhancedShuffleUnit(out, data_format) for _ in range(depth - 1)]
            channels = out
        self.blocks = nn.Sequential(*units)
        self.conv2 = conv(channels, _LAST, 1, act=F.hardswish)
        self.add_classifier(_LAST, class_num, F.hardswish, dropout_prob, data_format)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        return self.classify(self.conv2(self.blocks(self.max_pool(self.conv1(x)))))


ESNet_x0_25 = partial(ESNet, 0.25)
ESNet_x0_5 = partial(ESNet, 0.5)
ESNet_x0_75 = partial(ESNet, 0.75)
ESNet_x1_0 = partial(ESNet, 1.0)
