"""Swin Transformer (Liu et al. 2021, https://arxiv.org/abs/2103.14030).

Images may have any size: feature maps are padded with zeros on the right and at the bottom to multiples of
the window. (PaddleClas adds a whole window to a side that is a multiple if the other side is not.) As in
PaddleClas, every second block shifts its windows, even where one window covers everything;
``shift_single_window=False`` does not, like the paper, timm and torchvision.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import DataFormat
from ppcls.arch.layers.drop_path import drop_paths, dropout
from ppcls.arch.layers.transformer import SelfAttention, TransformerBlock, linear, normal

_MLP_RATIO = 4
_APART = -100.0  # added to the attention scores of tokens from different regions


class WindowAttention(SelfAttention):
    """Attention within windows, with a learned bias for the relative position of each pair of tokens."""

    def __init__(
        self, width: int, heads: int, window: int, shift: int, drop_rate: float, attn_drop_rate: float
    ) -> None:
        super().__init__(width, heads, drop_rate=drop_rate, attn_drop_rate=attn_drop_rate)
        self.relative_position_bias_table = self.create_parameter(
            [(2 * window - 1) ** 2, heads], attr=normal()
        )
        index = paddle.to_tensor(relative_positions(window))
        if paddle.in_dynamic_mode():
            self.register_buffer("relative_position_index", index)
        else:  # a static program treats it as a constant
            self.relative_position_index = index
        self._window, self._shift = window, shift

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
        bias = self.relative_position_bias_table.index_select(self.relative_position_index.flatten())
        bias = bias.reshape([1, tokens, tokens, -1]).transpose([0, 3, 1, 2])
        return bias if mask is None else bias + mask.astype(bias.dtype)


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


class SwinPatchEmbed(nn.Layer):  # type: ignore[misc]
    """Maps each patch of 4 x 4 pixels to a normalized token."""

    patch: ClassVar[int] = 4

    def __init__(self, channels: int, width: int, data_format: DataFormat) -> None:
        super().__init__()
        self.proj = nn.Conv2D(channels, width, self.patch, self.patch, data_format=data_format)
        self.norm = nn.LayerNorm(width)
        self._channels_last = data_format == "NHWC"

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, ceil(H / 4), ceil(W / 4), width]."""
        sides = x.shape[1:3] if self._channels_last else x.shape[2:4]
        below, right = (-side % self.patch for side in sides)
        if below or right:
            pixels = [0, below, 0, right]
            x = F.pad(x, [0, 0, *pixels, 0, 0] if self._channels_last else [0, 0, 0, 0, *pixels])
        x = self.proj(x)
        return self.norm(x if self._channels_last else x.transpose([0, 2, 3, 1]))


class PatchMerging(nn.Layer):  # type: ignore[misc]
    """Merges 2 x 2 tokens into one of twice the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.reduction = linear(4 * width, 2 * width, bias=False)
        self.norm = nn.LayerNorm(4 * width)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, H, W, C] to [B, ceil(H / 2), ceil(W / 2), 2 * C]."""
        height, width = x.shape[1:3]
        if height % 2 or width % 2:
            x = F.pad(x, [0, 0, 0, height % 2, 0, width % 2, 0, 0])
        corners = [x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        return self.reduction(self.norm(paddle.concat(corners, axis=-1)))


class SwinStage(nn.Layer):  # type: ignore[misc]
    """Blocks of one size, every second one with shifted windows.

    Args:
        width: Width of a token.
        heads: Heads of each block.
        window: Side of a window.
        drop_paths: Probability of skipping each block.
        drop_rate: Dropout after each layer.
        attn_drop_rate: Dropout of attention weights.
        last: Whether it is the last stage, which does not merge tokens.
        shift_single: Whether a window that covers everything is shifted, too.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        window: int,
        drop_paths: list[float],
        drop_rate: float,
        attn_drop_rate: float,
        last: bool,
        shift_single: bool,
    ) -> None:
        super().__init__()
        self.blocks = nn.LayerList()
        for i, drop_path in enumerate(drop_paths):
            shift = window // 2 if i % 2 else 0
            attention = WindowAttention(width, heads, window, shift, drop_rate, attn_drop_rate)
            hidden = _MLP_RATIO * width
            self.blocks.append(
                TransformerBlock(width, attention, hidden, drop_rate=drop_rate, drop_path=drop_path)
            )
        self.downsample = nn.Identity() if last else PatchMerging(width)
        self._window, self._shift_single = window, shift_single

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, H, W, C] to [B, ceil(H / 2), ceil(W / 2), 2 * C]; to its own shape in the last stage."""
        height, width = (side + -side % self._window for side in x.shape[1:3])
        shifts = self._shift_single or max(height, width) > self._window
        mask = shift_mask(height, width, self._window) if shifts else None
        for i, block in enumerate(self.blocks):
            x = block(x, mask) if i % 2 and shifts else block(x)
        return self.downsample(x)


class SwinTransformer(nn.Layer):  # type: ignore[misc]
    """The Swin Transformer network.

    Args:
        width: Width of a token in the first stage.
        depths: Number of blocks per stage.
        heads: Heads of each block in the first stage; the number doubles from stage to stage.
        window: Side of a window.
        drop_path_rate: Probability of skipping the last block; it decreases linearly to 0 in the first one.
        drop_rate: Dropout of tokens and after each layer.
        attn_drop_rate: Dropout of attention weights.
        shift_single_window: Whether every second block shifts its window even if it covers everything.
    """

    # Buffers in checkpoints of several versions of PaddleClas; the architecture determines their values.
    derived: ClassVar[tuple[str, ...]] = ("relative_position_index", "attn_mask")

    channels_last: ClassVar[bool] = True  # features are [B, H, W, C] in both layouts

    def __init__(
        self,
        width: int,
        depths: tuple[int, int, int, int],
        heads: int,
        window: int,
        drop_path_rate: float = 0.1,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        shift_single_window: bool = True,
    ) -> None:
        super().__init__()
        self.shifts_single_window = shift_single_window
        self.patch_embed = SwinPatchEmbed(input_image_channel, width, data_format)
        self.pos_drop = dropout(drop_rate)
        rates = drop_paths(drop_path_rate, sum(depths))
        self.layers = nn.LayerList()
        for i, depth in enumerate(depths):
            stage_rates, rates = rates[:depth], rates[depth:]
            last = i == len(depths) - 1
            size = width << i, heads << i, window
            drops = stage_rates, drop_rate, attn_drop_rate
            self.layers.append(SwinStage(*size, *drops, last, shift_single_window))
        features = width << (len(depths) - 1)
        self.norm = nn.LayerNorm(features)
        self.head = linear(features, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        x = self.pos_drop(self.patch_embed(x))
        for stage in self.layers:
            x = stage(x)
        return self.head(self.norm(x).mean([1, 2]))


_TINY = partial(SwinTransformer, 96, (2, 2, 6, 2), 3)
_SMALL = partial(SwinTransformer, 96, (2, 2, 18, 2), 3)
_BASE = partial(SwinTransformer, 128, (2, 2, 18, 2), 4)
_LARGE = partial(SwinTransformer, 192, (2, 2, 18, 2), 6)

SwinTransformer_tiny_patch4_window7_224 = partial(_TINY, 7, drop_path_rate=0.2)
SwinTransformer_small_patch4_window7_224 = partial(_SMALL, 7, drop_path_rate=0.3)
SwinTransformer_base_patch4_window7_224 = partial(_BASE, 7, drop_path_rate=0.5)
SwinTransformer_base_patch4_window12_384 = partial(_BASE, 12, drop_path_rate=0.5)
SwinTransformer_large_patch4_window7_224 = partial(_LARGE, 7)
SwinTransformer_large_patch4_window12_384 = partial(_LARGE, 12)
