"""ReXNet (Han et al. 2020, https://arxiv.org/abs/2007.00992), whose width increases from block to block."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import paddle
from paddle import Tensor, nn

from ppcls.arch.layers.conv_norm import DataFormat, batch_norm, conv_norm_layers
from ppcls.arch.public.names import PublicNames

# numbers of channels at scale 1
_STEM = 32
_FIRST = 16
_GROWTH = 180
_LAST = 1280
_BLOCKS = 16
_EXPANSION = 6
_HALVING = (1, 3, 5, 11)  # numbers of the blocks with stride 2
_EXCITED = 3  # number of the first block with squeeze-and-excitation
_SQUEEZE = 12


class NormalizedSqueezeExcitation(nn.Layer):  # type: ignore[misc]
    """Squeeze-and-excitation with batch norm between its two convolutions."""

    def __init__(self, channels: int, data_format: DataFormat) -> None:
        super().__init__()
        squeezed = channels // _SQUEEZE
        conv = partial(nn.Conv2D, kernel_size=1, data_format=data_format)
        self.avg_pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self.fc = nn.Sequential(
            conv(channels, squeezed),
            batch_norm(squeezed, data_format),
            nn.ReLU(),
            conv(squeezed, channels),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to the same shape."""
        return x * self.fc(self.avg_pool(x))


class PartialShortcutBlock(nn.Layer):  # type: ignore[misc]
    """An inverted residual whose shortcut is added to the first channels only."""

    def __init__(
        self,
        in_channels: int,
        out: int,
        expansion: int,
        stride: int,
        excited: bool,
        data_format: DataFormat,
    ) -> None:
        super().__init__()
        width = in_channels * expansion
        layer = partial(conv_norm_layers, data_format=data_format)
        layers = [*layer(in_channels, width, 1), nn.Swish()] if expansion > 1 else []
        layers += layer(width, width, 3, stride, width)
        if excited:
            layers.append(NormalizedSqueezeExcitation(width, data_format))
        layers += [nn.ReLU6(), *layer(width, out, 1)]
        self.out = nn.Sequential(*layers)
        self._shortcut = stride == 1 and in_channels <= out
        self._parts = [in_channels, out - in_channels]
        self._axis = 1 if data_format == "NCHW" else 3

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/stride, W/stride]."""
        y = self.out(x)
        if not self._shortcut:
            return y
        if not self._parts[1]:
            return x + y
        first, others = paddle.split(y, self._parts, axis=self._axis)
        return paddle.concat([x + first, others], axis=self._axis)


class ReXNet(nn.Layer):  # type: ignore[misc]
    """The ReXNet network.

    Args:
        scale: Factor for all numbers of channels, at least 1.
    """

    public_names: ClassVar[PublicNames] = PublicNames(
        timm={
            r"^features\.3\.out\.(\d)\.": (
                r"features.0.{\1:conv_dw.conv conv_dw.bn - conv_pwl.conv conv_pwl.bn}."
            ),
            r"^features\.([45])\.out\.(\d)\.": (
                r"features.{\1-3}.{\2:conv_exp.conv conv_exp.bn - conv_dw.conv conv_dw.bn - "
                r"conv_pwl.conv conv_pwl.bn}."
            ),
            r"^features\.(\d+)\.out\.(\d)\.": (
                r"features.{\1-3}.{\2:conv_exp.conv conv_exp.bn - conv_dw.conv conv_dw.bn se - "
                r"conv_pwl.conv conv_pwl.bn}."
            ),
            r"\.se\.fc\.1\.": ".se.bn.",
            r"\.se\.fc\.0\.": ".se.fc1.",
            r"\.se\.fc\.3\.": ".se.fc2.",
            r"^features\.0\.(?=\w+$)": "stem.conv.",
            r"^features\.1\.(?=\w+$)": "stem.bn.",
            r"^features\.19\.": "features.16.conv.",
            r"^features\.20\.": "features.16.bn.",
            r"^output\.1\.": "head.fc.",
        },
    )

    def __init__(
        self,
        scale: float,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
    ) -> None:
        super().__init__()
        channels = round(_STEM * scale)
        layer = partial(conv_norm_layers, data_format=data_format)
        layers = [*layer(input_image_channel, channels, 3, 2), nn.Swish()]
        width: float = _FIRST
        for i in range(_BLOCKS):
            out = round(width * scale)
            expansion = _EXPANSION if i else 1
            stride = 2 if i in _HALVING else 1
            layers.append(PartialShortcutBlock(channels, out, expansion, stride, i >= _EXCITED, data_format))
            channels = out
            width += _GROWTH / _BLOCKS
        features = int(_LAST * scale)
        layers += [*layer(channels, features, 1), nn.Swish()]
        layers.append(nn.AdaptiveAvgPool2D(1, data_format=data_format))
        self.features = nn.Sequential(*layers)
        classifier = nn.Conv2D(features, class_num, 1, data_format=data_format)
        self.output = nn.Sequential(nn.Dropout(0.2), classifier)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        return self.output(self.features(x)).flatten(1)


ReXNet_1_0 = partial(ReXNet, 1.0)
ReXNet_1_3 = partial(ReXNet, 1.3)
ReXNet_1_5 = partial(ReXNet, 1.5)
ReXNet_2_0 = partial(ReXNet, 2.0)
ReXNet_3_0 = partial(ReXNet, 3.0)
