"""MicroNet (Li et al. 2021, https://arxiv.org/abs/2108.05894), with only a few million multiply-adds.

Convolutions are factorized into grouped convolutions with shuffled channels. Dynamic shift-max combines
groups of channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import DataFormat, FanOutNormal, conv_norm_layers
from ppcls.arch.layers.sequence import ResidualSequence
from ppcls.arch.layers.shuffle import ShiftMax, ShuffledGroups
from ppcls.arch.layers.transformer import linear

_REDUCTION = 8  # argument `reduction` of ShiftMax
_LITE = 3  # number of first blocks, in which each of the two depthwise convolutions doubles the channels
_INNER = ((1.0, 0.0), (1.0, 0.0)), ((1.0, 0.0), (0.5, 0.5))  # argument `starts` of ShiftMax: M0 to M2, M3


class MicroBlock(NamedTuple):
    """Settings of a block.

    Attributes:
        out: Number of channels after the block.
        stride: Stride of the depthwise convolutions.
        kernel: Side of the kernel of the depthwise convolutions.
        groups: Number of groups of the first convolution; in the first three blocks, of the first activation.
        last_groups: Number of groups of the last convolution; 0 for a block with a single convolution.
    """

    out: int
    stride: int
    kernel: int
    groups: int
    last_groups: int = 0


def _conv(layers: list[nn.Layer]) -> nn.Layer:
    return nn.Sequential(("conv", nn.Sequential(*layers)))


def _pointwise(channels: int, out: int, groups: int, data_format: DataFormat) -> nn.Layer:
    """Returns a 1x1 convolution with batch norm."""
    shape = channels, out, 1, 1, groups
    return _conv(conv_norm_layers(*shape, data_format=data_format, initializer=FanOutNormal()))


def _separable(
    widths: tuple[int, int, int], groups: tuple[int, int], kernel: int, stride: int, data_format: DataFormat
) -> list[nn.Layer]:
    """Returns a vertical and a horizontal convolution, each with batch norm."""
    layers = partial(conv_norm_layers, data_format=data_format, initializer=FanOutNormal())
    vertical = layers(*widths[:2], (kernel, 1), (stride, 1), groups[0])
    return [*vertical, *layers(*widths[1:], (1, kernel), (1, stride), groups[1])]


class MicroNet(nn.Layer):  # type: ignore[misc]
    """The MicroNet network. As in PaddleClas, batch norm and hard swish are applied even to the logits.

    Args:
        stem: Number of channels of the first convolution, and factor by which the second one multiplies it.
        blocks: Settings of the blocks.
        expansion: Factor for the number of channels within blocks after the first three.
        halving: Number of the first block whose `ShiftMax` layers have half of the width between linear
            layers.
        features: Number of features before the logits.
        dropout: Dropout rate of the features.
        third: Whether to build M3. In M3, `ShiftMax` follows only the depthwise convolutions. ReLU6 replaces
            `ShiftMax` after the first convolution of a block, and no activation ends a block.
    """

    def __init__(
        self,
        stem: tuple[int, int],
        blocks: Sequence[MicroBlock],
        expansion: int,
        halving: int,
        features: int,
        dropout: float,
        third: bool = False,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
    ) -> None:
        super().__init__()
        self._expansion = expansion
        self._halving = halving
        self._third = third
        self._data_format = data_format
        channels = stem[0] * stem[1]
        convs = _separable((input_image_channel, stem[0], channels), (1, stem[0]), 3, 2, data_format)
        first = nn.Sequential(_conv([*convs, ShuffledGroups(stem[0], data_format)]), nn.ReLU6())
        stages = [nn.Sequential(("stem", first))]
        for i, block in enumerate(blocks):
            layers = nn.Sequential(*self._layers(i, channels, block))
            has_shortcut = block.stride == 1 and channels == block.out
            stages.append(ResidualSequence({"layers": layers}, has_shortcut))
            channels = block.out
        self.features = nn.Sequential(*stages)
        self.avgpool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        hidden = _linear_swish(channels, features)
        self.classifier = nn.Sequential(hidden, nn.Dropout(dropout), _linear_swish(features, class_num))

    def _layers(self, i: int, channels: int, block: MicroBlock) -> list[nn.Layer]:
        """Returns the layers of block ``i``, counted from 0 (figure 4)."""
        width = channels * (4 if i < _LITE else self._expansion)
        reduction = _REDUCTION * (1 if i < self._halving else 2)
        if not block.last_groups:
            convolution = _pointwise(channels, width, block.groups, self._data_format)
            return [convolution, self._end(width, block.groups, reduction)]
        if i < _LITE:
            layers = self._lite_layers(channels, width, reduction, block, mixes=self._third or i > 0)
        else:
            layers = self._wide_layers(channels, width, reduction, block)
        layers.append(_pointwise(width, block.out, block.last_groups, self._data_format))
        layers.append(self._end(block.out, block.last_groups, reduction // 2))
        layers.append(self._shuffle(block.last_groups))
        layers.append(nn.Identity() if self._third else self._shuffle(block.out // 2))
        return layers

    def _lite_layers(
        self, channels: int, width: int, reduction: int, block: MicroBlock, *, mixes: bool
    ) -> list[nn.Layer]:
        """Returns two depthwise convolutions, each of which doubles the channels, and an activation.

        Args:
            mixes: Whether the activation is `ShiftMax`; else it is ReLU6.
        """
        middle = 2 * channels
        convs = _separable(
            (channels, middle, width), (channels, middle), block.kernel, block.stride, self._data_format
        )
        return [
            _conv(convs),
            self._inner(width, block.groups, reduction) if mixes else nn.ReLU6(),
            self._shuffle(block.groups),
            self._shuffle(width // 2) if mixes else nn.Identity(),
        ]

    def _wide_layers(self, channels: int, width: int, reduction: int, block: MicroBlock) -> list[nn.Layer]:
        """Returns a 1x1 and two depthwise convolutions of ``width`` channels, with activations."""
        convs = _separable(
            (width, width, width), (width, width), block.kernel, block.stride, self._data_format
        )
        return [
            _pointwise(channels, width, block.groups, self._data_format),
            nn.ReLU6() if self._third else self._inner(width, block.groups, reduction),
            self._shuffle(block.groups),
            _conv(convs),
            nn.Identity(),  # keeps the numbers of the following layers, which are in the names of parameters
            self._inner(width, width // block.groups, reduction),
            self._shuffle(width // (2 if self._third else 4)),
        ]

    def _inner(self, channels: int, groups: int, reduction: int) -> nn.Layer:
        """Returns the activation within a block."""
        return ShiftMax(channels, groups, reduction, _INNER[self._third], self._data_format)

    def _end(self, channels: int, groups: int, reduction: int) -> nn.Layer:
        """Returns the activation at the end of a block, which M3 does not have."""
        if self._third:
            return nn.Identity()
        return ShiftMax(channels, groups, reduction, _INNER[0][:1], self._data_format)

    def _shuffle(self, groups: int) -> nn.Layer:
        return ShuffledGroups(groups, self._data_format)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        return self.classifier(F.hardswish(self.avgpool(F.relu6(self.features(x)))).flatten(1))


def _linear_swish(inputs: int, outputs: int) -> nn.Layer:
    """Returns a linear layer, batch norm and hard swish."""
    layers = linear(inputs, outputs, deviation=0.01), nn.BatchNorm1D(outputs), nn.Hardswish()
    return nn.Sequential(("linear", nn.Sequential(*layers)))


_M0 = (
    MicroBlock(8, 2, 3, 4, 2),
    MicroBlock(12, 2, 3, 8, 4),
    MicroBlock(16, 2, 5, 12, 4),
    MicroBlock(32, 1, 5, 4, 4),
    MicroBlock(64, 2, 5, 8, 8),
    MicroBlock(96, 1, 3, 8, 8),
    MicroBlock(384, 1, 3, 12),
)
_M1 = (
    MicroBlock(8, 2, 3, 6, 2),
    MicroBlock(16, 2, 3, 8, 4),
    MicroBlock(16, 2, 5, 16, 4),
    MicroBlock(32, 1, 5, 4, 4),
    MicroBlock(64, 2, 5, 8, 8),
    MicroBlock(96, 1, 3, 8, 8),
    MicroBlock(576, 1, 3, 12),
)
_M2 = (
    MicroBlock(12, 2, 3, 8, 4),
    MicroBlock(16, 2, 3, 12, 4),
    MicroBlock(24, 1, 3, 16, 4),
    MicroBlock(32, 2, 5, 6, 4),
    MicroBlock(32, 1, 5, 8, 4),
    MicroBlock(64, 1, 5, 8, 8),
    MicroBlock(96, 2, 5, 8, 8),
    MicroBlock(128, 1, 3, 12, 8),
    MicroBlock(768, 1, 3, 16),
)
_M3 = (
    MicroBlock(16, 2, 3, 12, 4),
    MicroBlock(24, 2, 3, 16, 4),
    MicroBlock(24, 1, 3, 24, 4),
    MicroBlock(32, 2, 5, 6, 4),
    MicroBlock(32, 1, 5, 8, 4),
    MicroBlock(64, 1, 5, 8, 8),
    MicroBlock(80, 1, 5, 8, 8),
    MicroBlock(80, 1, 5, 10, 8),
    MicroBlock(120, 2, 5, 10, 10),
    MicroBlock(120, 1, 5, 12, 10),
    MicroBlock(144, 1, 3, 12, 12),
    MicroBlock(864, 1, 3, 12),
)
MicroNet_M0 = partial(MicroNet, (2, 2), _M0, 4, 5, 640, 0.05)
MicroNet_M1 = partial(MicroNet, (3, 2), _M1, 6, 5, 960, 0.05)
MicroNet_M2 = partial(MicroNet, (4, 2), _M2, 6, 4, 1024, 0.1)
MicroNet_M3 = partial(MicroNet, (4, 3), _M3, 6, 4, 1024, 0.1, True)
