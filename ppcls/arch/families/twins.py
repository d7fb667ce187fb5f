"""Twins (Chu et al. 2021, https://arxiv.org/abs/2104.13840). Convolutions encode the positions of tokens.

The attention of PCPVT uses a reduced number of keys and values, as in PVT. In SVT (``alt_gvt``), only every
second block uses this attention, and the other blocks attend within windows. Feature maps are padded with
zeros to multiples of the window side. PaddleClas rejects sides that are not multiples.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from paddle import ParamAttr, Tensor, nn
from paddle.regularizer import L2Decay

from ppcls.arch.layers.conv_norm import DataFormat, FanOutNormal
from ppcls.arch.layers.drop_path import drop_paths, dropout
from ppcls.arch.layers.tokens import PatchNorm, ReducedAttention, TokenConvolution
from ppcls.arch.layers.transformer import SelfAttention, TransformerBlock, linear
from ppcls.arch.layers.windows import WindowPartition, crop, pad_to_multiple
from ppcls.arch.public.names import PublicNames

_WINDOW = 7
_REDUCTIONS = (8, 4, 2, 1)  # factor by which the sides of keys and values are reduced, per stage
_EPSILON = 1e-6  # of the layer norms in PaddleClas and timm, except those of the patch embeddings


class LocalAttention(SelfAttention):
    """Self-attention within windows. The arguments are those of `SelfAttention`."""

    def __init__(self, width: int, heads: int, **options: Any) -> None:
        super().__init__(width, heads, **options)
        self.partition = WindowPartition()

    def forward(self, x: Tensor) -> Tensor:
        """Maps tokens [B, H, W, width] to the same shape."""
        height, width = x.shape[1:3]
        padded = pad_to_multiple(x, _WINDOW)
        x = self.attend(self.partition.split(padded, _WINDOW))
        return crop(self.partition.join(x, _WINDOW, *padded.shape[1:3]), height, width)


class PositionEncoding(nn.Layer):  # type: ignore[misc]
    """Adds a depthwise 3x3 convolution of the tokens to the tokens, which encodes their positions."""

    def __init__(self, width: int, data_format: DataFormat) -> None:
        super().__init__()
        no_decay = L2Decay(0.0)
        conv = nn.Conv2D(
            width,
            width,
            3,
            padding=1,
            groups=width,
            weight_attr=ParamAttr(initializer=FanOutNormal(depthwise=True), regularizer=no_decay),
            bias_attr=ParamAttr(regularizer=no_decay),
            data_format=data_format,
        )
        self.proj = TokenConvolution("0", conv, data_format)

    def forward(self, x: Tensor) -> Tensor:
        """Maps tokens [B, H, W, width] to the same shape."""
        return x + self.proj(x)


class Twins(nn.Layer):  # type: ignore[misc]
    """The Twins network.

    Args:
        widths: Width of a token per stage.
        heads: Number of heads of each block, per stage.
        ratios: Width within the `Mlp` divided by the width of a token, per stage.
        depths: Number of blocks per stage.
        local: Whether the first, third, fifth ... block of each stage attends within windows.
        drop_rate: Dropout rate of tokens and after each layer.
        attn_drop_rate: Dropout rate of the attention weights.
        drop_path_rate: Probability of skipping the last block. It decreases linearly to 0 for the first
            block.
    """

    public_names: ClassVar[PublicNames] = PublicNames(
        timm={},
    )

    channels_last: ClassVar[bool] = True  # features are [B, H, W, C] in both layouts

    def __init__(
        self,
        widths: tuple[int, int, int, int],
        heads: tuple[int, int, int, int],
        ratios: tuple[int, int, int, int],
        depths: tuple[int, int, int, int],
        local: bool,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        rates = iter(drop_paths(drop_path_rate, sum(depths)))
        channels = input_image_channel
        window = partial(LocalAttention, drop_rate=drop_rate, attn_drop_rate=attn_drop_rate)
        block = partial(TransformerBlock, epsilon=_EPSILON, drop_rate=drop_rate)
        drops = drop_rate, attn_drop_rate
        self.patch_embeds = nn.LayerList()
        self.blocks = nn.LayerList()
        self.pos_block = nn.LayerList()
        for i, (width, reduction) in enumerate(zip(widths, _REDUCTIONS, strict=True)):
            blocks = nn.LayerList()
            for j in range(depths[i]):
                attention = (
                    window(width, heads[i])
                    if local and j % 2 == 0
                    else ReducedAttention(width, heads[i], reduction, False, drops, data_format)
                )
                blocks.append(block(width, attention, ratios[i] * width, drop_path=next(rates)))
            patch = 2 if i else 4
            conv = nn.Conv2D(
                channels, width, patch, patch, weight_attr=FanOutNormal(), data_format=data_format
            )
            self.patch_embeds.append(PatchNorm(conv, data_format, inputs="tokens" if i else "image"))
            self.blocks.append(blocks)
            self.pos_block.append(PositionEncoding(width, data_format))
            channels = width
        self.pos_drop = dropout(drop_rate)
        self.norm = nn.LayerNorm(channels, _EPSILON)
        self.head = linear(channels, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        for i, embed in enumerate(self.patch_embeds):
            x = self.pos_drop(embed(x))
            first, *others = self.blocks[i]
            x = self.pos_block[i](first(x))
            for block in others:
                x = block(x)
        return self.head(self.norm(x).mean([1, 2]))


_PCPVT = partial(Twins, (64, 128, 320, 512), (1, 2, 5, 8), (8, 8, 4, 4), local=False)
pcpvt_small = partial(_PCPVT, (3, 4, 6, 3))
pcpvt_base = partial(_PCPVT, (3, 4, 18, 3))
pcpvt_large = partial(_PCPVT, (3, 8, 27, 3))
_RATIOS = (4, 4, 4, 4)
alt_gvt_small = partial(Twins, (64, 128, 256, 512), (2, 4, 8, 16), _RATIOS, (2, 2, 10, 4), True)
alt_gvt_base = partial(Twins, (96, 192, 384, 768), (3, 6, 12, 24), _RATIOS, (2, 2, 18, 2), True)
alt_gvt_large = partial(Twins, (128, 256, 512, 1024), (4, 8, 16, 32), _RATIOS, (2, 2, 18, 2), True)
