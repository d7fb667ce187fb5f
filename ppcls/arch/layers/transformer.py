"""The transformer block of vision transformers (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762).

As in ViT, normalization precedes the attention and the MLP. These layers use basic operators, which all
devices and export formats support. `ppcls.arch.fused.token_layers` makes them use fused kernels on a GPU, and
`ppcls.arch.onednn.layers` on a CPU.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import paddle
from paddle import ParamAttr, Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import Activation, DataFormat
from ppcls.arch.layers.drop_path import DropPath, dropout
from ppcls.errors import UserError

DEVIATION = 0.02  # standard deviation of initial weights, position embeddings and tokens


class MatrixProduct(nn.Layer):  # type: ignore[misc]
    """A layer that multiplies two matrices. As a layer, the product is visible to `ppcls.arch.cost` and AMP.

    Args:
        transposed: Whether to transpose the last two axes of the second input.

    Attributes:
        transposed: The argument.
    """

    def __init__(self, *, transposed: bool = False) -> None:
        super().__init__()
        self.transposed = transposed

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Maps [..., N, K] and [..., K, M], or [..., M, K] if transposed, to [..., N, M]."""
        return paddle.matmul(x, y, transpose_y=self.transposed)

    def multiplications(self, x: Tensor, output: Tensor) -> int:
        """Returns the number of multiply-adds that compute ``output``, for `ppcls.arch.cost`."""
        return int(math.prod(output.shape) * x.shape[-1])


class Permutation(nn.Layer):  # type: ignore[misc]
    """A layer that reorders the axes of a tensor. As a layer, it can be replaced by a faster one on CPUs.

    Args:
        axes: For each axis of the result, the axis of the input.

    Attributes:
        axes: The argument.
    """

    def __init__(self, *axes: int) -> None:
        super().__init__()
        self.axes = axes

    def forward(self, x: Tensor) -> Tensor:
        """Returns the tensor with reordered axes."""
        return x.transpose(self.axes)


class Softmax(nn.Layer):  # type: ignore[misc]
    """Softmax over the last axis. As a layer, it can be replaced by a faster one on CPUs."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps scores [..., N] to weights of the same shape, whose sums over the last axis are 1."""
        return F.softmax(x, axis=-1)


class DotProductAttention(nn.Layer):  # type: ignore[misc]
    """Multi-head attention for given queries, keys and values.

    Args:
        heads: Number of heads.
        scale: Factor for the products of queries and keys; by default 1 / sqrt(width of a head).
        drop_rate: Dropout rate of the attention weights.
    """

    def __init__(self, heads: int, scale: float | None = None, drop_rate: float = 0.0) -> None:
        super().__init__()
        self.scores = MatrixProduct(transposed=True)
        self.mixed = MatrixProduct()
        self.softmax = Softmax()
        self.swap_heads = Permutation(0, 2, 1, 3)
        self.attn_drop = dropout(drop_rate)
        self._heads = heads
        self._scale = scale

    def forward(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> Tensor:
        """Maps queries [B, N, C], keys [B, M, C] and values [B, M, D] to tokens [B, N, D].

        ``bias``, [heads, N, M], is added to the products of queries and keys.
        """
        query, key, value = (
            self.swap_heads(x.reshape([-1, x.shape[1], self._heads, x.shape[2] // self._heads]))
            for x in (query, key, value)
        )
        # Scale first, to stay in the range of float16.
        scores = self.scores(query * (self._scale or query.shape[-1] ** -0.5), key)
        weights = self.attn_drop(self.softmax(scores if bias is None else scores + bias))
        return self.swap_heads(self.mixed(weights, value)).flatten(2)


class SelfAttention(nn.Layer):  # type: ignore[misc]
    """Multi-head self-attention.

    Args:
        width: Width of a token, a multiple of ``heads``.
        heads: Number of heads.
        bias: Whether queries, keys and values have a bias.
        scale: Factor for the products of queries and keys; ``(width / heads) ** -0.5`` by default.
        drop_rate: Dropout rate of the output.
        attn_drop_rate: Dropout rate of the attention weights.
    """

    names: ClassVar[tuple[str, str]] = ("qkv", "proj")  # names of the linear layers in checkpoints

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        bias: bool = True,
        scale: float | None = None,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
    ) -> None:
        super().__init__()
        self.add_sublayer(self.names[0], linear(width, 3 * width, bias=bias))
        self.add_sublayer(self.names[1], linear(width, width))
        self.scores = MatrixProduct(transposed=True)
        self.mixed = MatrixProduct()
        self.softmax = Softmax()
        self.split_heads = Permutation(2, 0, 3, 1, 4)
        self.swap_heads = Permutation(0, 2, 1, 3)
        self.attn_drop = dropout(attn_drop_rate)
        self.proj_drop = dropout(drop_rate)
        self._heads = heads
        self._scale = scale or (width // heads) ** -0.5

    def forward(self, x: Tensor) -> Tensor:
        """Maps tokens [B, N, width] to the same shape."""
        return self.attend(x)

    def attend(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Maps tokens [B * W, N, width], in W windows per image, to the same shape.

        ``bias``, [W, heads, N, N] or [1, heads, N, N], is added to the products of queries and keys.
        """
        return self.join(self.mix(self.project(x), bias))

    def mix(self, packed: Tensor, bias: Tensor | None = None) -> Tensor:
        """Maps queries, keys and values [B * W, N, 3 * width] to mixed values [B * W, N, width].

        See `attend` for the bias.
        """
        query, key, value = self.unpack(packed)
        return self.mix_heads(query, key, value, bias)

    def mix_heads(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> Tensor:
        """Maps queries, keys and values [B * W, heads, N, width / heads] to mixed values [B * W, N, width].

        See `attend` for the bias.
        """
        scores = self.compare(query, key)
        if bias is not None:
            groups = scores.reshape([-1, *bias.shape])
            # The bias has one row per window of an image, and the batch has the windows of all images.
            scores = (groups + bias).reshape([-1, *scores.shape[1:]])
        weights = self.attn_drop(self.softmax(scores))
        return self.swap_heads(self.mixed(weights, value)).flatten(2)

    def unpack(self, packed: Tensor) -> list[Tensor]:
        """Maps [B, N, 3 * width] to queries, keys and values, [B, heads, N, width / heads] each."""
        width = packed.shape[-1] // 3
        split = packed.reshape([-1, packed.shape[-2], 3, self._heads, width // self._heads])
        parts: list[Tensor] = self.split_heads(split).unbind(0)
        return parts

    def join(self, mixed: Tensor) -> Tensor:
        """Maps mixed values of all heads [B, N, width] to the output of the layer."""
        return self.proj_drop(getattr(self, self.names[1])(mixed))

    def project(self, x: Tensor) -> Tensor:
        """Maps tokens [B, N, width] to queries, keys and values [B, N, 3 * width]."""
        return getattr(self, self.names[0])(x)

    def compare(self, query: Tensor, key: Tensor) -> Tensor:
        """Maps queries and keys [B, heads, N, width / heads] to their products [B, heads, N, N]."""
        return self.scores(query * self._scale, key)  # scale first, to stay in the range of float16


class Mlp(nn.Layer):  # type: ignore[misc]
    """Two linear layers with an activation between them.

    Args:
        width: Width of a token.
        hidden: Width between the layers.
        drop_rate: Dropout rate after each layer.
        act: Activation.
    """

    def __init__(self, width: int, hidden: int, drop_rate: float = 0.0, act: Activation = F.gelu) -> None:
        super().__init__()
        self._act = act
        self.fc1 = linear(width, hidden)
        self.fc2 = linear(hidden, width)
        self.drop = dropout(drop_rate)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [..., width] to the same shape."""
        return self.drop(self.fc2(self.drop(self._act(self.fc1(x)))))


class TransformerBlock(nn.Layer):  # type: ignore[misc]
    """An attention layer and an `Mlp`, each with a normalization before it and a shortcut around it.

    Args:
        width: Width of a token.
        attention: Layer that maps tokens to tokens of the same shape.
        mlp: Width between the layers of the `Mlp`, or a layer that replaces the `Mlp`.
        epsilon: Epsilon of layer norm.
        drop_rate: Dropout rate in the `Mlp`.
        drop_path: Probability of skipping the attention or the `Mlp` for an image in training.
        act: Activation in the `Mlp`.
    """

    def __init__(
        self,
        width: int,
        attention: nn.Layer,
        mlp: int | nn.Layer,
        *,
        epsilon: float = 1e-5,
        drop_rate: float = 0.0,
        drop_path: float = 0.0,
        act: Activation = F.gelu,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, epsilon)
        self.norm2 = nn.LayerNorm(width, epsilon)
        self.attn = attention
        self.mlp = Mlp(width, mlp, drop_rate, act) if isinstance(mlp, int) else mlp
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()

    def forward(self, x: Tensor, context: Any = None) -> Tensor:
        """Maps tokens [B, ..., width] to the same shape.

        Args:
            x: Tokens.
            context: Second argument of the attention, such as a mask.
        """
        normed = self.norm1(x)
        x = x + self.drop_path(self.attn(normed) if context is None else self.attn(normed, context))
        return x + self.drop_path(self.mlp(self.norm2(x)))


def linear(inputs: int, outputs: int, *, bias: bool = True, deviation: float = DEVIATION) -> nn.Linear:
    """Returns a linear layer with normal initial weights of standard deviation ``deviation``."""
    return nn.Linear(inputs, outputs, weight_attr=normal(deviation), bias_attr=None if bias else False)


def normal(deviation: float = DEVIATION) -> ParamAttr:
    """Returns the attribute of a parameter whose initial values have a normal distribution.

    PaddleClas uses a truncated normal distribution instead. Paddle 2.6 truncates it at two standard
    deviations. Paddle 3 truncates it at the value 2, which is 100 standard deviations, and sometimes returns
    2 itself.
    """
    return ParamAttr(initializer=nn.initializer.Normal(std=deviation))


def check_side(x: Tensor, side: int, data_format: DataFormat) -> None:
    """Checks that images have the size of a network's learned position embeddings.

    Args:
        x: Images [B, C, H, W] or [B, H, W, C].
        side: Height and width for which the network was built.
        data_format: Layout of the images.

    Raises:
        UserError: The images have another size.
    """
    height, width = x.shape[1:3] if data_format == "NHWC" else x.shape[2:4]
    if (height, width) != (side, side):
        raise UserError(
            f"Arch.name: this model accepts images of {side} x {side}, "
            f"got {height} x {width}; change Arch.img_size or the size of the images"
        )
