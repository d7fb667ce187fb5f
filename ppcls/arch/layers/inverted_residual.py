"""The inverted residual (Sandler et al. 2018, https://arxiv.org/abs/1801.04381, figure 3b)."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from paddle import Tensor, nn

from ppcls.arch.layers.conv_norm import Activation, ConvNorm, DataFormat


class InvertedResidual(nn.Layer):  # type: ignore[misc]
    """Widens by a 1x1 convolution, filters each channel, narrows by another; plus the input where it fits.

    Args:
        in_channels: Channels of the input.
        width: Channels in the middle.
        out_channels: Channels of the output.
        kernel: Of the depthwise convolution.
        stride: Of the depthwise convolution.
        act: After the first two convolutions.
        weigh: What weighs the channels in the middle, such as squeeze-and-excitation.
        data_format: Layout of input and output.
        decay: Whether weight decay takes hold of batch norm's scale and shift.
    """

    conv: ClassVar[type[ConvNorm]] = ConvNorm
    # Of the parameters, in checkpoints: widening, depthwise, weighing, narrowing.
    names: ClassVar[tuple[str, str, str, str]] = ("expand_conv", "bottleneck_conv", "mid_se", "linear_conv")

    def __init__(
        self,
        in_channels: int,
        width: int,
        out_channels: int,
        kernel: int,
        stride: int,
        act: Activation,
        weigh: nn.Layer | None = None,
        data_format: DataFormat = "NCHW",
        *,
        decay: bool = True,
    ) -> None:
        super().__init__()
        widen, depthwise, weighing, narrow = self.names
        conv = partial(self.conv, data_format=data_format, decay=decay)
        self.add_sublayer(widen, conv(in_channels, width, 1, act=act))
        self.add_sublayer(depthwise, conv(width, width, kernel, stride, width, act))
        self.add_sublayer(weighing, nn.Identity() if weigh is None else weigh)
        self.add_sublayer(narrow, conv(width, out_channels, 1))
        self._added = stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] to [B, C', H/stride, W/stride], or the same in NHWC."""
        y = x
        for name in self.names:
            y = getattr(self, name)(y)
        return x + y if self._added else y
