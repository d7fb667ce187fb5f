"""Layers that convert images to tokens, and layers that process tokens.

A token is the vector of a pixel or patch. Tokens have the shape [B, H, W, C], or [B, N, C] in layers that do
not need the positions of the tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, Literal

from paddle import ParamAttr, Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import Activation, DataFormat
from ppcls.arch.layers.drop_path import dropout, image_dropout
from ppcls.arch.layers.sequence import ResidualSequence
from ppcls.arch.layers.transformer import DotProductAttention, linear

# Uniform distribution in ±1 / sqrt(number of inputs of a kernel).
UNIFORM = nn.initializer.KaimingUniform(negative_slope=math.sqrt(5), nonlinearity="leaky_relu")
Form = Literal["image", "tokens"]
_POOLED = 7  # height and width of keys and values in attention with linear cost

# Order of the axes (image, channels, patch row, row in patch, patch column, column in patch).
_SPLIT = {("NCHW", "NCHW"): [0, 1, 3, 5, 2, 4], ("NCHW", "NHWC"): [0, 3, 5, 2, 4, 1]}
_JOIN = {("NCHW", "NCHW"): [0, 1, 4, 2, 5, 3], ("NCHW", "NHWC"): [0, 5, 3, 1, 4, 2]}


def to_tokens(x: Tensor, data_format: DataFormat) -> Tensor:
    """Maps images [B, C, H, W] (or NHWC) to tokens [B, H, W, C]."""
    return x if data_format == "NHWC" else x.transpose([0, 2, 3, 1])


def to_image(x: Tensor, data_format: DataFormat) -> Tensor:
    """Maps tokens [B, H, W, C] to images [B, C, H, W] (or NHWC)."""
    return x if data_format == "NHWC" else x.transpose([0, 3, 1, 2])


def apply_to_tokens(layer: nn.Layer, x: Tensor, data_format: DataFormat) -> Tensor:
    """Applies a layer that expects images in ``data_format`` to tokens [B, H, W, C]."""
    return to_tokens(layer(to_image(x, data_format)), data_format)


class TokenConvolution(nn.Layer):  # type: ignore[misc]
    """Applies a layer that expects images in ``data_format`` to tokens.

    Args:
        name: Name of the layer in checkpoints.
        layer: The layer.
        data_format: Layout of the images.
    """

    def __init__(self, name: str, layer: nn.Layer, data_format: DataFormat) -> None:
        super().__init__()
        self._name = name
        self._data_format = data_format
        self.add_sublayer(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        """Maps tokens [B, H, W, C] to [B, H', W', C']."""
        return apply_to_tokens(getattr(self, self._name), x, self._data_format)


class TokenBatchNorm(nn.BatchNorm1D):  # type: ignore[misc]
    """Batch norm of tokens."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps tokens [B, N, C] to the same shape."""
        rows = nn.BatchNorm1D.forward(self, x.flatten(0, 1))  # Paddle 2.6 cannot compile super()
        return rows.reshape([-1, *x.shape[1:]])


class ChannelNorm(nn.LayerNorm):  # type: ignore[misc]
    """Layer norm over the channels of each pixel, in either layout."""

    def __init__(self, channels: int, epsilon: float, data_format: DataFormat) -> None:
        super().__init__(channels, epsilon)
        self.channels_last = data_format == "NHWC"

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to the same shape."""
        y = x if self.channels_last else x.transpose([0, 2, 3, 1])
        y = nn.LayerNorm.forward(self, y)  # Paddle 2.6 cannot compile super()
        return y if self.channels_last else y.transpose([0, 3, 1, 2])


class PatchNorm(nn.Layer):  # type: ignore[misc]
    """Maps each patch to a token by a strided convolution and layer norm.

    Args:
        conv: The convolution.
        name: Name of the convolution in checkpoints.
        inputs: Form of the input: ``image`` [B, C, H, W] (or NHWC), or ``tokens`` [B, H, W, C].
        outputs: Form of the output, with the same values as ``inputs``.
    """

    def __init__(
        self,
        conv: nn.Conv2D,
        data_format: DataFormat,
        name: str = "proj",
        inputs: Form = "image",
        outputs: Form = "tokens",
    ) -> None:
        super().__init__()
        self._name = name
        self._data_format = data_format
        self._inputs = inputs
        self._outputs = outputs
        self.add_sublayer(name, conv)
        self.norm = nn.LayerNorm(conv.weight.shape[0])

    def forward(self, x: Tensor) -> Tensor:
        """Maps an image or tokens to an image or tokens of a smaller size."""
        x = to_image(x, self._data_format) if self._inputs == "tokens" else x
        x = self.norm(to_tokens(getattr(self, self._name)(x), self._data_format))
        return to_image(x, self._data_format) if self._outputs == "image" else x


class PixelMlp(nn.Layer):  # type: ignore[misc]
    """Two 1x1 convolutions with an activation between them.

    Args:
        channels: Number of channels of input and output.
        hidden: Number of channels between the convolutions.
        drop_rate: Dropout rate after each convolution.
        act: Activation.
        attr: Attribute of the weights.
    """

    names: ClassVar[tuple[str, str]] = ("fc1", "fc2")  # names of the convolutions in checkpoints

    def __init__(
        self,
        channels: int,
        hidden: int,
        drop_rate: float,
        data_format: DataFormat,
        act: Activation = F.gelu,
        attr: ParamAttr | None = None,
    ) -> None:
        super().__init__()
        conv = partial(nn.Conv2D, kernel_size=1, weight_attr=attr, data_format=data_format)
        self.add_sublayer(self.names[0], conv(channels, hidden))
        self.add_sublayer(self.names[1], conv(hidden, channels))
        self.drop = image_dropout(drop_rate, data_format)
        self._act = act

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to the same shape."""
        first, second = self.names
        return self.drop(getattr(self, second)(self.drop(self._act(getattr(self, first)(x)))))


class ReducedAttention(nn.Layer):  # type: ignore[misc]
    """Self-attention with a reduced number of keys and values.

    Args:
        width: Width of a token.
        heads: Number of heads.
        reduction: Factor by which a convolution reduces the height and width of keys and values.
        linear_cost: Whether average pooling reduces keys and values to 7 x 7. If False, a convolution
            reduces them.
        rates: Dropout rates of the output and of the attention weights.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        reduction: int,
        linear_cost: bool,
        rates: tuple[float, float],
        data_format: DataFormat,
    ) -> None:
        super().__init__()
        self.q = linear(width, width)
        self.kv = linear(width, 2 * width)
        self.proj = linear(width, width)
        self.attention = DotProductAttention(heads, drop_rate=rates[1])
        self.proj_drop = dropout(rates[0])
        self._linear = linear_cost
        self._data_format = data_format
        self._reduces = linear_cost or reduction > 1
        self.pool = nn.AdaptiveAvgPool2D(_POOLED, data_format=data_format) if linear_cost else nn.Identity()
        if self._reduces:
            side = 1 if linear_cost else reduction
            self.sr = nn.Conv2D(width, width, side, side, data_format=data_format)
            self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Maps tokens [B, H, W, C] to the same shape."""
        query = self.q(x.flatten(1, 2))
        source = self._reduce(x) if self._reduces else x
        key, value = self.kv(source.flatten(1, 2)).split(2, axis=-1)
        return self.proj_drop(self.proj(self.attention(query, key, value))).reshape([-1, *x.shape[1:]])

    def _reduce(self, x: Tensor) -> Tensor:
        x = self.sr(self.pool(to_image(x, self._data_format)))
        x = self.norm(to_tokens(x, self._data_format))
        return F.gelu(x) if self._linear else x


class AveragedAttention(nn.Layer):  # type: ignore[misc]
    """Self-attention with averages of consecutive tokens as keys and values.

    Args:
        width: Width of a token.
        heads: Number of heads.
        count: Number of tokens per average. Remaining tokens at the end are ignored.
        rates: Dropout rates of the output and of the attention weights.
    """

    def __init__(self, width: int, heads: int, count: int, rates: tuple[float, float]) -> None:
        super().__init__()
        self.q, self.k, self.v, self.proj = (linear(width, width) for _ in range(4))
        self.attention = DotProductAttention(heads, drop_rate=rates[1])
        self.proj_drop = dropout(rates[0])
        self._count = count
        self._width = width
        if count > 1:
            self.norm = TokenBatchNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Maps tokens [B, H, W, width] to the same shape."""
        tokens = source = x.flatten(1, 2)
        if self._count > 1:
            kept = tokens.shape[1] // self._count
            groups = tokens[:, : kept * self._count].reshape([-1, kept, self._count, self._width])
            source = self.norm(groups.mean(2))
        mixed = self.attention(self.q(tokens), self.k(source), self.v(source))
        return self.proj_drop(self.proj(mixed)).reshape([-1, *x.shape[1:]])


class LinearAttention(nn.Layer):  # type: ignore[misc]
    """Attention with linear cost (Mehta and Rastegari 2022, https://arxiv.org/abs/2206.02680, figure 4).

    The layer computes one score per token and the sum of all keys, weighted by the scores. It multiplies the
    value of each token by this sum.
    """

    def __init__(self, width: int, data_format: DataFormat) -> None:
        super().__init__()
        self.qkv_proj = pointwise(width, 1 + 2 * width, data_format)
        self.out_proj = pointwise(width, width, data_format)
        self._width = width
        self._channels_last = data_format == "NHWC"

    def forward(self, x: Tensor) -> Tensor:
        """Maps tokens [B, C, P, N] (or [B, P, N, C] for NHWC) to the same shape."""
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
    """Returns a 1x1 convolution whose initial biases are uniform in ±1 / sqrt(``in_channels``)."""
    bound = in_channels**-0.5
    bias_attr = ParamAttr(initializer=nn.initializer.Uniform(-bound, bound)) if bias else False
    conv = partial(nn.Conv2D, weight_attr=ParamAttr(initializer=initializer), bias_attr=bias_attr)
    return conv(in_channels, out_channels, 1, data_format=data_format)


def linear_transformer(width: int, depth: int, data_format: DataFormat) -> nn.Sequential:
    """Returns ``depth`` blocks of `LinearAttention` and two 1x1 convolutions, and a final normalization."""
    norm = partial(nn.GroupNorm, 1, width, data_format=data_format)
    hidden = 2 * width // 16 * 16
    conv = partial(pointwise, data_format=data_format)
    blocks = []
    for _ in range(depth):
        attention = norm(), LinearAttention(width, data_format)
        layers = norm(), conv(width, hidden), nn.Silu(), nn.Identity(), conv(hidden, width)
        blocks.append(transformer_block("pre_norm_attn", attention, layers))
    return nn.Sequential(*blocks, norm())


def transformer_block(name: str, attention: Sequence[nn.Layer], layers: Sequence[nn.Layer]) -> nn.Sequential:
    """Returns attention layers, named ``name``, and other layers, named ``pre_norm_ffn``, with shortcuts."""
    first, second = (
        ResidualSequence({str(i): layer for i, layer in enumerate(half)}, shortcut=True)
        for half in (attention, layers)
    )
    return nn.Sequential((name, first), ("pre_norm_ffn", second))


def over_patches(
    layer: Callable[[Tensor], Tensor], x: Tensor, data_format: DataFormat, inner: DataFormat
) -> Tensor:
    """Splits images into patches of 2x2 pixels, applies ``layer`` to them, and returns images.

    Args:
        layer: Layer whose output has the shape of its input, [B, C, 4, patches] or [B, 4, patches, C].
        x: Images [B, C, H, W] (or NHWC) with even height and width.
        data_format: Layout of the images.
        inner: Layout of the layer's input: NCHW for [B, C, 4, patches], NHWC for [B, 4, patches, C].
    """
    if data_format == "NHWC":
        height, width, channels = x.shape[1:]
        x = x.reshape([-1, height // 2, 2, width // 2, 2, channels]).transpose([0, 2, 4, 1, 3, 5])
    else:
        channels, height, width = x.shape[1:]
        x = x.reshape([-1, channels, height // 2, 2, width // 2, 2]).transpose(_SPLIT[data_format, inner])
    count = height * width // 4
    last = inner == "NHWC"
    x = layer(x.reshape([-1, 4, count, channels] if last else [-1, channels, 4, count]))
    grid = [2, 2, height // 2, width // 2]
    x = x.reshape([-1, *grid, channels] if last else [-1, channels, *grid])
    if data_format == "NHWC":
        return x.transpose([0, 3, 1, 4, 2, 5]).reshape([-1, height, width, channels])
    return x.transpose(_JOIN[data_format, inner]).reshape([-1, channels, height, width])


def resize(
    x: Tensor, size: tuple[int, int], data_format: DataFormat, mode: str = "bilinear", *, align: bool = False
) -> Tensor:
    """Returns images resized to ``size``, or the images themselves if they have this size."""
    if sides(x, data_format) == size:
        return x
    return F.interpolate(x, size, mode=mode, align_corners=align, data_format=data_format)


def sides(x: Tensor, data_format: DataFormat) -> tuple[int, int]:
    """Returns the height and width of images."""
    height, width = x.shape[1:3] if data_format == "NHWC" else x.shape[2:]
    return height, width


def even(size: tuple[int, int]) -> tuple[int, int]:
    """Returns a height and width rounded up to even numbers."""
    return size[0] + size[0] % 2, size[1] + size[1] % 2
