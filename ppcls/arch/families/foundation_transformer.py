"""Vision transformers that were pretrained on large collections of pictures, with timm's names.

- DINOv2 (Oquab et al. 2023, https://arxiv.org/abs/2304.07193), with register tokens (Darcet et al. 2023,
  https://arxiv.org/abs/2309.16588) in the networks named ``reg4``
- DINOv3 (Siméoni et al. 2025, https://arxiv.org/abs/2508.10104), with rotary instead of learned positions
- the image towers of CLIP (Radford et al. 2021, https://arxiv.org/abs/2103.00020)
- the image towers of SigLIP (Zhai et al. 2023, https://arxiv.org/abs/2303.15343) and SigLIP 2 (Tschannen et
  al. 2025, https://arxiv.org/abs/2502.14786), which pool by attention, or by the mean in the networks named
  ``gap``

Names, numbers and defaults are timm's, so that its weights fit. In particular, DINOv3 pools by the mean of
the patches, as in timm, although its authors read the class token. Networks with more than 1 billion
parameters are missing.

Decisions:

- One class, because the families differ in few layers, and each difference is an argument.
- The parameters have timm's names, except those of DINOv3's layer scale, which timm calls ``gamma_1``.
- The image size is fixed when the network is built. `ppcls.weights.positions` interpolates learned position
  embeddings, and rotary ones follow from the size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import ClassVar, Literal, TypeAlias

import numpy as np
import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.families.vision_transformer import PatchEmbed, PatchTransformer
from ppcls.arch.layers.conv_norm import Activation, DataFormat
from ppcls.arch.layers.drop_path import drop_paths, dropout
from ppcls.arch.layers.sequence import LayerScale
from ppcls.arch.layers.transformer import (
    DotProductAttention,
    Mlp,
    SelfAttention,
    TransformerBlock,
    linear,
    normal,
)
from ppcls.arch.layers.windows import add_constant
from ppcls.arch.public.names import PublicNames

Pooling: TypeAlias = Literal["token", "mean", "attention"]
Builder: TypeAlias = Callable[..., nn.Layer]

_LAYER_SCALE = 1e-5
_ROTARY_BASE = 100.0  # longest period of DINOv3's rotary positions, in units of half the image
_QUICK_GELU = "quickgelu"


def gelu_tanh(x: Tensor) -> Tensor:
    """Returns the approximation of GELU by tanh."""
    return F.gelu(x, approximate=True)


def quick_gelu(x: Tensor) -> Tensor:
    """Returns the approximation of GELU by a sigmoid, as in the original CLIP."""
    return x * F.sigmoid(1.702 * x)


class ScaledBlock(TransformerBlock):
    """A `TransformerBlock` with layer scale after the attention and after the MLP."""

    def __init__(
        self,
        width: int,
        attention: nn.Layer,
        mlp: int | nn.Layer,
        *,
        epsilon: float,
        drop_rate: float = 0.0,
        drop_path: float = 0.0,
        act: Activation = F.gelu,
    ) -> None:
        super().__init__(
            width, attention, mlp, epsilon=epsilon, drop_rate=drop_rate, drop_path=drop_path, act=act
        )
        self.ls1 = LayerScale(width, _LAYER_SCALE, "NHWC")
        self.ls2 = LayerScale(width, _LAYER_SCALE, "NHWC")

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Maps tokens [B, N, width] to the same shape. ``context`` is the second input of the attention."""
        normed = self.norm1(x)
        x = x + self.drop_path(self.ls1(self.attn(normed) if context is None else self.attn(normed, context)))
        return x + self.drop_path(self.ls2(self.mlp(self.norm2(x))))


class RotaryAttention(SelfAttention):
    """Self-attention whose queries and keys of patches are rotated by angles of their positions (RoPE).

    Args:
        width: Width of a token, a multiple of ``heads``.
        heads: Number of heads.
        prefix: Number of tokens before those of the patches, which are not rotated.
        bias: Whether queries and values have a bias. Keys have none.
        drop_rate: Dropout rate of the output.
        attn_drop_rate: Dropout rate of the attention weights.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        prefix: int,
        *,
        bias: bool,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
    ) -> None:
        super().__init__(width, heads, bias=False, drop_rate=drop_rate, attn_drop_rate=attn_drop_rate)
        self._prefix = prefix
        if bias:
            self.q_bias = self.create_parameter([width], is_bias=True)
            self.v_bias = self.create_parameter([width], is_bias=True)
        self._has_bias = bias

    def forward(self, x: Tensor, rotation: Tensor | None = None) -> Tensor:
        """Maps tokens [B, N, width] to the same shape.

        Args:
            x: Tokens.
            rotation: Sines and cosines of the angles, [2, patches, width / heads]; required.
        """
        assert rotation is not None
        packed = self.project(x)
        if self._has_bias:
            bias = paddle.concat([self.q_bias, paddle.zeros_like(self.q_bias), self.v_bias])
            packed = packed + bias.astype(packed.dtype)
        query, key, value = self.unpack(packed)
        mixed = self.mix_heads(self._rotate(query, rotation), self._rotate(key, rotation), value)
        return self.join(mixed)

    def _rotate(self, x: Tensor, rotation: Tensor) -> Tensor:
        """Rotates the patches of queries or keys [B, heads, N, width / heads]."""
        sines, cosines = rotation.astype(x.dtype).unbind(0)
        first = x[:, :, : self._prefix]
        patches = x[:, :, self._prefix :]
        half = patches.shape[-1] // 2
        turned = paddle.concat([-patches[..., half:], patches[..., :half]], axis=-1)
        return paddle.concat([first, patches * cosines + turned * sines], axis=2)


class GatedMlp(nn.Layer):  # type: ignore[misc]
    """An MLP whose hidden values are multiplied by gates with SiLU (Shazeer 2020, arXiv:2002.05202).

    Args:
        width: Width of a token.
        hidden: Number of hidden values.
        drop_rate: Dropout rate after each layer.
    """

    def __init__(self, width: int, hidden: int, drop_rate: float = 0.0) -> None:
        super().__init__()
        self.fc1_g = linear(width, hidden)
        self.fc1_x = linear(width, hidden)
        self.fc2 = linear(hidden, width)
        self.drop = dropout(drop_rate)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [..., width] to the same shape."""
        return self.drop(self.fc2(self.drop(F.silu(self.fc1_g(x)) * self.fc1_x(x))))


class AttentionPool(nn.Layer):  # type: ignore[misc]
    """Pools tokens by the attention of one learned query, followed by an MLP.

    Args:
        width: Width of a token.
        heads: Number of heads.
        hidden: Width between the layers of the MLP.
        epsilon: Epsilon of layer norm.
        act: Activation in the MLP.
    """

    def __init__(self, width: int, heads: int, hidden: int, epsilon: float, act: Activation) -> None:
        super().__init__()
        self.latent = self.create_parameter([1, 1, width], attr=normal(width**-0.5))
        self.q = linear(width, width)
        self.kv = linear(width, 2 * width)
        self.attend = DotProductAttention(heads)
        self.proj = linear(width, width)
        self.mlp = Mlp(width, hidden, act=act)
        # After the MLP, so that its last layer is not mistaken for a classifier, which follows directly.
        self.norm = nn.LayerNorm(width, epsilon)

    def forward(self, x: Tensor) -> Tensor:
        """Maps tokens [B, N, width] to one vector per image, [B, width]."""
        key, value = self.kv(x).chunk(2, axis=-1)
        # Add to zeros instead of expanding, because paddle2onnx cannot expand to a variable batch size.
        query = self.q(self.latent.astype(x.dtype) + paddle.zeros_like(x[:, :1]))
        x = self.proj(self.attend(query, key, value))
        return (x + self.mlp(self.norm(x)))[:, 0]


def rotary_angles(rows: int, columns: int, width: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Returns sines and cosines of DINOv3's rotary positions, [2, rows * columns, width] float32.

    Args:
        rows: Number of rows of patches.
        columns: Number of columns of patches.
        width: Width of a head, a multiple of 4.
    """
    periods = np.float32(_ROTARY_BASE) ** (np.arange(width // 4, dtype=np.float32) * np.float32(4 / width))
    vertical = (np.arange(rows, dtype=np.float32) + np.float32(0.5)) / np.float32(rows) * 2 - 1
    horizontal = (np.arange(columns, dtype=np.float32) + np.float32(0.5)) / np.float32(columns) * 2 - 1
    grid = np.stack(np.meshgrid(vertical, horizontal, indexing="ij"), axis=-1).reshape(-1, 2, 1)
    angles = (np.float32(2 * math.pi) * grid / periods).reshape(len(grid), -1)
    angles = np.tile(angles, 2)  # the two halves of a head are the coordinates that are rotated
    return np.stack([np.sin(angles), np.cos(angles)]).astype(np.float32)


def _reject_source(model: nn.Layer, source: str) -> str:
    # Weights with and without QuickGELU have the same names and shapes.
    quick = _QUICK_GELU in source.lower()
    if "clip" not in source.lower() or quick == (getattr(model, "act", None) is quick_gelu):
        return ""
    expected = "without" if quick else "with"
    return f"the network of these weights has {'' if quick else 'no '}QuickGELU; use an architecture " + (
        f"{'with' if quick else 'without'} '{_QUICK_GELU}' in its name, got one {expected} it"
    )


class FoundationTransformer(PatchTransformer):
    """A vision transformer with timm's options.

    Args:
        side: Side of the images in pixels if ``img_size`` is None.
        patch: Side of a patch in pixels.
        width: Width of a token.
        depth: Number of blocks.
        heads: Number of heads per block.
        hidden: Width between the linear layers of a block's MLP; 4 times ``width`` by default.
        pooling: Input of the classifier: the class token, the mean of the patches, or an `AttentionPool`.
        class_token: Whether there is a class token.
        registers: Number of register tokens, which follow the class token and have no position.
        position_of_class: Whether the class token has a position embedding.
        pre_norm: Whether a layer norm precedes the blocks. The patches then have no bias.
        layer_scale: Whether blocks have layer scale.
        rotary: Whether the attention rotates queries and keys, instead of learned position embeddings.
        qkv_bias: Whether queries, keys and values have a bias; with ``rotary``, queries and values.
        gated: Whether MLPs are gated.
        act: Activation of MLPs that are not gated.
        epsilon: Epsilon of layer norm.
        img_size: Side of the images in pixels, a multiple of ``patch``; ``side`` if None.
        drop_rate: Dropout rate of tokens and after each layer.
        attn_drop_rate: Dropout rate of the attention weights.
        drop_path_rate: Probability of skipping the last block. It decreases linearly to 0 for the first
            block.
    """

    public_names: ClassVar[PublicNames] = PublicNames(timm={}, reject_source=_reject_source)

    def __init__(
        self,
        side: int,
        patch: int,
        width: int,
        depth: int,
        heads: int,
        *,
        hidden: int | None = None,
        pooling: Pooling = "token",
        class_token: bool = True,
        registers: int = 0,
        position_of_class: bool = True,
        pre_norm: bool = False,
        layer_scale: bool = False,
        rotary: bool = False,
        qkv_bias: bool = True,
        gated: bool = False,
        act: Activation = F.gelu,
        epsilon: float = 1e-6,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
        img_size: int | None = None,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        self.act = act
        self.pooling = pooling
        self.pools_first_token = pooling == "token"
        self.prefix_tokens = int(class_token) + registers
        self.prefix_positions = int(class_token and position_of_class)
        hidden = hidden or 4 * width
        side = img_size or side
        self.patch_embed = PatchEmbed(side, patch, input_image_channel, width, data_format, bias=not pre_norm)
        self.cls_token = self.create_parameter([1, 1, width], attr=normal()) if class_token else None
        self.reg_token = self.create_parameter([1, registers, width], attr=normal()) if registers else None
        self.pos_embed: Tensor | None = None
        rows = side // patch
        if rotary:
            # Computed from the size of the image, so it is not part of a checkpoint.
            add_constant(self, "rotation", rotary_angles(rows, rows, width // heads), stored=False)
        else:
            self.pos_embed = self.create_parameter(
                [1, self.prefix_positions + rows * rows, width], attr=normal()
            )
        self._rotary = rotary
        self.pos_drop = dropout(drop_rate)
        self.norm_pre = nn.LayerNorm(width, epsilon) if pre_norm else nn.Identity()
        drops = {"drop_rate": drop_rate, "attn_drop_rate": attn_drop_rate}

        def block(drop_path: float) -> nn.Layer:
            attention: nn.Layer
            if rotary:
                attention = RotaryAttention(width, heads, self.prefix_tokens, bias=qkv_bias, **drops)
            else:
                attention = SelfAttention(width, heads, bias=qkv_bias, **drops)
            mlp = GatedMlp(width, hidden, drop_rate) if gated else hidden
            kind = ScaledBlock if layer_scale else TransformerBlock
            return kind(
                width, attention, mlp, epsilon=epsilon, drop_rate=drop_rate, drop_path=drop_path, act=act
            )

        self.blocks = nn.LayerList([block(rate) for rate in drop_paths(drop_path_rate, depth)])
        self.norm = nn.LayerNorm(width, epsilon)
        if pooling == "attention":
            self.attn_pool = AttentionPool(width, heads, hidden, epsilon, act)
        self.head = linear(width, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        return self.head(self.pool(self.features(x)))

    def pool(self, tokens: Tensor) -> Tensor:
        """Maps tokens [B, prefix + patches, width] to the features of an image, [B, width]."""
        if self.pooling == "token":
            return tokens[:, 0]
        patches = tokens[:, self.prefix_tokens :]
        return patches.mean(axis=1) if self.pooling == "mean" else self.attn_pool(patches)

    def features(self, x: Tensor) -> Tensor:
        """Maps images to tokens [B, prefix + patches, width]. The patches' tokens come last."""
        x = self.patch_embed(x)
        zeros = paddle.zeros_like(x[:, :1])
        # Add to zeros instead of expanding, because paddle2onnx cannot expand to a variable batch size.
        prefix = [
            token.astype(x.dtype) + zeros for token in (self.cls_token, self.reg_token) if token is not None
        ]
        if self.pos_embed is not None and not self.prefix_positions:
            x = x + self.pos_embed
        x = paddle.concat([*prefix, x], axis=1) if prefix else x
        if self.pos_embed is not None and self.prefix_positions:
            x = x + self.pos_embed
        x = self.norm_pre(self.pos_drop(x))
        for block in self.blocks:
            x = block(x, self.rotation) if self._rotary else block(x)
        return self.norm(x)


class DinoV3(FoundationTransformer):
    """A `FoundationTransformer` with the layers and timm's names of DINOv3."""

    public_names = PublicNames(timm={r"\.ls(\d)\.gamma$": r".gamma_\1"})


# width, depth, heads
_TINY = (192, 12, 3)
_XSMALL = (256, 10, 4)
_SMALL = (384, 12, 6)
_MEDIUM = (512, 12, 8)
_BASE = (768, 12, 12)
_LARGE = (1024, 24, 16)
_SO400M = (1152, 27, 16)
_HUGE_PLUS = (1280, 32, 20)

_DINOV2 = partial(FoundationTransformer, 518, 14, layer_scale=True)
_DINOV2_REG4 = partial(_DINOV2, registers=4, position_of_class=False)

vit_small_patch14_dinov2 = partial(_DINOV2, *_SMALL)
vit_base_patch14_dinov2 = partial(_DINOV2, *_BASE)
vit_large_patch14_dinov2 = partial(_DINOV2, *_LARGE)
vit_small_patch14_reg4_dinov2 = partial(_DINOV2_REG4, *_SMALL)
vit_base_patch14_reg4_dinov2 = partial(_DINOV2_REG4, *_BASE)
vit_large_patch14_reg4_dinov2 = partial(_DINOV2_REG4, *_LARGE)

_DINOV3_QKVB = partial(
    DinoV3, 256, 16, registers=4, layer_scale=True, rotary=True, pooling="mean", epsilon=1e-5
)
_DINOV3 = partial(_DINOV3_QKVB, qkv_bias=False)

vit_small_patch16_dinov3 = partial(_DINOV3, *_SMALL)
vit_small_plus_patch16_dinov3 = partial(_DINOV3, *_SMALL, gated=True)
vit_base_patch16_dinov3 = partial(_DINOV3, *_BASE)
vit_large_patch16_dinov3 = partial(_DINOV3, *_LARGE)
vit_huge_plus_patch16_dinov3 = partial(_DINOV3, *_HUGE_PLUS, gated=True)
vit_tiny_patch16_dinov3_qkvb = partial(_DINOV3_QKVB, *_TINY)
vit_small_patch16_dinov3_qkvb = partial(_DINOV3_QKVB, *_SMALL)
vit_small_plus_patch16_dinov3_qkvb = partial(_DINOV3_QKVB, *_SMALL, gated=True)
vit_base_patch16_dinov3_qkvb = partial(_DINOV3_QKVB, *_BASE)
vit_large_patch16_dinov3_qkvb = partial(_DINOV3_QKVB, *_LARGE)
vit_huge_plus_patch16_dinov3_qkvb = partial(_DINOV3_QKVB, *_HUGE_PLUS, gated=True)

_CLIP = partial(FoundationTransformer, pre_norm=True, epsilon=1e-5)

vit_xsmall_patch16_clip_224 = partial(_CLIP, 224, 16, *_XSMALL)
vit_medium_patch16_clip_224 = partial(_CLIP, 224, 16, *_MEDIUM)
vit_base_patch16_clip_224 = partial(_CLIP, 224, 16, *_BASE)
vit_base_patch16_clip_384 = partial(_CLIP, 384, 16, *_BASE)
vit_base_patch16_clip_quickgelu_224 = partial(_CLIP, 224, 16, *_BASE, act=quick_gelu)

_SIGLIP = partial(FoundationTransformer, class_token=False, pooling="attention")
_SIGLIP_GAP = partial(_SIGLIP, pooling="mean")
_SO400M_MLP = {"hidden": 4304}

vit_base_patch16_siglip_224 = partial(_SIGLIP, 224, 16, *_BASE)
vit_base_patch16_siglip_256 = partial(_SIGLIP, 256, 16, *_BASE)
vit_base_patch16_siglip_384 = partial(_SIGLIP, 384, 16, *_BASE)
vit_base_patch16_siglip_512 = partial(_SIGLIP, 512, 16, *_BASE)
vit_base_patch32_siglip_256 = partial(_SIGLIP, 256, 32, *_BASE, act=gelu_tanh)
vit_large_patch16_siglip_256 = partial(_SIGLIP, 256, 16, *_LARGE)
vit_large_patch16_siglip_384 = partial(_SIGLIP, 384, 16, *_LARGE)
vit_large_patch16_siglip_512 = partial(_SIGLIP, 512, 16, *_LARGE, act=gelu_tanh)
vit_so400m_patch14_siglip_224 = partial(_SIGLIP, 224, 14, *_SO400M, **_SO400M_MLP)
vit_so400m_patch14_siglip_378 = partial(_SIGLIP, 378, 14, *_SO400M, **_SO400M_MLP)
vit_so400m_patch14_siglip_384 = partial(_SIGLIP, 384, 14, *_SO400M, **_SO400M_MLP)
vit_so400m_patch16_siglip_256 = partial(_SIGLIP, 256, 16, *_SO400M, **_SO400M_MLP, act=gelu_tanh)
vit_so400m_patch16_siglip_384 = partial(_SIGLIP, 384, 16, *_SO400M, **_SO400M_MLP, act=gelu_tanh)
vit_so400m_patch16_siglip_512 = partial(_SIGLIP, 512, 16, *_SO400M, **_SO400M_MLP, act=gelu_tanh)
vit_base_patch16_siglip_gap_224 = partial(_SIGLIP_GAP, 224, 16, *_BASE)
vit_base_patch16_siglip_gap_256 = partial(_SIGLIP_GAP, 256, 16, *_BASE)
vit_base_patch16_siglip_gap_384 = partial(_SIGLIP_GAP, 384, 16, *_BASE)
vit_base_patch16_siglip_gap_512 = partial(_SIGLIP_GAP, 512, 16, *_BASE)
vit_base_patch32_siglip_gap_256 = partial(_SIGLIP_GAP, 256, 32, *_BASE, act=gelu_tanh)
vit_large_patch16_siglip_gap_256 = partial(_SIGLIP_GAP, 256, 16, *_LARGE)
vit_large_patch16_siglip_gap_384 = partial(_SIGLIP_GAP, 384, 16, *_LARGE)
vit_large_patch16_siglip_gap_512 = partial(_SIGLIP_GAP, 512, 16, *_LARGE, act=gelu_tanh)
vit_so400m_patch14_siglip_gap_224 = partial(_SIGLIP_GAP, 224, 14, *_SO400M, **_SO400M_MLP)
vit_so400m_patch14_siglip_gap_378 = partial(_SIGLIP_GAP, 378, 14, *_SO400M, **_SO400M_MLP)
vit_so400m_patch14_siglip_gap_384 = partial(_SIGLIP_GAP, 384, 14, *_SO400M, **_SO400M_MLP)
vit_so400m_patch14_siglip_gap_448 = partial(_SIGLIP_GAP, 448, 14, *_SO400M, **_SO400M_MLP)
vit_so400m_patch14_siglip_gap_896 = partial(_SIGLIP_GAP, 896, 14, *_SO400M, **_SO400M_MLP)
vit_so400m_patch16_siglip_gap_256 = partial(_SIGLIP_GAP, 256, 16, *_SO400M, **_SO400M_MLP, act=gelu_tanh)
vit_so400m_patch16_siglip_gap_384 = partial(_SIGLIP_GAP, 384, 16, *_SO400M, **_SO400M_MLP, act=gelu_tanh)
vit_so400m_patch16_siglip_gap_512 = partial(_SIGLIP_GAP, 512, 16, *_SO400M, **_SO400M_MLP, act=gelu_tanh)
