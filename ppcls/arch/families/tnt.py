"""TNT (Han et al. 2021, https://arxiv.org/abs/2103.00112): transformers of patches and within each patch.

Each patch has a learned position embedding. Therefore images whose size is not 224 x 224 need
``img_size``.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import paddle
from paddle import Tensor, nn

from ppcls.arch.layers.conv_norm import DataFormat
from ppcls.arch.layers.drop_path import DropPath, drop_paths, dropout
from ppcls.arch.layers.tokens import TokenConvolution, to_tokens
from ppcls.arch.layers.transformer import DotProductAttention, Mlp, check_side, linear, normal
from ppcls.arch.layers.windows import WindowPartition
from ppcls.arch.public.names import PublicNames

# sides of a patch, and of the part of a patch that the paper calls a pixel
_PATCH = 16
_STRIDE = 4
_PIXELS = (_PATCH // _STRIDE) ** 2  # number of such pixels per patch
_PIXEL_HEADS = 4
_RATIO = 4  # width within `Mlp` divided by the width of a token


class SplitSelfAttention(nn.Layer):  # type: ignore[misc]
    """Self-attention with a separate linear layer for the values.

    Args:
        width: Width of a token, a multiple of ``heads``.
        heads: Number of heads.
        drop_rate: Dropout rate of the output.
        attn_drop_rate: Dropout rate of the attention weights.
    """

    def __init__(self, width: int, heads: int, drop_rate: float, attn_drop_rate: float) -> None:
        super().__init__()
        self.qk = linear(width, 2 * width, bias=False)
        self.v = linear(width, width, bias=False)
        self.proj = linear(width, width)
        self.attention = DotProductAttention(heads, drop_rate=attn_drop_rate)
        self.proj_drop = dropout(drop_rate)

    def forward(self, x: Tensor) -> Tensor:
        """Maps tokens [B, N, width] to the same shape."""
        query, key = self.qk(x).split(2, axis=-1)
        return self.proj_drop(self.proj(self.attention(query, key, self.v(x))))


class NestedBlock(nn.Layer):  # type: ignore[misc]
    """A transformer block for the pixels of each patch, and a transformer block for the patches.

    The pixels are projected and added to the patches between both blocks.

    Args:
        width: Width of a patch's token.
        pixel_width: Width of a pixel's token.
        heads: Number of heads in the attention of patches.
        rates: Dropout rates after each layer and of the attention weights.
        drop_path: Probability of skipping the attention or the `Mlp` of a block for an image in training.
    """

    def __init__(
        self, width: int, pixel_width: int, heads: int, rates: tuple[float, float], drop_path: float
    ) -> None:
        super().__init__()
        joined = pixel_width * _PIXELS
        self.norm_in = nn.LayerNorm(pixel_width)
        self.norm_mlp_in = nn.LayerNorm(pixel_width)
        self.attn_in = SplitSelfAttention(pixel_width, _PIXEL_HEADS, *rates)
        self.mlp_in = Mlp(pixel_width, _RATIO * pixel_width, rates[0])
        self.norm1_proj = nn.LayerNorm(joined)
        self.norm2_proj = nn.LayerNorm(width)
        self.proj = linear(joined, width, bias=False)
        self.norm_out = nn.LayerNorm(width)
        self.norm_mlp = nn.LayerNorm(width)
        self.attn_out = SplitSelfAttention(width, heads, *rates)
        self.mlp = Mlp(width, _RATIO * width, rates[0])
        self.drop_path = DropPath(drop_path)

    def forward(self, pixels: Tensor, patches: Tensor) -> tuple[Tensor, Tensor]:
        """Maps pixels [B * P, 16, pixel_width] and tokens [B, 1 + P, width] to the same shapes."""
        pixels = pixels + self.drop_path(self.attn_in(self.norm_in(pixels)))
        pixels = pixels + self.drop_path(self.mlp_in(self.norm_mlp_in(pixels)))
        token, others = paddle.split(patches, [1, patches.shape[1] - 1], axis=1)
        joined = pixels.reshape([-1, others.shape[1], _PIXELS * pixels.shape[2]])
        added = self.norm2_proj(self.proj(self.norm1_proj(joined)))
        patches = paddle.concat([token, others + added], axis=1)
        patches = patches + self.drop_path(self.attn_out(self.norm_out(patches)))
        return pixels, patches + self.drop_path(self.mlp(self.norm_mlp(patches)))


class TNT(nn.Layer):  # type: ignore[misc]
    """The TNT network.

    Args:
        width: Width of a patch's token.
        pixel_width: Width of a pixel's token.
        heads: Number of heads in the attention of patches.
        depth: Number of blocks.
        img_size: Side of the images in pixels, a multiple of 16; 224 if None.
        drop_rate: Dropout rate of tokens and after each layer.
        attn_drop_rate: Dropout rate of the attention weights.
        drop_path_rate: Probability of skipping the last block. It decreases linearly to 0 for the first
            block.
    """

    public_names: ClassVar[PublicNames] = PublicNames(
        timm={},
    )

    def __init__(
        self,
        width: int,
        pixel_width: int,
        heads: int,
        depth: int = 12,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
        img_size: int | None = None,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        self._side = img_size or 224
        self.partition = WindowPartition()
        self._data_format = data_format
        count = (self._side // _PATCH) ** 2
        joined = pixel_width * _PIXELS
        conv = nn.Conv2D(input_image_channel, pixel_width, 7, _STRIDE, padding=3, data_format=data_format)
        self.pixel_embed = TokenConvolution("proj", conv, data_format)
        self.norm1_proj = nn.LayerNorm(joined)
        self.norm2_proj = nn.LayerNorm(width)
        self.proj = linear(joined, width)
        self.cls_token = self.create_parameter([1, 1, width], attr=normal())
        self.patch_pos = self.create_parameter([1, count + 1, width], attr=normal())
        self.pixel_pos = self.create_parameter([1, _PIXELS, pixel_width], attr=normal())
        self.pos_drop = dropout(drop_rate)
        block = partial(NestedBlock, width, pixel_width, heads, (drop_rate, attn_drop_rate))
        self.blocks = nn.LayerList([block(rate) for rate in drop_paths(drop_path_rate, depth)])
        self.norm = nn.LayerNorm(width)
        self.head = linear(width, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        check_side(x, self._side, self._data_format)
        x = self.partition.split(to_tokens(x, self._data_format), _PATCH)
        pixels = self.pixel_embed(x.reshape([-1, _PATCH, _PATCH, x.shape[2]])).flatten(1, 2) + self.pixel_pos
        joined = pixels.reshape([-1, self.patch_pos.shape[1] - 1, _PIXELS * pixels.shape[2]])
        patches = self.norm2_proj(self.proj(self.norm1_proj(joined)))
        token = self.cls_token.astype(patches.dtype) + paddle.zeros_like(patches[:, :1])
        patches = self.pos_drop(paddle.concat([token, patches], axis=1) + self.patch_pos)
        for block in self.blocks:
            pixels, patches = block(pixels, patches)
        return self.head(self.norm(patches)[:, 0])


TNT_small = partial(TNT, 384, 24, 6)
TNT_base = partial(TNT, 640, 40, 10)
