"""Xception (Chollet 2017, https://arxiv.org/abs/1610.02357), with as many blocks as in PaddleClas.

As in PaddleClas, a separable convolution starts with its 1x1 convolution, and batch norm follows both of its
convolutions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import DataFormat, UnderscoredConvNorm, uniform_linear
from ppcls.arch.public.names import PublicNames

_MIDDLE = 728  # number of channels of the middle flow


class SeparableConvolution(nn.Layer):  # type: ignore[misc]
    """A 1x1 convolution and a depthwise 3x3 convolution, each with batch norm."""

    def __init__(self, in_channels: int, out_channels: int, data_format: DataFormat) -> None:
        super().__init__()
        conv = partial(UnderscoredConvNorm, data_format=data_format)
        self._pointwise_conv = conv(in_channels, out_channels, 1)
        self._depthwise_conv = conv(out_channels, out_channels, 3, groups=out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H, W]."""
        return self._depthwise_conv(self._pointwise_conv(x))


class SeparableBlock(nn.Layer):  # type: ignore[misc]
    """A block of separable convolutions, with ReLU before each convolution, and a shortcut.

    Args:
        widths: Number of input channels, and number of output channels of each convolution.
        names: Names of the convolutions in checkpoints.
        stride: Stride of the max pooling and of the shortcut's convolution; None for a block with neither.
        relu_first: Whether ReLU precedes the first convolution.
    """

    def __init__(
        self,
        widths: Sequence[int],
        names: Sequence[str],
        stride: int | None,
        relu_first: bool,
        data_format: DataFormat,
    ) -> None:
        super().__init__()
        self._names = names
        self._relu_first = relu_first
        self._short = self._pool = nn.Identity()
        if stride is not None:
            self._short = nn.Conv2D(
                widths[0], widths[-1], 1, stride, bias_attr=False, data_format=data_format
            )
            self._pool = nn.MaxPool2D(3, stride, padding=1, data_format=data_format)
        for name, inputs, outputs in zip(names, widths[:-1], widths[1:], strict=True):
            self.add_sublayer(name, SeparableConvolution(inputs, outputs, data_format))

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/stride, W/stride]."""
        y = x
        for position, name in enumerate(self._names):
            y = F.relu(y) if position or self._relu_first else y
            y = getattr(self, name)(y)
        return self._short(x) + self._pool(y)


class EntryFlow(nn.Layer):  # type: ignore[misc]
    """Two convolutions, followed by one block per pair of output channels and stride in ``blocks``."""

    def __init__(
        self, blocks: Sequence[tuple[int, int]], data_format: DataFormat, input_image_channel: int
    ) -> None:
        super().__init__()
        conv = partial(UnderscoredConvNorm, act=F.relu, data_format=data_format)
        self._conv1 = conv(input_image_channel, 32, 3, 2)
        self._conv2 = conv(32, 64, 3)
        self._blocks = []
        channels = 64
        for i, (width, stride) in enumerate(blocks):
            widths = (channels, width, width)
            block = SeparableBlock(widths, ("_conv1", "_conv2"), stride, i > 0, data_format)
            self._blocks.append(self.add_sublayer(f"_conv_{i}", block))
            channels = width

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to [B, 728, H/16, W/16]."""
        x = self._conv2(self._conv1(x))
        for block in self._blocks:
            x = block(x)
        return x


class ExitFlow(nn.Layer):  # type: ignore[misc]
    """A block, two separable convolutions and the classifier."""

    def __init__(self, class_num: int, data_format: DataFormat) -> None:
        super().__init__()
        names = ("_conv_1", "_conv_2")
        self._conv_0 = SeparableBlock((_MIDDLE, _MIDDLE, 1024), names, 2, True, data_format)
        self._conv_1 = SeparableConvolution(1024, 1536, data_format)
        self._conv_2 = SeparableConvolution(1536, 2048, data_format)
        self._pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self._out = uniform_linear(2048, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        x = F.relu(self._conv_1(self._conv_0(x)))
        return self._out(self._pool(F.relu(self._conv_2(x))).flatten(1))


class Xception(nn.Layer):  # type: ignore[misc]
    """The Xception network.

    Args:
        entry: Number of output channels and stride of each block of the entry flow.
        depth: Number of blocks of the middle flow.
    """

    public_names: ClassVar[PublicNames] = PublicNames(
        different=(
            "a block of PaddleClas's Xception has two separable convolutions, a block of timm's has three"
        ),
    )

    def __init__(
        self,
        entry: Sequence[tuple[int, int]],
        depth: int,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
    ) -> None:
        super().__init__()
        self._entry_flow = EntryFlow(entry, data_format, input_image_channel)
        self._middle_flow = nn.Sequential()
        for i in range(depth):
            names = ("_conv_0", "_conv_1", "_conv_2")
            block = SeparableBlock((_MIDDLE,) * 4, names, None, True, data_format)
            self._middle_flow.add_sublayer(f"_conv_{i}", block)
        self._exit_flow = ExitFlow(class_num, data_format)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        return self._exit_flow(self._middle_flow(self._entry_flow(x)))


_SHORT = ((128, 2), (256, 2), (_MIDDLE, 2))
_LONG = ((128, 2), (256, 1), (256, 2), (_MIDDLE, 1), (_MIDDLE, 2))
Xception41 = partial(Xception, _SHORT, 8)
Xception65 = partial(Xception, _SHORT, 16)
Xception71 = partial(Xception, _LONG, 16)
