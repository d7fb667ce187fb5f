"""Attention of linear cost (Mehta and Rastegari 2022, https://arxiv.org/abs/2206.02680)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from paddle import ParamAttr, Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import DataFormat
from ppcls.arch.layers.sequence import ResidualSequence

# Uniform in the inverse root of a kernel's inputs around 0.
UNIFORM = nn.initializer.KaimingUniform(negative_slope=math.sqrt(5), nonlinearity="leaky_relu")


class LinearAttention(nn.Layer):  # type: ignore[misc]
    """Weights all tokens by one score each, adds them up, and multiplies each token by the sum (figure 4)."""

    def __init__(self, width: int, data_format: DataFormat) -> None:
        super().__init__()
        self.qkv_proj = pointwise(width, 1 + 2 * width, data_format)
        self.out_proj = pointwise(width, width, data_format)
        self._width, self._channels_last = width, data_format == "NHWC"

    def forward(self, x: Tensor) -> Tensor:
        """Maps tokens [B, C, P, N] to the same shape; or [B, P, N, C]."""
        channel, token = (3, 2) if self._channels_last else (1, 3)
        query, key, value = self.qkv_proj(x).split([1, self._width, self._width], channel)
        context = (key * F.softmax(query, axis=token)).sum(token, keepdim=True)
        return self.out_proj(F.relu(value) * context)


def pointwise(
    in_channels: int,
    out_channels: int,
    data_format: DataFormat,
    initializer: nn.initializer.Initializer = UNIFORM,
    *,
    bias: bool = True,
) -> nn.Conv2D:
    """Returns a 1x1 convolution."""
    bound = in_channels**-0.5
    bias_attr = ParamAttr(initializer=nn.initializer.Uniform(-bound, bound)) if bias else False
    conv = partial(nn.Conv2D, weight_attr=ParamAttr(initializer=initializer), bias_attr=bias_attr)
    return conv(in_channels, out_channels, 1, data_format=data_format)


def linear_transformer(width: int, depth: int, data_format: DataFormat) -> nn.Sequential:
    """Returns blocks of `LinearAttention` and two 1x1 convolutions, and the last normalization."""
    norm, hidden = partial(nn.GroupNorm, 1, width, data_format=data_format), 2 * width // 16 * 16
    conv = partial(pointwise, data_format=data_format)
    blocks = []
    for _ in range(depth):
        attention = norm(), LinearAttention(width, data_format)
        layers = norm(), conv(width, hidden), nn.Silu(), nn.Identity(), conv(hidden, width)
        blocks.append(transformer_block("pre_norm_attn", attention, layers))
    return nn.Sequential(*blocks, norm())


def transformer_block(name: str, attention: Sequence[nn.Layer], layers: Sequence[nn.Layer]) -> nn.Sequential:
    """Returns attention named ``name`` and further layers named ``pre_norm_ffn``, each with a shortcut."""
    first, second = (
        ResidualSequence({str(i): layer for i, layer in enumerate(half)}, shortcut=True)
        for half in (attention, layers)
    )
    return nn.Sequential((name, first), ("pre_norm_ffn", second))
