"""CSWin Transformer (Dong et al. 2021, https://arxiv.org/abs/2107.00652), with attention in crossing stripes.

Half of the heads attend within vertical stripes, and half of the heads within horizontal stripes. Feature
maps are padded with zeros to a multiple of the stripes' width. PaddleClas rejects sides that are not a
multiple.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import paddle
from paddle import Tensor, nn

from ppcls.arch.layers.conv_norm import DataFormat
from ppcls.arch.layers.drop_path import DropPath, drop_paths
from ppcls.arch.layers.tokens import PatchNorm, apply_to_tokens
from ppcls.arch.layers.transformer import DotProductAttention, Mlp, linear
from ppcls.arch.layers.windows import WindowPartition, crop, pad_to_multiple

_RATIO = 4


class StripeAttention(nn.Layer):  # type: ignore[misc]
    """Attention within windows, plus a depthwise convolution of the values in each window.

    Args:
        width: Width of a token.
        heads: Number of heads.
        drop_rate: Dropout rate of the attention weights.
    """

    def __init__(self, width: int, heads: int, drop_rate: float, data_format: DataFormat) -> None:
        super().__init__()
        self.get_v = nn.Conv2D(width, width, 3, padding=1, groups=width, data_format=data_format)
        self.attention = DotProductAttention(heads, drop_rate=drop_rate)
        self.partition = WindowPartition()
        self._data_format = data_format

    def forward(self, parts: Sequence[Tensor], window: tuple[int, int]) -> Tensor:
        """Maps queries, keys and values, each [B, H, W, width], to the same shape.

        H and W are multiples of the height and width of ``window``.
        """
        query, key, value = (self.partition.split(part, window) for part in parts)
        image = value.reshape([-1, *window, value.shape[2]])
        local = apply_to_tokens(self.get_v, image, self._data_format).flatten(1, 2)
        mixed = self.attention(query, key, value) + local
        return self.partition.join(mixed, window, *parts[0].shape[1:3])


class CrossBlock(nn.Layer):  # type: ignore[misc]
    """Attention within vertical and horizontal stripes, followed by an `Mlp`.

    Both have a normalization before them and a shortcut around them.

    Args:
        width: Width of a token.
        heads: Number of heads.
        stripe: Width of a stripe; 0 for attention among all tokens.
        rates: Dropout rates after each layer and of the attention weights.
        drop_path: Probability of skipping the attention or the `Mlp` for an image in training.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        stripe: int,
        rates: tuple[float, float],
        drop_path: float,
        data_format: DataFormat,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.qkv = linear(width, 3 * width)
        self.proj = linear(width, width)
        count = 2 if stripe else 1
        attention = partial(StripeAttention, width // count, heads // count, rates[1], data_format)
        self.attns = nn.LayerList([attention() for _ in range(count)])
        self.mlp = Mlp(width, _RATIO * width, rates[0])
        self.drop_path = DropPath(drop_path)
        self._stripe = stripe

    def forward(self, x: Tensor) -> Tensor:
        """Maps tokens [B, H, W, width] to the same shape."""
        x = x + self.drop_path(self.proj(self._attend(self.qkv(self.norm1(x)))))
        return x + self.drop_path(self.mlp(self.norm2(x)))

    def _attend(self, x: Tensor) -> Tensor:
        height, width = x.shape[1:3]
        if not self._stripe:
            return self.attns[0](paddle.split(x, 3, axis=-1), (height, width))
        x = pad_to_multiple(x, self._stripe)
        parts = paddle.split(x, 6, axis=-1)  # the queries, keys and values have two halves each
        windows = (x.shape[1], self._stripe), (self._stripe, x.shape[2])
        halves = [self.attns[i](parts[i::2], window) for i, window in enumerate(windows)]
        return crop(paddle.concat(halves, axis=-1), height, width)


class CSWinTransformer(nn.Layer):  # type: ignore[misc]
    """The CSWin Transformer.

    Args:
        width: Width of a token in the first stage. Each further stage doubles the width.
        depths: Number of blocks per stage.
        heads: Number of heads of each block, per stage.
        stripe: Width of a stripe in the third stage.
        drop_path_rate: Probability of skipping the last block. It decreases linearly to 0 for the first
            block.
        drop_rate: Dropout rate within `Mlp`.
        attn_drop_rate: Dropout rate of the attention weights.
    """

    channels_last: ClassVar[bool] = True  # features are [B, H, W, C] in both layouts

    def __init__(
        self,
        width: int,
        depths: tuple[int, int, int, int],
        heads: tuple[int, int, int, int],
        stripe: int,
        drop_path_rate: float = 0.0,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
    ) -> None:
        super().__init__()
        conv = partial(nn.Conv2D, data_format=data_format)
        first = conv(input_image_channel, width, 7, 4, padding=2)
        self.patch_embedding = PatchNorm(first, data_format, "patch_embed")
        rates = iter(drop_paths(drop_path_rate, sum(depths)))
        drops = (drop_rate, attn_drop_rate)
        self.stages = nn.LayerList()
        for i, (depth, split) in enumerate(zip(depths, (1, 2, stripe, 0), strict=True)):
            block = partial(CrossBlock, width, heads[i], split, drops, data_format=data_format)
            stage = nn.Sequential(("blocks", nn.Sequential(*(block(next(rates)) for _ in range(depth)))))
            if split:
                merge = conv(width, 2 * width, 3, 2, padding=1)
                width *= 2
                stage.add_sublayer("merge", PatchNorm(merge, data_format, "conv", "tokens"))
            self.stages.append(stage)
        self.norm = nn.LayerNorm(width)
        self.head = linear(width, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        x = self.patch_embedding(x)
        for stage in self.stages:
            x = stage(x)
        return self.head(self.norm(x).mean([1, 2]))


_DEEP = (2, 4, 32, 2)
CSWinTransformer_tiny_224 = partial(CSWinTransformer, 64, (1, 2, 21, 1), (2, 4, 8, 16), 7, drop_path_rate=0.2)
CSWinTransformer_small_224 = partial(CSWinTransformer, 64, _DEEP, (2, 4, 8, 16), 7, drop_path_rate=0.4)
CSWinTransformer_base_224 = partial(CSWinTransformer, 96, _DEEP, (4, 8, 16, 32), 7, drop_path_rate=0.5)
CSWinTransformer_base_384 = partial(CSWinTransformer, 96, _DEEP, (4, 8, 16, 32), 12, drop_path_rate=0.5)
CSWinTransformer_large_224 = partial(CSWinTransformer, 144, _DEEP, (6, 12, 24, 24), 7, drop_path_rate=0.5)
CSWinTransformer_large_384 = partial(CSWinTransformer, 144, _DEEP, (6, 12, 24, 24), 12, drop_path_rate=0.5)
