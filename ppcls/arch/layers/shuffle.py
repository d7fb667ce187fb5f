"""Layers that exchange information between groups of channels: shuffles and dynamic shift-max."""

from __future__ import annotations

import numpy as np
import paddle
from paddle import Tensor, nn

from ppcls.arch.layers.conv_norm import DataFormat, round_channels
from ppcls.arch.layers.transformer import linear
from ppcls.arch.layers.windows import add_constant

_LEAST = 4  # the number of channels between the linear layers of shift-max is a multiple of 4, at least 4


def interleave(first: Tensor, second: Tensor, data_format: DataFormat) -> Tensor:
    """Returns the channels of both tensors in alternation, which is ShuffleNet's shuffle of two groups."""
    axis = 2 if data_format == "NCHW" else 4
    return paddle.stack([first, second], axis=axis).flatten(axis - 1, axis)


class ShuffledGroups(nn.Layer):  # type: ignore[misc]
    """Interleaves the channels of ``groups`` groups."""

    def __init__(self, groups: int, data_format: DataFormat) -> None:
        super().__init__()
        self._groups = groups
        self._first = data_format == "NCHW"

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to the same shape."""
        if self._first:
            _, channels, height, width = x.shape
            parts = x.reshape([-1, self._groups, channels // self._groups, height, width])
            return parts.transpose([0, 2, 1, 3, 4]).flatten(1, 2)
        _, height, width, channels = x.shape
        parts = x.reshape([-1, height, width, self._groups, channels // self._groups])
        return parts.transpose([0, 1, 2, 4, 3]).flatten(3, 4)


class ShiftMax(nn.Layer):  # type: ignore[misc]
    """Dynamic shift-max (section 5 of the MicroNet paper).

    The layer computes one or two weighted sums of each channel and a channel of the next group. It returns
    their maximum. Two linear layers compute the weights from the means of all channels.

    Args:
        channels: Number of channels of input and output.
        groups: Number of groups of channels.
        reduction: Number of channels divided by the width between the linear layers.
        starts: For each sum, constants that are added to the weights of the channel and of the other channel.
    """

    def __init__(
        self,
        channels: int,
        groups: int,
        reduction: int,
        starts: tuple[tuple[float, float], ...],
        data_format: DataFormat,
    ) -> None:
        super().__init__()
        squeezed = max(round_channels(channels // reduction, _LEAST), _LEAST)
        self.avg_pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        expand = linear(squeezed, 2 * len(starts) * channels, deviation=0.01)
        reduce = linear(channels, squeezed, deviation=0.01)
        self.fc = nn.Sequential(reduce, nn.ReLU(), expand, nn.Hardsigmoid())
        order = np.arange(channels).reshape([groups, channels // groups])
        add_constant(self, "_order", np.roll(order, (-1, -1), (0, 1)).flatten(), stored=False)
        self._starts = starts
        self._axis = 1 if data_format == "NCHW" else 3
        self._spatial = [2, 3] if data_format == "NCHW" else [1, 2]

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to the same shape."""
        # The gate is in [0, 1], and the coefficients are in [-2, 2], as in the code of the authors (act_max
        # = 2).
        weights = (self.fc(self.avg_pool(x).flatten(1)) - 0.5) * 4.0
        parts = iter(paddle.split(weights.unsqueeze(self._spatial), 2 * len(self._starts), self._axis))
        others = x.index_select(self._order, self._axis)
        sums = [x * (next(parts) + one) + others * (next(parts) + other) for one, other in self._starts]
        return sums[0] if len(sums) == 1 else paddle.maximum(*sums)
