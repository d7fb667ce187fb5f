"""Squeeze-and-excitation (Hu et al. 2017, https://arxiv.org/abs/1709.01507): the image weights channels."""

from __future__ import annotations

from typing import ClassVar

from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import Activation, DataFormat, uniform_linear


class SqueezeExcitation(nn.Layer):  # type: ignore[misc]
    """Weights each channel by what two 1x1 convolutions make of all channels' means.

    Args:
        channels: Of input and output.
        squeezed: Channels between the two convolutions.
        act: Between the two.
        gate: Makes a weight of each channel's number.
        data_format: Layout of input and output.
    """

    names: ClassVar[tuple[str, str]] = ("conv1", "conv2")  # of the parameters, in checkpoints

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
        self._act, self._gate = act, gate

    @staticmethod
    def convolution(in_channels: int, out_channels: int, data_format: DataFormat) -> nn.Layer:
        """Returns a 1x1 convolution with bias."""
        return nn.Conv2D(in_channels, out_channels, 1, data_format=data_format)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] to the same shape, or [B, H, W, C]."""
        reduce, expand = self.names
        squeezed = self._act(getattr(self, reduce)(self.avg_pool(x)))
        return x * self._gate(getattr(self, expand)(squeezed))


class LinearSqueezeExcitation(nn.Layer):  # type: ignore[misc]
    """The paper's own: two linear layers, ReLU between them, a sigmoid at the end.

    Args:
        channels: Of input and output.
        reduction: How many times fewer there are between the two layers.
        gate: Makes a weight of each channel's number.
        data_format: Layout of input and output.
    """

    def __init__(
        self,
        channels: int,
        reduction: int = 16,
        gate: Activation = F.sigmoid,
        data_format: DataFormat = "NCHW",
    ) -> None:
        super().__init__()
        self._gate = gate
        self.avg_pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self.squeeze = uniform_linear(channels, channels // reduction)
        self.excitation = uniform_linear(channels // reduction, channels)
        self._spatial = [2, 3] if data_format == "NCHW" else [1, 2]

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] to the same shape, or [B, H, W, C]."""
        weight = self.squeeze(self.avg_pool(x).squeeze(self._spatial))
        return x * self._gate(self.excitation(F.relu(weight))).unsqueeze(self._spatial)
