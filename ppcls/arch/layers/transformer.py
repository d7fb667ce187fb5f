"""The block that vision transformers are made of (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762).

Normalization comes first in each half, as in ViT; names of parameters are PaddleClas's. SelfAttention is made
of plain operators.
"""

from __future__ import annotations

import math

import paddle
from paddle import ParamAttr, Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.drop_path import DropPath

DEVIATION = 0.02  # of what linear layers, positions and tokens begin with


class MatrixProduct(nn.Layer):  # type: ignore[misc]
    """The matrix product of two inputs: a layer, so that it is counted and rounded as linear layers are.

    Args:
        transposed: Whether the second one's last two axes change places first.
    """

    def __init__(self, *, transposed: bool = False) -> None:
        super().__init__()
        self._transposed = transposed

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Maps [..., N, K] and [..., K, M], or [..., M, K] where it is transposed, to [..., N, M]."""
        return paddle.matmul(x, y, transpose_y=self._transposed)

    def multiplications(self, x: Tensor, made: Tensor) -> int:
        """Counts those that made ``made``; see `ppcls.arch.cost`."""
        return int(math.prod(made.shape) * x.shape[-1])


class SelfAttention(nn.Layer):  # type: ignore[misc]
    """Self-attention with several heads.

    Args:
        width: Numbers of a token; a multiple of ``heads``.
        heads: How many attend side by side.
        bias: Whether queries, keys and values have a bias.
        scale: Of the products of queries and keys; by default 1 / sqrt(numbers of a head).
        drop_rate: Dropout of the output.
        attn_drop_rate: Dropout of the attention weights.
    """

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
        self.qkv = linear(width, 3 * width, bias=bias)
        self.proj = linear(width, width)
        self.scores, self.mixed = MatrixProduct(transposed=True), MatrixProduct()
        self.attn_drop, self.proj_drop = dropout(attn_drop_rate), dropout(drop_rate)
        self._heads, self._scale = heads, scale or (width // heads) ** -0.5

    def forward(self, x: Tensor) -> Tensor:
        """Maps tokens [B, N, width] to the same shape."""
        return self.attend(x)

    def attend(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Maps tokens to the same shape.

        Args:
            x: [B * W, N, width]; W groups of each image.
            bias: [W, heads, N, N] or [1, heads, N, N], added to the products of queries and keys.
        """
        tokens, width = x.shape[-2:]
        split = self.qkv(x).reshape([-1, tokens, 3, self._heads, width // self._heads])
        query, key, value = split.transpose([2, 0, 3, 1, 4]).unbind(0)
        scores = self.scores(query * self._scale, key)  # scaled first, for float16's range
        if bias is not None:
            groups = scores.reshape([-1, *bias.shape])
            scores = (groups + bias).reshape([-1, self._heads, tokens, tokens])
        weights = self.attn_drop(F.softmax(scores, axis=-1))
        mixed = self.mixed(weights, value).transpose([0, 2, 1, 3])
        return self.proj_drop(self.proj(mixed.reshape([-1, tokens, width])))


class Mlp(nn.Layer):  # type: ignore[misc]
    """Two linear layers, GELU between them.

    Args:
        width: Numbers of a token.
        hidden: Numbers of a token between the layers.
        drop_rate: Dropout after each layer.
    """

    def __init__(self, width: int, hidden: int, drop_rate: float = 0.0) -> None:
        super().__init__()
        self.fc1, self.fc2 = linear(width, hidden), linear(hidden, width)
        self.drop = dropout(drop_rate)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [..., width] to the same shape."""
        return self.drop(self.fc2(self.drop(F.gelu(self.fc1(x)))))


class TransformerBlock(nn.Layer):  # type: ignore[misc]
    """Attention, then the two linear layers, each normalized first and added to its input.

    Args:
        width: Numbers of a token.
        attention: Maps tokens to the same shape.
        hidden: Numbers of a token within `Mlp`.
        epsilon: Of layer norm.
        drop_rate: Dropout within `Mlp`.
        drop_path: How often each half is left out.
    """

    def __init__(
        self,
        width: int,
        attention: nn.Layer,
        hidden: int,
        *,
        epsilon: float = 1e-5,
        drop_rate: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, epsilon), nn.LayerNorm(width, epsilon)
        self.attn = attention
        self.mlp = Mlp(width, hidden, drop_rate)
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Maps tokens [B, ..., width] to the same shape; an attention that takes a mask is given it."""
        normed = self.norm1(x)
        x = x + self.drop_path(self.attn(normed) if mask is None else self.attn(normed, mask))
        return x + self.drop_path(self.mlp(self.norm2(x)))


def linear(inputs: int, outputs: int, *, bias: bool = True, deviation: float = DEVIATION) -> nn.Linear:
    """Returns a linear layer whose weight begins with a normal distribution of that deviation."""
    return nn.Linear(inputs, outputs, weight_attr=normal(deviation), bias_attr=None if bias else False)


def normal(deviation: float = DEVIATION) -> ParamAttr:
    """Returns how such a parameter begins.

    PaddleClas cuts it off by an operator that Paddle 2.6 has cut at two deviations, and Paddle 3 at 2, a
    hundred deviations; there it gives a 2 itself now and then.
    """
    return ParamAttr(initializer=nn.initializer.Normal(std=deviation))


def dropout(rate: float) -> nn.Layer:
    """Returns dropout, or nothing where the rate is 0: a model without it draws no random numbers."""
    return nn.Dropout(rate) if rate else nn.Identity()


def drop_paths(rate: float, depth: int) -> list[float]:
    """Returns the rates of ``depth`` blocks, growing evenly from 0 to ``rate``."""
    return [rate * i / max(depth - 1, 1) for i in range(depth)]
