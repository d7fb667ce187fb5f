"""CSPDarkNet (Wang et al. 2019, https://arxiv.org/abs/1911.11929). Blocks process half of the channels."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import paddle
from paddle import Tensor, nn

from ppcls.arch.layers.conv_norm import ConvNorm, DataFormat, leaky_relu
from ppcls.arch.public.names import PublicNames

_STEM = 32


class CspBlock(nn.Layer):  # type: ignore[misc]
    """A 1x1 convolution to ``width`` channels and a 3x3 convolution, with a shortcut."""

    def __init__(self, channels: int, width: int, conv: partial[ConvNorm]) -> None:
        super().__init__()
        self.conv1 = conv(channels, width, 1)
        self.conv2 = conv(width, channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to the same shape."""
        return x + self.conv2(self.conv1(x))


class CrossStage(nn.Layer):  # type: ignore[misc]
    """A stage that halves the size and applies blocks to the second half of its channels (figure 2b).

    Args:
        width: Number of channels of both halves together.
        depth: Number of blocks.
        inner: Number of channels within a block.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        width: int,
        depth: int,
        inner: int,
        data_format: DataFormat,
    ) -> None:
        super().__init__()
        conv = partial(ConvNorm, act=leaky_relu, data_format=data_format)
        half = width // 2
        self.conv_down = conv(in_channels, out_channels, 3, 2)
        self.conv_exp = conv(out_channels, width, 1)
        self.blocks = nn.Sequential(*(CspBlock(half, inner, conv) for _ in range(depth)))
        self.conv_transition_b = conv(half, half, 1)
        self.conv_transition = conv(width, out_channels, 1)
        self._axis = 1 if data_format == "NCHW" else 3

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/2, W/2]."""
        kept, changed = paddle.split(self.conv_exp(self.conv_down(x)), 2, self._axis)
        changed = self.conv_transition_b(self.blocks(changed))
        return self.conv_transition(paddle.concat([kept, changed], self._axis))


class CSPDarkNet(nn.Layer):  # type: ignore[misc]
    """The CSPDarkNet network.

    Args:
        depths: Number of blocks per stage.
    """

    public_names: ClassVar[PublicNames] = PublicNames(
        timm={
            r"^fc\.": "head.fc.",
        },
    )

    def __init__(
        self,
        depths: tuple[int, ...],
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
    ) -> None:
        super().__init__()
        conv = ConvNorm(input_image_channel, _STEM, 3, act=leaky_relu, data_format=data_format)
        self.stem = nn.Sequential(("conv1", conv))
        stages = []
        channels = _STEM
        for i, depth in enumerate(depths):
            out = 2 * channels
            width = out if i else 2 * out
            stages.append(CrossStage(channels, out, width, depth, out // 2, data_format))
            channels = out
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self.fc = nn.Linear(channels, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        return self.fc(self.pool(self.stages(self.stem(x))).flatten(1))


CSPDarkNet53 = partial(CSPDarkNet, (1, 2, 8, 8, 4))
