"""The depthwise separable convolution (Howard et al. 2017, https://arxiv.org/abs/1704.04861, figure 3)."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from paddle import Tensor, nn

from ppcls.arch.layers.conv_norm import ConvNorm


class DepthwiseSeparable(nn.Layer):  # type: ignore[misc]
    """A convolution of each channel, their weighing where it is wanted, a 1x1 convolution across them.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        kernel: Of the convolution of each channel.
        stride: Of the convolution of each channel.
        conv: Makes both convolutions.
        weigh: What weighs the channels between them, such as squeeze-and-excitation.
    """

    # Of the parameters, in checkpoints: depthwise, weighing, pointwise.
    names: ClassVar[tuple[str, str, str]] = ("dw_conv", "se", "pw_conv")

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int,
        stride: int,
        conv: partial[ConvNorm],
        weigh: nn.Layer | None = None,
    ) -> None:
        super().__init__()
        depthwise, weighing, pointwise = self.names
        self.add_sublayer(depthwise, conv(in_channels, in_channels, kernel, stride, in_channels))
        self.add_sublayer(weighing, nn.Identity() if weigh is None else weigh)
        self.add_sublayer(pointwise, conv(in_channels, out_channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] to [B, C', H/stride, W/stride], or the same in NHWC."""
        for name in self.names:
            x = getattr(self, name)(x)
        return x
