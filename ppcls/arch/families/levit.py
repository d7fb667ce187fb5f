"""LeViT (Graham et al. 2021, https://arxiv.org/abs/2104.01136): convolutions, and attention with batch norm.

Attention has a learned bias per distance. Therefore images whose size is not 224 x 224 need ``img_size``.
Stochastic depth skips residuals. In PaddleClas, it replaces them by noise.
"""

from __future__ import annotations

import re
from functools import partial
from typing import ClassVar

from paddle import ParamAttr, Tensor, nn
from paddle.regularizer import L2Decay

from ppcls.arch.layers.conv_norm import ConvNorm, DataFormat
from ppcls.arch.layers.sequence import ResidualSequence
from ppcls.arch.layers.tokens import TokenBatchNorm, to_tokens
from ppcls.arch.layers.transformer import DotProductAttention, check_side, linear
from ppcls.arch.layers.windows import add_constant, distances
from ppcls.arch.public.names import PublicNames, Rule

_PATCH = 16
_RATIO = 2  # width of values / width of keys; also width between linear layers / width of a token
_HALVING_RATIO = 4  # width of values / width of keys in attention that halves the size


class ShortConvNorm(ConvNorm):
    """A `ConvNorm` whose parameters have the names of this network."""

    names = ("c", "bn")


def _linear_norm(inputs: int, outputs: int, scale: float = 1.0) -> nn.Sequential:
    """Returns a linear layer without bias, followed by batch norm with the initial weight ``scale``."""
    norm = TokenBatchNorm(outputs, weight_attr=nn.initializer.Constant(scale))
    return nn.Sequential(("c", nn.Linear(inputs, outputs, bias_attr=False)), ("bn", norm))


class DistanceAttention(nn.Layer):  # type: ignore[misc]
    """Attention with a learned bias per head and distance.

    Args:
        inputs: Width of an input token.
        outputs: Width of an output token.
        key: Width of a head's keys.
        heads: Number of heads.
        side: Number of rows and columns of the input tokens.
        halves: Whether only the tokens in every second row and column have queries, which halves the size.
    """

    def __init__(self, inputs: int, outputs: int, key: int, heads: int, side: int, halves: bool) -> None:
        super().__init__()
        value = key * (_HALVING_RATIO if halves else _RATIO)
        self._widths = [key, value] if halves else [key, key, value]
        self._projection = "kv" if halves else "qkv"
        self._heads = heads
        self._side = side
        self.add_sublayer(self._projection, _linear_norm(inputs, heads * sum(self._widths)))
        if halves:
            self.q = nn.LayerDict({"1": _linear_norm(inputs, heads * key)})
        # The scale 0 makes the residual the identity when training starts. Attention that halves the size
        # has no shortcut, so that 0 would remove the image.
        norm = _linear_norm(heads * value, outputs, 1.0 if halves else 0.0)
        self.proj = nn.Sequential(nn.Hardswish(), norm)
        attr = ParamAttr(initializer=nn.initializer.Constant(0.0), regularizer=L2Decay(0.0))
        self.attention_biases = self.create_parameter([heads, side**2], attr=attr)
        add_constant(self, "attention_bias_idxs", distances(side, 2 if halves else 1))
        self.attention = DotProductAttention(heads)

    def forward(self, x: Tensor) -> Tensor:
        """Maps tokens [B, N, inputs] to [B, N, outputs], or to [B, N / 4, outputs] if it halves the size."""
        heads = getattr(self, self._projection)(x)
        heads = heads.reshape([-1, x.shape[1], self._heads, sum(self._widths)])
        *query, key, value = (part.flatten(2) for part in heads.split(self._widths, axis=3))
        if not query:
            square = x.reshape([-1, self._side, self._side, x.shape[2]])
            query = [self.q["1"](square[:, ::2, ::2].flatten(1, 2))]
        index = self.attention_bias_idxs
        bias = self.attention_biases.index_select(index.flatten(), 1).reshape([self._heads, *index.shape])
        return self.proj(self.attention(query[0], key, value, bias))


def _block_rules(model: nn.Layer) -> list[Rule]:
    """Returns the rule that pairs attention and MLP to blocks, as timm does."""
    starts = [f"stages.0.blocks.{i}." for i in range(model.depths[0])]
    for stage, depth in enumerate(model.depths[1:], start=1):
        starts += [f"stages.{stage}.downsample."] + [f"stages.{stage}.blocks.{i}." for i in range(depth)]

    def start(match: re.Match[str]) -> str:
        block = starts[int(match[1]) // 2]
        is_mlp = int(match[1]) % 2
        return block + ("mlp." if is_mlp else "attn_downsample." if "down" in block else "attn.")

    return [(r"^blocks\.(\d+)\.(?:m\.)?", start)]


class LeViT(nn.Layer):  # type: ignore[misc]
    """The LeViT network.

    Args:
        widths: Width of a token per stage.
        key: Width of a head's keys.
        depths: Number of blocks per stage.
        heads: Number of heads of each block, per stage.
        drop_path_rate: Probability of skipping a residual for an image in training.
        img_size: Side of the images in pixels, a multiple of 16; 224 if None.
        timm_variant: Whether the logits are the mean of two classifiers, as in timm. The second classifier
            was trained by distillation.
    """

    public_names: ClassVar[PublicNames] = PublicNames(
        timm={
            r"^patch_embed\.(\d)\.": r"stem.conv{\1:1 1 2 2 3 3 4}.",
            r"\.mlp\.([02])\.": r".mlp.ln{\1:1 1 2}.",
            r"\.(q|proj)\.1\.": r".\1.ln.",
            r"\.c\.": ".linear.",
            r"\.l\.": ".linear.",
        },
        variant="PaddleClas's LeViT has one classifier, timm's has two",
        first_timm=_block_rules,
    )

    derived: ClassVar[tuple[str, ...]] = ("attention_bias_idxs",)  # buffers with constant values

    def __init__(
        self,
        widths: tuple[int, int, int],
        key: int,
        depths: tuple[int, int, int],
        heads: tuple[int, int, int],
        drop_path_rate: float = 0.0,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
        img_size: int | None = None,
        timm_variant: bool = False,
    ) -> None:
        super().__init__()
        self.depths = depths
        self.timm_variant = timm_variant
        self._side = img_size or 224
        self._data_format = data_format
        layers = list[nn.Layer]()
        channels = input_image_channel
        for out in (widths[0] >> 3, widths[0] >> 2, widths[0] >> 1, widths[0]):
            layers += [ShortConvNorm(channels, out, 3, 2, data_format=data_format), nn.Hardswish()]
            channels = out
        self.patch_embed = nn.Sequential(*layers[:-1])
        side = self._side // _PATCH
        blocks = list[nn.Layer]()
        residual = partial(ResidualSequence, shortcut=True, drop=drop_path_rate)
        for i, width in enumerate(widths):
            if i:
                halving = DistanceAttention(widths[i - 1], width, key, widths[i - 1] // key, side, True)
                blocks += [halving, residual({"m": _mlp(width)})]
                side = (side + 1) // 2
            for _ in range(depths[i]):
                attention = DistanceAttention(width, width, key, heads[i], side, False)
                blocks += [residual({"m": attention}), residual({"m": _mlp(width)})]
        self.blocks = nn.Sequential(*blocks)
        self.head = _classifier(widths[-1], class_num)
        if timm_variant:
            self.head_dist = _classifier(widths[-1], class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        check_side(x, self._side, self._data_format)
        x = self.blocks(to_tokens(self.patch_embed(x), self._data_format).flatten(1, 2)).mean(1)
        return (self.head(x) + self.head_dist(x)) / 2 if self.timm_variant else self.head(x)


def _classifier(width: int, class_num: int) -> nn.Sequential:
    return nn.Sequential(("bn", nn.BatchNorm1D(width)), ("l", linear(width, class_num)))


def _mlp(width: int) -> nn.Sequential:
    hidden = _RATIO * width
    # The scale 0 makes the residual the identity when training starts.
    return nn.Sequential(_linear_norm(width, hidden), nn.Hardswish(), _linear_norm(hidden, width, 0.0))


LeViT_128S = partial(LeViT, (128, 256, 384), 16, (2, 3, 4), (4, 6, 8))
LeViT_128 = partial(LeViT, (128, 256, 384), 16, (4, 4, 4), (4, 8, 12))
LeViT_192 = partial(LeViT, (192, 288, 384), 32, (4, 4, 4), (3, 5, 6))
LeViT_256 = partial(LeViT, (256, 384, 512), 32, (4, 4, 4), (4, 6, 8))
LeViT_384 = partial(LeViT, (384, 512, 768), 32, (4, 4, 4), (6, 9, 12), drop_path_rate=0.1)
