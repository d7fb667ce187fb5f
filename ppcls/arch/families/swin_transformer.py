"""Swin Transformer (Liu et al. 2021, https://arxiv.org/abs/2103.14030).

Images may have any size. Feature maps are padded with zeros on the right and at the bottom to multiples of
the window side. If only one side is not a multiple, PaddleClas also adds a whole window to the other side. As
in PaddleClas, every second block shifts its windows, even if one window covers the whole feature map. With
``shift_single_window=False``, such a block does not shift its window, as in the paper, timm and torchvision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import DataFormat
from ppcls.arch.layers.drop_path import drop_paths, dropout
from ppcls.arch.layers.transformer import Permutation, TransformerBlock, linear, normal
from ppcls.arch.layers.windows import WindowAttention, pad_to_multiple, shift_mask
from ppcls.arch.public.names import PublicNames

_MLP_RATIO = 4

MakeAttention = Callable[..., WindowAttention]


class SwinAttention(WindowAttention):
    """Window attention with one learned bias per relative position and head."""

    def __init__(
        self, width: int, heads: int, window: int, shift: int, drop_rate: float, attn_drop_rate: float
    ) -> None:
        super().__init__(width, heads, window, shift, drop_rate, attn_drop_rate)
        self.relative_position_bias_table = self.create_parameter(
            [(2 * window - 1) ** 2, heads], attr=normal()
        )

    def table(self) -> Tensor:
        """Returns the learned biases of all relative positions, [(2 * window - 1) ** 2, heads]."""
        return self.relative_position_bias_table


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
            x = F.pad(x, [0, right, 0, below], data_format="NHWC" if self._channels_last else "NCHW")
        x = self.proj(x)
        return self.norm(x if self._channels_last else x.transpose([0, 2, 3, 1]))


class PatchMerging(nn.Layer):  # type: ignore[misc]
    """Merges 2 x 2 tokens into one token of twice the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.reduction = linear(4 * width, 2 * width, bias=False)
        self.norm = nn.LayerNorm(4 * width)
        self.swap_pixels = Permutation(0, 1, 3, 4, 2, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, H, W, C] to [B, ceil(H / 2), ceil(W / 2), 2 * C]."""
        return self.reduction(self.norm(self.gather(x)))

    def gather(self, x: Tensor) -> Tensor:
        """Concatenates 2 x 2 tokens: maps [B, H, W, C] to [B, ceil(H / 2), ceil(W / 2), 4 * C]."""
        x = pad_to_multiple(x, 2)
        height, width, channels = x.shape[1:]
        x = x.reshape([-1, height // 2, 2, width // 2, 2, channels])
        # Published weights expect the pixels column by column.
        return self.swap_pixels(x).reshape([-1, height // 2, width // 2, 4 * channels])


class SwinStage(nn.Layer):  # type: ignore[misc]
    """A stage of blocks for feature maps of one size. Every second block has shifted windows.

    Args:
        blocks: Number of blocks of the stage.
        downsample: Layer that follows the blocks.
        window: Side of a window in tokens.
        shift_single: Whether to also shift a window that covers the whole feature map.
    """

    def __init__(self, blocks: list[nn.Layer], downsample: nn.Layer, window: int, shift_single: bool) -> None:
        super().__init__()
        self.blocks = nn.LayerList(blocks)
        self.downsample = downsample
        self._window = window
        self._shift_single = shift_single

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, H, W, C] to [B, ceil(H / 2), ceil(W / 2), 2 * C]. The last stage keeps the shape."""
        height, width = (side + -side % self._window for side in x.shape[1:3])
        shifts = self._shift_single or max(height, width) > self._window
        mask = shift_mask(height, width, self._window) if shifts else None
        for i, block in enumerate(self.blocks):
            x = block(x, mask) if i % 2 and shifts else block(x)
        return self.downsample(x)


def _reject_single_window(model: nn.Layer, _name: str) -> str:
    if not model.shifts_single_window:
        return ""
    return (
        "PaddleClas's Swin shifts windows even if one window covers the whole feature map; set "
        "Arch.shift_single_window: False"
    )


class SwinTransformer(nn.Layer):  # type: ignore[misc]
    """The Swin Transformer network.

    Args:
        width: Width of a token in the first stage.
        depths: Number of blocks per stage.
        heads: Number of heads of each block in the first stage. Each further stage doubles the number.
        window: Side of a window in tokens.
        drop_path_rate: Probability of skipping the last block. It decreases linearly to 0 for the first
            block.
        drop_rate: Dropout rate of tokens and after each layer.
        attn_drop_rate: Dropout rate of the attention weights.
        shift_single_window: Whether every second block shifts its window even if this window covers the whole
            feature map.
        stages: Side of a window and constructor of attention per stage; by default ``window`` and
            `SwinAttention`.
    """

    public_names: ClassVar[PublicNames] = PublicNames(
        timm={
            r"^layers\.(\d)\.downsample\.": r"layers.{\1+1}.downsample.",
            r"^head\.": "head.fc.",
        },
        torchvision={
            r"^patch_embed\.proj\.": "features.0.0.",
            r"^patch_embed\.norm\.": "features.0.2.",
            r"^layers\.(\d)\.blocks\.": r"features.{2*\1+1}.",
            r"^layers\.(\d)\.downsample\.": r"features.{2*\1+2}.",
            r"\.mlp\.fc1\.": ".mlp.0.",
            r"\.mlp\.fc2\.": ".mlp.3.",
        },
        reject_weights=_reject_single_window,
    )

    # Buffers in checkpoints of several versions of PaddleClas. The architecture determines their values.
    derived: ClassVar[tuple[str, ...]] = ("relative_position_index", "attn_mask")
    block: ClassVar[type[TransformerBlock]] = TransformerBlock
    merging: ClassVar[type[PatchMerging]] = PatchMerging

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
        stages: Sequence[tuple[int, MakeAttention]] | None = None,
    ) -> None:
        super().__init__()
        self.shifts_single_window = shift_single_window
        self.patch_embed = SwinPatchEmbed(input_image_channel, width, data_format)
        self.pos_drop = dropout(drop_rate)
        rates = iter(drop_paths(drop_path_rate, sum(depths)))
        self.layers = nn.LayerList()
        stages = stages or [(window, SwinAttention)] * len(depths)
        for i, (depth, (side, attention)) in enumerate(zip(depths, stages, strict=True)):
            size = (width << i, heads << i, side)
            hidden = _MLP_RATIO * width << i
            shifts = (side // 2 if j % 2 else 0 for j in range(depth))
            blocks: list[nn.Layer] = []
            for attn in (attention(*size, shift, drop_rate, attn_drop_rate) for shift in shifts):
                block = self.block(width << i, attn, hidden, drop_rate=drop_rate, drop_path=next(rates))
                blocks.append(block)
            downsample = nn.Identity() if i == len(depths) - 1 else self.merging(width << i)
            self.layers.append(SwinStage(blocks, downsample, side, shift_single_window))
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
