"""MicroNet (Li et al. 2021, https://arxiv.org/abs/2108.05894), with only a few million multiply-adds.

Convolutions are factorized into grouped convolutions with shuffled channels. Dynamic shift-max combines
groups of channels.
"""

from __future__ import annotations

from functools import partial

from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import DataFormat, FanOutNormal, conv_norm_layers
from ppcls.arch.layers.sequence import ResidualSequence
from ppcls.arch.layers.shuffle import ShiftMax, ShuffledGroups
from ppcls.arch.layers.transformer import linear

_REDUCTION = 8  # argument `reduction` of ShiftMax
_LITE = 3  # number of first blocks, in which each of the two depthwise convolutions doubles the channels
_INNER = ((1.0, 0.0), (1.0, 0.0)), ((1.0, 0.0), (0.5, 0.5))  # argument `starts` of ShiftMax: M0 to M2, M3


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
        blocks: Five numbers per block: number of channels, stride, kernel of the depthwise convolutions,
            number of groups of the first convolution, and number of groups of the last convolution. In the
            first three blocks, the fourth number is the number of groups of the first activation. A block
            with four numbers has only one convolution.
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
        blocks: str,
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
        for i, block in enumerate(blocks.split()):
            out, stride, *settings = (int(number) for number in block.split("-"))
            layers = nn.Sequential(*self._layers(i, channels, out, stride, *settings))
            stages.append(ResidualSequence({"layers": layers}, stride == 1 and channels == out))
            channels = out
        self.features = nn.Sequential(*stages)
        self.avgpool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        hidden = _linear_swish(channels, features)
        self.classifier = nn.Sequential(hidden, nn.Dropout(dropout), _linear_swish(features, class_num))

    def _layers(
        self, i: int, channels: int, out: int, stride: int, kernel: int, groups: int, last_groups: int = 0
    ) -> list[nn.Layer]:
        """Returns the layers of block ``i``, counted from 0 (figure 4)."""
        third = self._third
        data_format = self._data_format
        width = channels * (4 if i < _LITE else self._expansion)
        reduction = _REDUCTION * (1 if i < self._halving else 2)
        shuffle = partial(ShuffledGroups, data_format=data_format)
        inner = partial(ShiftMax, reduction=reduction, starts=_INNER[third], data_format=data_format)

        def end(channels: int, groups: int, reduction: int) -> nn.Layer:
            shape = channels, groups, reduction, _INNER[0][:1], data_format
            return nn.Identity() if third else ShiftMax(*shape)

        if not last_groups:
            return [_pointwise(channels, width, groups, data_format), end(width, groups, reduction)]
        if i < _LITE:
            middle = 2 * channels
            mixes = third or i > 0
            convs = _separable((channels, middle, width), (channels, middle), kernel, stride, data_format)
            layers = [_conv(convs), inner(width, groups) if mixes else nn.ReLU6(), shuffle(groups)]
            layers.append(shuffle(width // 2) if mixes else nn.Identity())
        else:
            convs = _separable((width, width, width), (width, width), kernel, stride, data_format)
            layers = [_pointwise(channels, width, groups, data_format)]
            layers += [nn.ReLU6() if third else inner(width, groups), shuffle(groups), _conv(convs)]
            layers += [nn.Identity(), inner(width, width // groups), shuffle(width // (2 if third else 4))]
        layers += [_pointwise(width, out, last_groups, data_format), end(out, last_groups, reduction // 2)]
        return [*layers, shuffle(last_groups), nn.Identity() if third else shuffle(out // 2)]

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        return self.classifier(F.hardswish(self.avgpool(F.relu6(self.features(x)))).flatten(1))


def _linear_swish(inputs: int, outputs: int) -> nn.Layer:
    """Returns a linear layer, batch norm and hard swish."""
    layers = linear(inputs, outputs, deviation=0.01), nn.BatchNorm1D(outputs), nn.Hardswish()
    return nn.Sequential(("linear", nn.Sequential(*layers)))


_M0 = "8-2-3-4-2 12-2-3-8-4 16-2-5-12-4 32-1-5-4-4 64-2-5-8-8 96-1-3-8-8 384-1-3-12"
_M1 = "8-2-3-6-2 16-2-3-8-4 16-2-5-16-4 32-1-5-4-4 64-2-5-8-8 96-1-3-8-8 576-1-3-12"
_M2 = "12-2-3-8-4 16-2-3-12-4 24-1-3-16-4 32-2-5-6-4 32-1-5-8-4 64-1-5-8-8 96-2-5-8-8 128-1-3-12-8 768-1-3-16"
_M3 = (
    "16-2-3-12-4 24-2-3-16-4 24-1-3-24-4 32-2-5-6-4 32-1-5-8-4 64-1-5-8-8 80-1-5-8-8 80-1-5-10-8 "
    "120-2-5-10-10 120-1-5-12-10 144-1-3-12-12 864-1-3-12"
)
MicroNet_M0 = partial(MicroNet, (2, 2), _M0, 4, 5, 640, 0.05)
MicroNet_M1 = partial(MicroNet, (3, 2), _M1, 6, 5, 960, 0.05)
MicroNet_M2 = partial(MicroNet, (4, 2), _M2, 6, 4, 1024, 0.1)
MicroNet_M3 = partial(MicroNet, (4, 3), _M3, 6, 4, 1024, 0.1, True)
