"""Self-attention within windows, the layer of Swin Transformers (Liu et al. 2021)."""

from __future__ import annotations

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor, nn

from ppcls.arch.layers.transformer import Permutation, SelfAttention

_APART = -100.0  # added to the score of two tokens from different regions, as in the code of the authors


class WindowPartition(Permutation):
    """Splits feature maps of tokens into windows, and joins them."""

    def __init__(self) -> None:
        super().__init__(0, 1, 3, 2, 4, 5)  # rows of windows, columns of windows, rows, columns

    def split(self, x: Tensor, window: int | tuple[int, int]) -> Tensor:
        """Splits tokens [B, H, W, C] into windows [B * windows, tokens per window, C].

        Args:
            x: Tokens. Their height and width are multiples of the height and width of a window.
            window: Side, or height and width, of a window.
        """
        rows, columns = _sides(window)
        height, width, channels = x.shape[1:]
        x = x.reshape([-1, height // rows, rows, width // columns, columns, channels])
        return self(x).reshape([-1, rows * columns, channels])

    def join(self, x: Tensor, window: int | tuple[int, int], height: int, width: int) -> Tensor:
        """Joins windows [B * windows, tokens per window, C] to tokens [B, height, width, C]."""
        rows, columns = _sides(window)
        channels = x.shape[-1]
        x = x.reshape([-1, height // rows, width // columns, rows, columns, channels])
        return self(x).reshape([-1, height, width, channels])


class WindowAttention(SelfAttention):
    """Self-attention within windows, with a bias for the relative position of each pair of tokens.

    Args:
        width: Width of a token, a multiple of ``heads``.
        heads: Number of heads.
        window: Side of a window in tokens.
        shift: Number of rows and columns by which windows are shifted if `forward` gets a mask.
        drop_rate: Dropout rate of the output.
        attn_drop_rate: Dropout rate of the attention weights.
        bias: Whether the linear layer ``qkv`` for queries, keys and values has a bias.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        window: int,
        shift: int,
        drop_rate: float,
        attn_drop_rate: float,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(width, heads, bias=bias, drop_rate=drop_rate, attn_drop_rate=attn_drop_rate)
        add_constant(self, "relative_position_index", relative_positions(window))
        self.partition = WindowPartition()
        self._window = window
        self._shift = shift

    def table(self) -> Tensor:
        """Returns the biases of all relative positions, [(2 * window - 1) ** 2, heads]."""
        raise NotImplementedError

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Maps tokens [B, H, W, width] to the same shape.

        Args:
            x: Tokens.
            mask: Result of `shift_mask`, to shift the windows; None for windows that are not shifted.
        """
        height, width = x.shape[1:3]
        shifted = self._shift and mask is not None
        x = pad_to_multiple(x, self._window)
        padded = x.shape[1:3]
        if shifted:
            x = x.roll([-self._shift, -self._shift], [1, 2])
        x = self.attend(self.partition.split(x, self._window), self._bias(mask))
        x = self.partition.join(x, self._window, *padded)
        if shifted:
            x = x.roll([self._shift, self._shift], [1, 2])
        return crop(x, height, width)

    def _bias(self, mask: Tensor | None) -> Tensor:
        tokens = self._window**2
        bias = self.table().index_select(self.relative_position_index.flatten())
        bias = bias.reshape([1, tokens, tokens, -1]).transpose([0, 3, 1, 2])
        return bias if mask is None else bias + mask.astype(bias.dtype)


def add_constant(layer: nn.Layer, name: str, value: NDArray[np.generic], *, stored: bool = True) -> None:
    """Adds a constant to a layer, as a buffer. Checkpoints contain the buffer if it is ``stored``."""
    tensor = paddle.to_tensor(value)
    if paddle.in_dynamic_mode():
        layer.register_buffer(name, tensor, persistable=stored)
    else:  # a static program treats it as a constant
        setattr(layer, name, tensor)


def relative_positions(window: int) -> NDArray[np.int64]:
    """Returns the row of the bias table for each pair of the N tokens of a window, [N, N] int64."""
    rows, columns = np.divmod(np.arange(window**2), window)
    down = rows[:, None] - rows + window - 1
    along = columns[:, None] - columns + window - 1
    return np.asarray(down * (2 * window - 1) + along, np.int64)


def distances(side: int, stride: int) -> NDArray[np.int64]:
    """Returns the index of the distance between each of M queries and each of N keys, [M, N] int64.

    A distance consists of the absolute differences of rows and of columns. Queries are the tokens in every
    ``stride``-th row and column.
    """
    steps = abs(np.arange(0, side, stride)[:, None] - np.arange(side))
    pairs = steps[:, None, :, None] * side + steps[None, :, None, :]
    return np.asarray(pairs.reshape([len(steps) ** 2, side**2]), np.int64)


def shift_mask(height: int, width: int, window: int) -> Tensor:
    """Returns the mask that separates tokens that share a window only because shifting wraps around.

    Args:
        height: Height of the feature map, a multiple of ``window``.
        width: Width of the feature map, a multiple of ``window``.
        window: Side of a window. Windows are shifted by half of the side, rounded down.

    Returns:
        Mask [windows, 1, N, N] float32: 0 for two tokens of the same region, -100 for others.
    """
    rows, columns = (
        (paddle.arange(side) >= side - window).astype("int32")
        + (paddle.arange(side) >= side - window // 2).astype("int32")
        for side in (height, width)
    )
    regions = (3 * rows.unsqueeze(1) + columns).reshape([1, height, width, 1])
    regions = WindowPartition().split(regions, window).squeeze(-1)
    apart = regions.unsqueeze(1) != regions.unsqueeze(2)
    return (apart.astype("float32") * _APART).unsqueeze(1)


def pad_to_multiple(x: Tensor, side: int) -> Tensor:
    """Pads tokens [B, H, W, C] with zeros, so that height and width are multiples of ``side``.

    Does not use `F.pad`: Paddle Inference 3.3 on CPUs pads other axes of exported programs, or never returns.
    """
    below = -x.shape[1] % side
    right = -x.shape[2] % side
    if below:
        x = paddle.concat([x, *[paddle.zeros_like(x[:, :1])] * below], axis=1)
    if right:
        x = paddle.concat([x, *[paddle.zeros_like(x[:, :, :1])] * right], axis=2)
    return x


def crop(x: Tensor, height: int, width: int) -> Tensor:
    """Returns the first ``height`` rows and ``width`` columns of tokens [B, H, W, C]."""
    return x if tuple(x.shape[1:3]) == (height, width) else x[:, :height, :width]


def _sides(window: int | tuple[int, int]) -> tuple[int, int]:
    return (window, window) if isinstance(window, int) else window
