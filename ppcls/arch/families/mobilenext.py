"""MobileNeXt (Zhou et al. 2020, https://arxiv.org/abs/2007.02269), whose shortcuts connect wide layers.

Its "sandglass" blocks begin and end with depthwise convolutions. Between them, two 1x1 convolutions reduce
and increase the number of channels.
"""

from __future__ import annotations

from functools import partial

from paddle import Tensor, nn

from ppcls.arch.layers.conv_norm import DataFormat, FanOutNormal, conv_norm_layers, round_channels
from ppcls.arch.layers.transformer import linear

_STEM = 32
_STAGES = (  # reduction, channels, number of blocks, stride
    (2, 96, 1, 2),
    (6, 144, 1, 1),
    (6, 192, 3, 2),
    (6, 288, 3, 2),
    (6, 384, 4, 1),
    (6, 576, 4, 2),
    (6, 960, 3, 1),
    (6, 1280, 1, 1),
)


class SandglassBlock(nn.Layer):  # type: ignore[misc]
    """A sandglass block.

    The block consists of a depthwise 3x3 convolution, two 1x1 convolutions that reduce and increase the
    number of channels, and another depthwise 3x3 convolution.

    Args:
        reduction: Number of input channels divided by that of the narrow layer.
        wide: Whether the block has the first depthwise convolution even if the number of channels changes.
    """

    def __init__(
        self,
        in_channels: int,
        out: int,
        stride: int,
        reduction: int,
        wide: bool,
        data_format: DataFormat,
    ) -> None:
        super().__init__()
        narrow = in_channels // reduction
        if narrow < out / 6:
            narrow = round_channels(-(-out // 6), 16)
        layer = partial(conv_norm_layers, data_format=data_format, initializer=FanOutNormal())
        first = wide or in_channels == out
        self._shortcut = in_channels == out and stride == 1 and not wide
        layers = [*layer(in_channels, in_channels, 3, groups=in_channels), nn.ReLU6()] if first else []
        layers += [*layer(in_channels, narrow, 1), *layer(narrow, out, 1), nn.ReLU6()]
        if first or stride > 1:
            layers += layer(out, out, 3, stride, out)
        self.conv = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/stride, W/stride]."""
        y = self.conv(x)
        return x + y if self._shortcut else y


class MobileNeXt(nn.Layer):  # type: ignore[misc]
    """The MobileNeXt network.

    Args:
        scale: Factor for all numbers of channels.
    """

    def __init__(
        self,
        scale: float,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
    ) -> None:
        super().__init__()
        channels = round_channels(_STEM * scale)
        shape = input_image_channel, channels, 3, 2
        stem = conv_norm_layers(*shape, data_format=data_format, initializer=FanOutNormal())
        layers: list[nn.Layer] = [nn.Sequential(*stem, nn.ReLU6())]
        for reduction, width, depth, stride in _STAGES:
            out = round_channels(width * scale)
            for i in range(depth):
                wide = reduction == 2 or (depth == 1 and stride == 1)
                halving = stride if i == 0 else 1
                layers.append(SandglassBlock(channels, out, halving, reduction, wide, data_format))
                channels = out
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self.classifier = nn.Sequential(nn.Dropout(0.2), linear(channels, class_num, deviation=0.01))

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


MobileNeXt_x1_0 = partial(MobileNeXt, 1.0)
