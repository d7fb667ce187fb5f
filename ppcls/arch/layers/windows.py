"""Self-attention within windows, the layer of Swin Transformers (Liu et al. 2021)."""

from __future__ import annotations

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.transformer import SelfAttention

_APART = -100.0  # added to the attention scores of tokens from different regions


class WindowAttention(SelfAttention):
    """Attention within windows, with a bias for the relative position of each pair of tokens.

    Args:
        width: Width of a token, a multiple of ``heads``.
        heads: Number of heads.
        window: Side of a window.
        shift: Rows and columns by which windows are shifted if there is a mask.
        drop_rate: Dropout of the output.
        attn_drop_rate: Dropout of the attention weights.
        bias: Whether queries, keys and values have a bias in ``qkv``.
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
        self._window, self._shift = window, shift

    def table(self) -> Tensor:
        """Returns the biases of all relative positions, [(2 * window - 1) ** 2, heads]."""
        raise NotImplementedError

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Maps tokens [B, H, W, width] to the same shape; ``mask`` is `shift_mask`, to shift the windows."""
        height, width = x.shape[1:3]
        below, right = -height % self._window, -width % self._window
        shifted = self._shift and mask is not None
        if below or right:
            x = F.pad(x, [0, 0, 0, below, 0, right, 0, 0])
        if shifted:
            x = x.roll([-self._shift, -self._shift], [1, 2])
        x = self.attend(to_windows(x, self._window), self._bias(mask))
        x = from_windows(x, self._window, height + below, width + right)
        if shifted:
            x = x.roll([self._shift, self._shift], [1, 2])
        return x[:, :height, :width] if below or right else x

    def _bias(self, mask: Tensor | None) -> Tensor:
        tokens = self._window**2
        bias = self.table().index_select(self.relative_position_index.flatten())
        bias = bias.reshape([1, tokens, tokens, -1]).transpose([0, 3, 1, 2])
        return bias if mask is None else bias + mask.astype(bias.dtype)


def add_constant(layer: nn.Layer, name: str, value: NDArray[np.generic]) -> None:
    """Adds a constant to a layer: a buffer, which checkpoints contain."""
    tensor = paddle.to_tensor(value)
    if paddle.in_dynamic_mode():
        layer.register_buffer(name, tensor)
    else:  # a static program treats it as a constant
        setattr(layer, name, tensor)


def relative_positions(window: int) -> NDArray[np.int64]:
    """Returns [N, N] int64: for each pair of the N tokens of a window, the row of its bias in the table."""
    rows, columns = np.divmod(np.arange(window**2), window)
    down = rows[:, None] - rows + window - 1
    along = columns[:, None] - columns + window - 1
    return np.asarray(down * (2 * window - 1) + along, np.int64)


def shift_mask(height: int, width: int, window: int) -> Tensor:
    """Returns the mask that separates tokens which are neighbors only because shifting wraps around.

    Args:
        height: Height of the feature map, a multiple of ``window``.
        width: Width of the feature map, a multiple of ``window``.
        window: Side of a window; windows are shifted by half of it, rounded down.

    Returns:
        [windows, 1, N, N] float32, 0 for two tokens of the same region.
    """
    rows, columns = (
        (paddle.arange(side) >= side - window).astype("int32")
        + (paddle.arange(side) >= side - window // 2).astype("int32")
        for side in (height, width)
    )
    regions = (3 * rows.unsqueeze(1) + columns).reshape([1, height, width, 1])
    regions = to_windows(regions, window).squeeze(-1)
    apart = regions.unsqueeze(1) != regions.unsqueeze(2)
    return (apart.astype("float32") * _APART).unsqueeze(1)


def to_windows(x: Tensor, window: int) -> Tensor:
    """Maps [B, H, W, C] to [B * windows, window * window, C]."""
    height, width, channels = x.shape[1:]
    x = x.reshape([-1, height // window, window, width // window, window, channels])
    return x.transpose([0, 1, 3, 2, 4, 5]).reshape([-1, window * window, channels])


def from_windows(x: Tensor, window: int, height: int, width: int) -> Tensor:
    """Maps [B * windows, window * window, C] to [B, height, width, C]."""
    channels = x.shape[-1]
    x = x.reshape([-1, height // window, width // window, window, window, channels])
    return x.transpose([0, 1, 3, 2, 4, 5]).reshape([-1, height, width, channels])
