"""Swin Transformer (Liu et al. 2021, https://arxiv.org/abs/2103.14030), parameters as in PaddleClas.

Images of any size: sides that the windows do not divide are padded with zeros, on the right and below.
(PaddleClas pads a side that needs none by a whole window where the other one needs some.) As in PaddleClas,
every other block shifts its windows, in the last stage too, where one window may cover all there is.

Parameters, in millions: SwinTransformer_tiny_patch4_window7_224 28.3,
SwinTransformer_small_patch4_window7_224 49.6, SwinTransformer_base_patch4_window7_224 87.8,
SwinTransformer_base_patch4_window12_384 87.9, SwinTransformer_large_patch4_window7_224 196.5,
SwinTransformer_large_patch4_window12_384 196.7.
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
from ppcls.arch.layers.transformer import SelfAttention, TransformerBlock, drop_paths, dropout, linear, normal

_MLP_RATIO = 4
_APART = -100.0  # what keeps tokens of different regions from attending to each other


class WindowAttention(SelfAttention):
    """Attention within windows, with a learnt bias for each pair's relative position.

    Args:
        width: Numbers of a token.
        heads: How many attend side by side.
        window: Side of a window.
        shift: By how much the windows are shifted.
        drop_rate: Dropout of the output.
        attn_drop_rate: Dropout of the attention weights.
    """

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
        else:  # in a program, a constant like any other
            self.relative_position_index = index
        self._window, self._shift = window, shift

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Maps tokens to the same shape.

        Args:
            x: [B, H, W, width].
            mask: What `shift_mask` gives, where the windows are shifted.
        """
        height, width = x.shape[1:3]
        below, right = -height % self._window, -width % self._window
        if below or right:
            x = F.pad(x, [0, 0, 0, below, 0, right, 0, 0])
        if self._shift:
            x = x.roll([-self._shift, -self._shift], [1, 2])
        x = self.attend(to_windows(x, self._window), self._bias(mask))
        x = from_windows(x, self._window, height + below, width + right)
        if self._shift:
            x = x.roll([self._shift, self._shift], [1, 2])
        return x[:, :height, :width] if below or right else x

    def _bias(self, mask: Tensor | None) -> Tensor:
        tokens = self._window**2
        bias = self.relative_position_bias_table.index_select(self.relative_position_index.flatten())
        bias = bias.reshape([1, tokens, tokens, -1]).transpose([0, 3, 1, 2])
        return bias if mask is None else bias + mask.astype(bias.dtype)


def relative_positions(window: int) -> NDArray[np.int64]:
    """Returns [N, N] int64: for each two of a window's N tokens, the row of the table with their bias."""
    rows, columns = np.divmod(np.arange(window**2), window)
    down = rows[:, None] - rows + window - 1
    along = columns[:, None] - columns + window - 1
    return np.asarray(down * (2 * window - 1) + along, np.int64)


def shift_mask(height: int, width: int, window: int) -> Tensor:
    """Returns what keeps apart tokens that are neighbours only because shifting wraps around.

    Args:
        height: Of the tokens, padded to a multiple of ``window``.
        width: As ``height``.
        window: Side of a window; shifted by half of it, rounded down.

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
    """Makes a normed token of each 4 x 4 pixels.

    Args:
        channels: Of the images.
        width: Numbers of a token.
        data_format: Layout of the images.
    """

    patch: ClassVar[int] = 4

    def __init__(self, channels: int, width: int, data_format: DataFormat) -> None:
        super().__init__()
        self.proj = nn.Conv2D(channels, width, self.patch, self.patch, data_format=data_format)
        self.norm = nn.LayerNorm(width)
        self._channels_last = data_format == "NHWC"

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W], or [B, H, W, C] under NHWC, to [B, ceil(H / 4), ceil(W / 4), width]."""
        sides = x.shape[1:3] if self._channels_last else x.shape[2:4]
        below, right = (-side % self.patch for side in sides)
        if below or right:
            pixels = [0, below, 0, right]
            x = F.pad(x, [0, 0, *pixels, 0, 0] if self._channels_last else [0, 0, 0, 0, *pixels])
        x = self.proj(x)
        return self.norm(x if self._channels_last else x.transpose([0, 2, 3, 1]))


class PatchMerging(nn.Layer):  # type: ignore[misc]
    """Makes one token, twice as wide, of 2 x 2."""

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
    """Blocks of one size, every other one with shifted windows.

    Args:
        width: Numbers of a token.
        heads: Of each block.
        window: Side of a window.
        drop_paths: How often each block is left out.
        drop_rate: Dropout of what each layer gives.
        attn_drop_rate: Dropout of attention weights.
        last: Whether no tokens are merged after it.
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
        self._window = window

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, H, W, C] to [B, ceil(H / 2), ceil(W / 2), 2 * C]; to its own shape in the last stage."""
        height, width = (side + -side % self._window for side in x.shape[1:3])
        mask = shift_mask(height, width, self._window)
        for i, block in enumerate(self.blocks):
            x = block(x, mask) if i % 2 else block(x)
        return self.downsample(x)


class SwinTransformer(nn.Layer):  # type: ignore[misc]
    """A Swin Transformer.

    Args:
        width: Numbers of a token in the first stage.
        depths: Blocks in each of the four stages.
        heads: Of each block in the first stage; each stage has twice as many as the one before.
        window: Side of a window.
        drop_path_rate: How often the last block is left out; the others have their share by depth.
        class_num: Number of classes.
        data_format: Layout of the input; parameters have the same shapes in both.
        input_image_channel: Channels of the input.
        drop_rate: Dropout of tokens and of what each layer gives.
        attn_drop_rate: Dropout of attention weights.
    """

    # Buffers in checkpoints of several versions of PaddleClas; their values follow from the architecture.
    derived: ClassVar[tuple[str, ...]] = ("relative_position_index", "attn_mask")

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
    ) -> None:
        super().__init__()
        self.patch_embed = SwinPatchEmbed(input_image_channel, width, data_format)
        self.pos_drop = dropout(drop_rate)
        rates = drop_paths(drop_path_rate, sum(depths))
        self.layers = nn.LayerList()
        for i, depth in enumerate(depths):
            mine, rates = rates[:depth], rates[depth:]
            last = i == len(depths) - 1
            size = width << i, heads << i, window
            self.layers.append(SwinStage(*size, mine, drop_rate, attn_drop_rate, last))
        features = width << (len(depths) - 1)
        self.norm = nn.LayerNorm(features)
        self.head = linear(features, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W], or [B, H, W, C] under NHWC, to logits [B, class_num]."""
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
