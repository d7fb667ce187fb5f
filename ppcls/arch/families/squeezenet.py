"""SqueezeNet (Iandola et al. 2016, https://arxiv.org/abs/1602.07360), versions 1.0 and 1.1."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import DataFormat
from ppcls.arch.layers.drop_path import image_dropout
from ppcls.arch.public.names import PublicNames

_SQUEEZED = (16, 16, 32, 32, 48, 48, 64, 64)  # inner channels of each fire module; it outputs 8 times as many


class ReluConvolution(nn.Layer):  # type: ignore[misc]
    """A convolution with bias and ReLU. In checkpoints, the convolution is ``_conv``."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int, data_format: DataFormat) -> None:
        super().__init__()
        self._conv = nn.Conv2D(
            in_channels, out_channels, kernel, padding=kernel // 2, data_format=data_format
        )

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H, W]."""
        return F.relu(self._conv(x))


class FireModule(nn.Layer):  # type: ignore[misc]
    """A 1x1 convolution that reduces the channels, followed by parallel 1x1 and 3x3 convolutions."""

    def __init__(self, in_channels: int, squeezed: int, data_format: DataFormat) -> None:
        super().__init__()
        self._conv = ReluConvolution(in_channels, squeezed, 1, data_format)
        self._conv_path1 = ReluConvolution(squeezed, 4 * squeezed, 1, data_format)
        self._conv_path2 = ReluConvolution(squeezed, 4 * squeezed, 3, data_format)
        self._axis = 1 if data_format == "NCHW" else 3

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, 8 * squeezed, H, W]."""
        x = self._conv(x)
        return paddle.concat([self._conv_path1(x), self._conv_path2(x)], self._axis)


class SqueezeNet(nn.Layer):  # type: ignore[misc]
    """The SqueezeNet network.

    Args:
        width: Number of channels of the first convolution.
        kernel: Kernel of the first convolution.
        padding: Padding of the first convolution.
        pooled: Numbers of the fire modules that max pooling follows, counted from 1.
    """

    public_names: ClassVar[PublicNames] = PublicNames(
        different="the max pooling of PaddleClas's SqueezeNet drops incomplete windows at the edge",
    )

    def __init__(
        self,
        width: int,
        kernel: int,
        padding: int,
        pooled: Sequence[int],
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
    ) -> None:
        super().__init__()
        self._conv = nn.Conv2D(
            input_image_channel, width, kernel, stride=2, padding=padding, data_format=data_format
        )
        self._pool = nn.MaxPool2D(3, stride=2, data_format=data_format)
        self._pooled = pooled
        channels = width
        for number, squeezed in enumerate(_SQUEEZED, start=1):
            self.add_sublayer(f"_conv{number}", FireModule(channels, squeezed, data_format))
            channels = 8 * squeezed
        # PaddleClas's weights expect this mode, which scales in inference instead of training.
        self._drop = image_dropout(0.5, data_format, mode="downscale_in_infer")
        self._conv9 = nn.Conv2D(channels, class_num, 1, data_format=data_format)
        self._avg_pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]. ReLU makes all logits >= 0."""
        x = self._pool(F.relu(self._conv(x)))
        for number in range(1, len(_SQUEEZED) + 1):
            x = getattr(self, f"_conv{number}")(x)
            if number in self._pooled:
                x = self._pool(x)
        return self._avg_pool(F.relu(self._conv9(self._drop(x)))).flatten(1)


SqueezeNet1_0 = partial(SqueezeNet, 96, 7, 0, (3, 7))
SqueezeNet1_1 = partial(SqueezeNet, 64, 3, 1, (2, 4))
