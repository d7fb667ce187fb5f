"""MicroNet (Li et al. 2021, https://arxiv.org/abs/2108.05894): networks of a few million multiply-adds.

Convolutions are factorized into grouped ones with shuffled channels. Dynamic shift-max mixes channel groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import ConvNorm, DataFormat, FanOutNormal, round_channels
from ppcls.arch.layers.transformer import linear

_REDUCTION, _LEAST = 8, 4  # of the channels between the layers of shift-max

# A block: channels, stride, kernel, both expansions, groups and their factor before the depthwise convolution
# and after it (0: none), and a factor on the reduction within shift-max.
_Block = tuple[int, int, int, int, int, int, int, int, int, int]


_CONV = partial(ConvNorm, initializer=FanOutNormal())


def _pointwise(in_channels: int, out: int, groups: int, data_format: DataFormat) -> nn.Layer:
    """Returns a 1x1 convolution with batch norm."""
    layers = _CONV(in_channels, out, 1, groups=groups, data_format=data_format)
    return nn.Sequential(("conv", nn.Sequential(*layers.children())))


def _separable(
    widths: tuple[int, int, int], groups: tuple[int, int], kernel: int, stride: int, data_format: DataFormat
) -> list[nn.Layer]:
    """Returns a vertical and a horizontal convolution, each with batch norm."""
    conv = partial(_CONV, data_format=data_format)
    vertical = conv(*widths[:2], (kernel, 1), (stride, 1), groups[0])
    horizontal = conv(*widths[1:], (1, kernel), (1, stride), groups[1])
    return [*vertical.children(), *horizontal.children()]


class ShuffledGroups(nn.Layer):  # type: ignore[misc]
    """Interleaves the channels of this number of groups."""

    def __init__(self, groups: int, data_format: DataFormat) -> None:
        super().__init__()
        self._groups, self._first = groups, data_format == "NCHW"

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to the same shape."""
        if self._first:
            _, channels, height, width = x.shape
            parts = x.reshape([-1, self._groups, channels // self._groups, height, width])
            return parts.transpose([0, 2, 1, 3, 4]).flatten(1, 2)
        _, height, width, channels = x.shape
        parts = x.reshape([-1, height, width, self._groups, channels // self._groups])
        return parts.transpose([0, 1, 2, 4, 3]).flatten(3, 4)


class ShiftMax(nn.Layer):  # type: ignore[misc]
    """The maximum of weighted sums of each channel and one of the next group (section 5).

    Args:
        channels: Channels of input and output.
        groups: Groups of channels.
        reduction: Channels, as a multiple of those between the layers that compute the weights.
        starts: Weights of the channel and of the other one, to which the computed ones are added, per sum.
    """

    def __init__(
        self,
        channels: int,
        groups: int,
        reduction: int,
        starts: Sequence[tuple[float, float]],
        data_format: DataFormat,
    ) -> None:
        super().__init__()
        squeezed = max(round_channels(channels // reduction, _LEAST), _LEAST)
        self.avg_pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        expand = linear(squeezed, 2 * len(starts) * channels, deviation=0.01)
        reduce = linear(channels, squeezed, deviation=0.01)
        self.fc = nn.Sequential(reduce, nn.ReLU(), expand, nn.Hardsigmoid())
        order = np.arange(channels).reshape([groups, channels // groups])
        rolled = paddle.to_tensor(np.roll(order, (-1, -1), (0, 1)).flatten())
        if paddle.in_dynamic_mode():
            self.register_buffer("_order", rolled, persistable=False)
        else:  # a static program treats it as a constant
            self._order = rolled
        self._starts, self._axis = starts, 1 if data_format == "NCHW" else 3
        self._spatial = [2, 3] if data_format == "NCHW" else [1, 2]

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to the same shape."""
        weights = (self.fc(self.avg_pool(x).flatten(1)) - 0.5) * 4.0
        parts = paddle.split(weights.unsqueeze(self._spatial), 2 * len(self._starts), self._axis)
        others = x.index_select(self._order, self._axis)
        sums = [
            x * (parts[2 * i] + own) + others * (parts[2 * i + 1] + other)
            for i, (own, other) in enumerate(self._starts)
        ]
        return sums[0] if len(sums) == 1 else paddle.maximum(*sums)


class MicroBlock(nn.Layer):  # type: ignore[misc]
    """A block of one of three kinds (figure 4), with a shortcut if the shapes agree.

    Args:
        block: Properties of the block.
        dynamic: Whether each of three activations is `ShiftMax`: after the expansion, after the depthwise
            convolution, at the end. ReLU6 replaces the first two, and nothing the last one.
        starts: See `ShiftMax`, of the first two activations.
    """

    def __init__(
        self,
        in_channels: int,
        block: _Block,
        dynamic: tuple[bool, bool, bool],
        starts: Sequence[tuple[float, float]],
        data_format: DataFormat,
    ) -> None:
        super().__init__()
        out, stride, kernel, first, second, groups, factor, last_groups, last_factor, ratio = block
        width, reduction = in_channels * first * second, _REDUCTION * ratio
        shuffle = partial(ShuffledGroups, data_format=data_format)

        def activate(used: bool, channel_groups: int) -> nn.Layer:
            return ShiftMax(width, channel_groups, reduction, starts, data_format) if used else nn.ReLU6()

        def end(channels: int, channel_groups: int, divided: bool) -> nn.Layer:
            if not dynamic[2]:
                return nn.Identity()
            final = reduction // 2 if divided else reduction
            return ShiftMax(channels, channel_groups, final, ((1.0, 0.0),), data_format)

        layers: list[nn.Layer]
        if last_factor == 0:
            layers = [_pointwise(in_channels, width, groups, data_format), end(width, factor, False)]
        elif groups == 0:
            middle = in_channels * first
            widths = in_channels, middle, width
            depthwise = _separable(widths, (in_channels, middle), kernel, stride, data_format)
            layers = [
                nn.Sequential(("conv", nn.Sequential(*depthwise))),
                activate(dynamic[1], factor),
                shuffle(factor),
                shuffle(width // 2) if dynamic[1] else nn.Identity(),
                _pointwise(width, out, last_groups, data_format),
                end(out, last_factor, True),
                shuffle(last_factor),
                shuffle(out // 2) if dynamic[2] and out % 2 == 0 else nn.Identity(),
            ]
        else:
            mixed = shuffle(width // (4 if all(dynamic[:2]) else 2)) if any(dynamic[:2]) else nn.Identity()
            depthwise = _separable((width, width, width), (width, width), kernel, stride, data_format)
            layers = [
                _pointwise(in_channels, width, groups, data_format),
                activate(dynamic[0], factor),
                shuffle(factor),
                nn.Sequential(("conv", nn.Sequential(*depthwise))),
                nn.Identity(),
                activate(dynamic[1], width // factor if factor > 1 else 1),
                mixed,
                _pointwise(width, out, last_groups, data_format),
                end(out, last_factor, out < width),
                shuffle(last_factor),
                shuffle(out // 2) if dynamic[2] else nn.Identity(),
            ]
        self.layers = nn.Sequential(*layers)
        self._shortcut = stride == 1 and in_channels == out

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/stride, W/stride]."""
        y = self.layers(x)
        return x + y if self._shortcut else y


def _linear_swish(inputs: int, outputs: int) -> nn.Layer:
    """Returns a linear layer, batch norm and hard swish."""
    layers = linear(inputs, outputs, deviation=0.01), nn.BatchNorm1D(outputs), nn.Hardswish()
    return nn.Sequential(("linear", nn.Sequential(*layers)))


class MicroNet(nn.Layer):  # type: ignore[misc]
    """The MicroNet network. As in PaddleClas, even the logits pass batch norm and hard swish.

    Args:
        stem: Channels of the first convolution, and the factor of the second one.
        blocks: The blocks.
        features: Features before the logits.
        dropout: Dropout of the features.
        third: Whether it is M3, where only the depthwise convolutions are followed by `ShiftMax`.
    """

    def __init__(
        self,
        stem: tuple[int, int],
        blocks: Sequence[_Block],
        features: int,
        dropout: float,
        third: bool = False,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
    ) -> None:
        super().__init__()
        channels = stem[0] * stem[1]
        widths = input_image_channel, stem[0], channels
        convs = [*_separable(widths, (1, stem[0]), 3, 2, data_format), ShuffledGroups(stem[0], data_format)]
        stem_layers = nn.Sequential(nn.Sequential(("conv", nn.Sequential(*convs))), nn.ReLU6())
        layers: list[nn.Layer] = [nn.Sequential(("stem", stem_layers))]
        starts = ((1.0, 0.0), (0.5, 0.5)) if third else ((1.0, 0.0), (1.0, 0.0))
        for i, block in enumerate(blocks):
            dynamic = (not third, third or i > 0, not third)
            layers.append(MicroBlock(channels, block, dynamic, starts, data_format))
            channels = block[0]
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        hidden = _linear_swish(channels, features)
        self.classifier = nn.Sequential(hidden, nn.Dropout(dropout), _linear_swish(features, class_num))

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        return self.classifier(F.hardswish(self.avgpool(F.relu6(self.features(x)))).flatten(1))


_M0 = (
    (8, 2, 3, 2, 2, 0, 4, 2, 2, 1),
    (12, 2, 3, 2, 2, 0, 8, 4, 4, 1),
    (16, 2, 5, 2, 2, 0, 12, 4, 4, 1),
    (32, 1, 5, 1, 4, 4, 4, 4, 4, 1),
    (64, 2, 5, 1, 4, 8, 8, 8, 8, 1),
    (96, 1, 3, 1, 4, 8, 8, 8, 8, 2),
    (384, 1, 3, 1, 4, 12, 12, 0, 0, 2),
)
_M1 = (
    (8, 2, 3, 2, 2, 0, 6, 2, 2, 1),
    (16, 2, 3, 2, 2, 0, 8, 4, 4, 1),
    (16, 2, 5, 2, 2, 0, 16, 4, 4, 1),
    (32, 1, 5, 1, 6, 4, 4, 4, 4, 1),
    (64, 2, 5, 1, 6, 8, 8, 8, 8, 1),
    (96, 1, 3, 1, 6, 8, 8, 8, 8, 2),
    (576, 1, 3, 1, 6, 12, 12, 0, 0, 2),
)
_M2 = (
    (12, 2, 3, 2, 2, 0, 8, 4, 4, 1),
    (16, 2, 3, 2, 2, 0, 12, 4, 4, 1),
    (24, 1, 3, 2, 2, 0, 16, 4, 4, 1),
    (32, 2, 5, 1, 6, 6, 6, 4, 4, 1),
    (32, 1, 5, 1, 6, 8, 8, 4, 4, 2),
    (64, 1, 5, 1, 6, 8, 8, 8, 8, 2),
    (96, 2, 5, 1, 6, 8, 8, 8, 8, 2),
    (128, 1, 3, 1, 6, 12, 12, 8, 8, 2),
    (768, 1, 3, 1, 6, 16, 16, 0, 0, 2),
)
_M3 = (
    (16, 2, 3, 2, 2, 0, 12, 4, 4, 1),
    (24, 2, 3, 2, 2, 0, 16, 4, 4, 1),
    (24, 1, 3, 2, 2, 0, 24, 4, 4, 1),
    (32, 2, 5, 1, 6, 6, 6, 4, 4, 1),
    (32, 1, 5, 1, 6, 8, 8, 4, 4, 2),
    (64, 1, 5, 1, 6, 8, 8, 8, 8, 2),
    (80, 1, 5, 1, 6, 8, 8, 8, 8, 2),
    (80, 1, 5, 1, 6, 10, 10, 8, 8, 2),
    (120, 2, 5, 1, 6, 10, 10, 10, 10, 2),
    (120, 1, 5, 1, 6, 12, 12, 10, 10, 2),
    (144, 1, 3, 1, 6, 12, 12, 12, 12, 2),
    (864, 1, 3, 1, 6, 12, 12, 0, 0, 2),
)
MicroNet_M0 = partial(MicroNet, (2, 2), _M0, 640, 0.05)
MicroNet_M1 = partial(MicroNet, (3, 2), _M1, 960, 0.05)
MicroNet_M2 = partial(MicroNet, (4, 2), _M2, 1024, 0.1)
MicroNet_M3 = partial(MicroNet, (4, 3), _M3, 1024, 0.1, True)
