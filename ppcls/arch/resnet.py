"""ResNet (He et al. 2015, https://arxiv.org/abs/1512.03385), parameter for parameter as in PaddleClas.

Two things differ from the paper: the stride of a bottleneck sits on its 3x3 convolution ("v1.5", or
"vb"), and the first block of every stage projects its shortcut, also where the shapes already agree.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import paddle
from paddle import Tensor, nn

from ppcls.arch.norm_act import norm_relu

DataFormat = Literal["NCHW", "NHWC"]

_STAGE_WIDTHS = (64, 128, 256, 512)


class ConvBN(nn.Layer):  # type: ignore[misc]
    """A convolution without bias that keeps the size but for ``stride``, then batch norm."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel: int, data_format: DataFormat, stride: int = 1
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2D(
            in_channels,
            out_channels,
            kernel,
            stride,
            padding=kernel // 2,
            bias_attr=False,
            data_format=data_format,
        )
        self.bn = nn.BatchNorm2D(out_channels, data_format=data_format)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] to [B, C', H/stride, W/stride], or the same in NHWC."""
        return self.bn(self.conv(x))

    def relu(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        """Returns what `forward` does, plus ``shortcut`` where there is one, rectified."""
        return norm_relu(self.bn, self.conv(x), shortcut)


class Block(nn.Layer):  # type: ignore[misc]
    """A residual block: ``relu(residual(x) + shortcut(x))``.

    Args:
        in_channels: Channels of the input.
        width: Channels of the inner convolutions; the output has ``width * expansion``.
        stride: Of the block.
        project: Whether the shortcut is a 1x1 convolution rather than the identity.
        data_format: Layout of input and output.
    """

    expansion: int

    def __init__(
        self, in_channels: int, width: int, stride: int, project: bool, data_format: DataFormat
    ) -> None:
        super().__init__()
        out_channels = width * self.expansion
        self.short = ConvBN(in_channels, out_channels, 1, data_format, stride) if project else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] to [B, C', H/stride, W/stride], or the same in NHWC."""
        raise NotImplementedError


class BasicBlock(Block):
    """Two 3x3 convolutions (figure 5, left)."""

    expansion = 1

    def __init__(
        self, in_channels: int, width: int, stride: int, project: bool, data_format: DataFormat
    ) -> None:
        super().__init__(in_channels, width, stride, project, data_format)
        self.conv0 = ConvBN(in_channels, width, 3, data_format, stride)
        self.conv1 = ConvBN(width, width, 3, data_format)

    def forward(self, x: Tensor) -> Tensor:
        """See `Block.forward`."""
        return self.conv1.relu(self.conv0.relu(x), self.short(x))


class BottleneckBlock(Block):
    """1x1, 3x3 and 1x1 convolutions (figure 5, right)."""

    expansion = 4

    def __init__(
        self, in_channels: int, width: int, stride: int, project: bool, data_format: DataFormat
    ) -> None:
        super().__init__(in_channels, width, stride, project, data_format)
        self.conv0 = ConvBN(in_channels, width, 1, data_format)
        self.conv1 = ConvBN(width, width, 3, data_format, stride)
        self.conv2 = ConvBN(width, width * self.expansion, 1, data_format)

    def forward(self, x: Tensor) -> Tensor:
        """See `Block.forward`."""
        return self.conv2.relu(self.conv1.relu(self.conv0.relu(x)), self.short(x))


class ResNet(nn.Layer):  # type: ignore[misc]
    """A residual network.

    Args:
        block: The kind of block.
        depths: Blocks in each of the four stages.
        class_num: Number of classes.
        data_format: Layout of the input; parameters have the same shapes in both.
        input_image_channel: Channels of the input.
    """

    def __init__(
        self,
        block: type[Block],
        depths: tuple[int, int, int, int],
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
    ) -> None:
        super().__init__()
        channels = _STAGE_WIDTHS[0]
        self.stem = nn.Sequential(ConvBN(input_image_channel, channels, 7, data_format, stride=2))
        self.max_pool = nn.MaxPool2D(3, stride=2, padding=1, data_format=data_format)
        blocks = []
        for stage, (width, depth) in enumerate(zip(_STAGE_WIDTHS, depths, strict=True)):
            for i in range(depth):
                stride = 2 if stage > 0 and i == 0 else 1
                blocks.append(block(channels, width, stride, project=i == 0, data_format=data_format))
                channels = width * block.expansion
        self.blocks = nn.Sequential(*blocks)
        self.avg_pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self.flatten = nn.Flatten()
        bound = channels**-0.5
        uniform = nn.initializer.Uniform(-bound, bound)
        self.fc = nn.Linear(channels, class_num, weight_attr=paddle.ParamAttr(initializer=uniform))

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W], or [B, H, W, C] under NHWC, to logits [B, class_num]."""
        x = self.max_pool(self.stem[0].relu(x))
        return self.fc(self.flatten(self.avg_pool(self.blocks(x))))


ResNet18 = partial(ResNet, BasicBlock, (2, 2, 2, 2))
ResNet34 = partial(ResNet, BasicBlock, (3, 4, 6, 3))
ResNet50 = partial(ResNet, BottleneckBlock, (3, 4, 6, 3))
ResNet101 = partial(ResNet, BottleneckBlock, (3, 4, 23, 3))
ResNet152 = partial(ResNet, BottleneckBlock, (3, 8, 36, 3))
