"""ViT (Dosovitskiy et al. 2020, https://arxiv.org/abs/2010.11929) and DeiT (Touvron et al. 2020, 2012.12877).

Each patch has a learned position embedding. Therefore images need ``img_size`` if their size is not the size
in the name. PaddleClas's ViT_small differs from the paper: it has 8 blocks of width 768, and its queries,
keys and values have no bias.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import paddle
from paddle import Tensor, nn

from ppcls.arch.layers.conv_norm import DataFormat
from ppcls.arch.layers.drop_path import drop_paths, dropout
from ppcls.arch.layers.transformer import SelfAttention, TransformerBlock, check_side, linear, normal
from ppcls.arch.public.names import PublicNames


class PatchEmbed(nn.Layer):  # type: ignore[misc]
    """Splits an image into square patches and maps each patch to a token with a linear layer."""

    def __init__(
        self,
        side: int,
        patch: int,
        channels: int,
        width: int,
        data_format: DataFormat,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        bias_attr = None if bias else False
        self.proj = nn.Conv2D(channels, width, patch, patch, data_format=data_format, bias_attr=bias_attr)
        self.count = (side // patch) ** 2
        self._side = side
        self._data_format = data_format

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, side, side] (or NHWC) to tokens [B, count, width], row by row.

        Raises:
            UserError: The images have another size.
        """
        check_side(x, self._side, self._data_format)
        x = self.proj(x)
        return x.flatten(1, 2) if self._data_format == "NHWC" else x.flatten(2).transpose([0, 2, 1])


class PatchTransformer(nn.Layer):  # type: ignore[misc]
    """Base class of networks whose blocks process the tokens of square patches of one size.

    Attributes:
        prefix_tokens: Number of tokens that precede the patches' tokens in the blocks.
        prefix_positions: Number of position embeddings in ``pos_embed`` that precede those of the patches.
        pools_first_token: Whether the classifier reads the first token, instead of the patches' tokens.
    """

    prefix_tokens: int
    prefix_positions: int
    pools_first_token = True


def _reject_small(_model: nn.Layer, name: str) -> str:
    # PaddleClas's ViT_small has other widths than timm's vit_small.
    return "timm has no network that computes the same numbers" if name.startswith("ViT_small") else ""


class VisionTransformer(PatchTransformer):
    """The ViT network.

    Args:
        side: Side of the images in pixels if ``img_size`` is None.
        patch: Side of a patch in pixels.
        width: Width of a token.
        depth: Number of blocks.
        heads: Number of heads per block.
        mlp_ratio: Width between the linear layers of a block's MLP divided by ``width``.
        qkv_bias: Whether queries, keys and values have a bias.
        scale: Factor for the products of queries and keys; None for the default of `SelfAttention`.
        epsilon: Epsilon of layer norm.
        img_size: Side of the images in pixels, a multiple of the side of a patch; ``side`` if None.
        patch_size: Side of a patch in pixels; ``patch`` if None.
        drop_rate: Dropout rate of tokens and after each layer.
        attn_drop_rate: Dropout rate of the attention weights.
        drop_path_rate: Probability of skipping the last block. It decreases linearly to 0 for the first
            block.
    """

    public_names: ClassVar[PublicNames] = PublicNames(
        timm={},
        torchvision={
            "^cls_token$": "class_token",
            "^pos_embed$": "encoder.pos_embedding",
            r"^patch_embed\.proj\.": "conv_proj.",
            r"^blocks\.(\d+)\.": r"encoder.layers.encoder_layer_\1.",
            r"\.norm(\d)\.": r".ln_\1.",
            r"\.attn\.qkv\.": ".self_attention.in_proj_",
            r"\.attn\.proj\.": ".self_attention.out_proj.",
            r"\.mlp\.fc1\.": ".mlp.0.",
            r"\.mlp\.fc2\.": ".mlp.3.",
            r"^norm\.": "encoder.ln.",
            r"^head\.": "heads.head.",
        },
        reject_export=_reject_small,
    )

    tokens: ClassVar[tuple[str, ...]] = ("cls_token",)  # learned tokens, which precede the patches' tokens

    def __init__(
        self,
        side: int,
        patch: int,
        width: int,
        depth: int,
        heads: int,
        mlp_ratio: int = 4,
        qkv_bias: bool = True,
        scale: float | None = None,
        epsilon: float = 1e-6,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
        img_size: int | None = None,
        patch_size: int | None = None,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        size = img_size or side, patch_size or patch
        self.patch_embed = PatchEmbed(*size, input_image_channel, width, data_format)
        self.prefix_tokens = self.prefix_positions = len(self.tokens)
        count = self.prefix_positions + self.patch_embed.count
        self.pos_embed = self.create_parameter([1, count, width], attr=normal())
        for name in self.tokens:
            self.add_parameter(name, self.create_parameter([1, 1, width], attr=normal()))
        self.pos_drop = dropout(drop_rate)
        attention = partial(
            SelfAttention, bias=qkv_bias, scale=scale, drop_rate=drop_rate, attn_drop_rate=attn_drop_rate
        )
        block = partial(TransformerBlock, mlp=width * mlp_ratio, epsilon=epsilon, drop_rate=drop_rate)
        rates = drop_paths(drop_path_rate, depth)
        self.blocks = nn.LayerList([block(width, attention(width, heads), drop_path=rate) for rate in rates])
        self.norm = nn.LayerNorm(width, epsilon)
        self.head = linear(width, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        return self.head(self.features(x)[:, 0])

    def features(self, x: Tensor) -> Tensor:
        """Maps images to tokens [B, tokens + patches, width]. The patches' tokens come last."""
        x = self.patch_embed(x)
        # Add to zeros instead of expanding, because paddle2onnx cannot expand to a variable batch size.
        learnt = [getattr(self, name).astype(x.dtype) + paddle.zeros_like(x[:, :1]) for name in self.tokens]
        x = self.pos_drop(paddle.concat([*learnt, x], axis=1) + self.pos_embed)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


_SMALL = partial(
    VisionTransformer, width=768, depth=8, heads=8, mlp_ratio=3, qkv_bias=False, scale=768**-0.5, epsilon=1e-5
)
_BASE = partial(VisionTransformer, width=768, depth=12, heads=12)
_LARGE = partial(VisionTransformer, width=1024, depth=24, heads=16)

ViT_small_patch16_224 = partial(_SMALL, 224, 16)
ViT_base_patch16_224 = partial(_BASE, 224, 16)
ViT_base_patch16_384 = partial(_BASE, 384, 16)
ViT_base_patch32_384 = partial(_BASE, 384, 32)
ViT_large_patch16_224 = partial(_LARGE, 224, 16)
ViT_large_patch16_384 = partial(_LARGE, 384, 16)
ViT_large_patch32_384 = partial(_LARGE, 384, 32)


class DistilledVisionTransformer(VisionTransformer):
    """A `VisionTransformer` with a second learned token and a second classifier for distillation."""

    tokens = ("cls_token", "dist_token")

    def __init__(
        self, side: int, patch: int, width: int, depth: int, heads: int, class_num: int = 1000, **others: Any
    ) -> None:
        super().__init__(side, patch, width, depth, heads, class_num=class_num, **others)
        self.head_dist = linear(width, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        x = self.features(x)
        return (self.head(x[:, 0]) + self.head_dist(x[:, 1])) / 2


# width, depth, heads
_TINY = (192, 12, 3)
_DEIT_SMALL = (384, 12, 6)
_DEIT_BASE = (768, 12, 12)

DeiT_tiny_patch16_224 = partial(VisionTransformer, 224, 16, *_TINY)
DeiT_small_patch16_224 = partial(VisionTransformer, 224, 16, *_DEIT_SMALL)
DeiT_base_patch16_224 = partial(VisionTransformer, 224, 16, *_DEIT_BASE)
DeiT_base_patch16_384 = partial(VisionTransformer, 384, 16, *_DEIT_BASE)
DeiT_tiny_distilled_patch16_224 = partial(DistilledVisionTransformer, 224, 16, *_TINY)
DeiT_small_distilled_patch16_224 = partial(DistilledVisionTransformer, 224, 16, *_DEIT_SMALL)
DeiT_base_distilled_patch16_224 = partial(DistilledVisionTransformer, 224, 16, *_DEIT_BASE)
DeiT_base_distilled_patch16_384 = partial(DistilledVisionTransformer, 384, 16, *_DEIT_BASE)
