"""Squeeze-and-excitation (Hu et al. 2017, https://arxiv.org/abs/1709.01507)."""

from __future__ import annotations

from typing import ClassVar

from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import Activation, DataFormat, round_channels, uniform_linear


class SqueezeExcitation(nn.Layer):  # type: ignore[misc]
    """Multiplies each channel by a gate, which two 1x1 convolutions compute from the means of all channels.

    Args:
        channels: Number of channels of input and output.
        squeezed: Number of channels between the two convolutions.
        act: Activation between the two convolutions.
        gate: Activation after the second convolution, which returns the gates.
    """

    names: ClassVar[tuple[str, str]] = ("conv1", "conv2")  # names of the convolutions in checkpoints

    def __init__(
        self,
        channels: int,
        squeezed: int,
        act: Activation = F.relu,
        gate: Activation = F.hardsigmoid,
        data_format: DataFormat = "NCHW",
    ) -> None:
        super().__init__()
        reduce, expand = self.names
        self.avg_pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self.add_sublayer(reduce, self.convolution(channels, squeezed, data_format))
        self.add_sublayer(expand, self.convolution(squeezed, channels, data_format))
        self._act = act
        self._gate = gate

    @staticmethod
    def convolution(in_channels: int, out_channels: int, data_format: DataFormat) -> nn.Layer:
        """Returns a 1x1 convolution with a bias."""
        return nn.Conv2D(in_channels, out_channels, 1, data_format=data_format)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to the same shape."""
        folded = getattr(self, "folded", None)  # set by ppcls.arch.fused
        if folded is not None and folded.supports(x):
            return folded.run(x)
        first, act, second, gate = self.excitation()
        return x * gate(second(act(first(self.avg_pool(x)))))

    def excitation(self) -> tuple[nn.Layer, Activation, nn.Layer, Activation]:
        """Returns the two convolutions, each with the activation after it."""
        reduce, expand = self.names
        return getattr(self, reduce), self._act, getattr(self, expand), self._gate


class LinearSqueezeExcitation(nn.Layer):  # type: ignore[misc]
    """Squeeze-and-excitation with two linear layers, as in the paper.

    Args:
        channels: Number of channels of input and output.
        reduction: Number of channels divided by the width between the linear layers.
        gate: Activation after the second linear layer, which returns the gates.
        divisor: Number to a multiple of which the width between the linear layers is rounded.
    """

    def __init__(
        self,
        channels: int,
        reduction: int = 16,
        gate: Activation = F.sigmoid,
        data_format: DataFormat = "NCHW",
        divisor: int = 1,
    ) -> None:
        super().__init__()
        self._gate = gate
        self.avg_pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        squeezed = round_channels(channels // reduction, divisor)
        self.squeeze = uniform_linear(channels, squeezed)
        self.excitation = uniform_linear(squeezed, channels)
        self._spatial = [2, 3] if data_format == "NCHW" else [1, 2]

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to the same shape."""
        weight = self.squeeze(self.avg_pool(x).squeeze(self._spatial))
        return x * self._gate(self.excitation(F.relu(weight))).unsqueeze(self._spatial)
