"""CvT (Wu et al. 2021, https://arxiv.org/abs/2103.15808). Convolutions compute queries, keys and values."""

from __future__ import annotations

from functools import partial

import paddle
from paddle import ParamAttr, Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import ConvNorm, DataFormat
from ppcls.arch.layers.drop_path import drop_paths, dropout
from ppcls.arch.layers.tokens import PatchNorm, apply_to_tokens, to_image
from ppcls.arch.layers.transformer import DEVIATION, DotProductAttention, TransformerBlock, linear, normal

_RATIO = 4


def quick_gelu(x: Tensor) -> Tensor:
    """Returns an approximation of GELU that uses the logistic function (Hendrycks & Gimpel 2016)."""
    return x * F.sigmoid(1.702 * x)


class ConvAttention(nn.Layer):  # type: ignore[misc]
    """Self-attention with depthwise convolutions before the queries, keys and values (figure 2b).

    The convolutions for keys and values halve the size.

    Args:
        width: Width of a token, a multiple of ``heads``.
        rates: Dropout rates of the output and of the attention weights.
    """

    def __init__(self, width: int, heads: int, rates: tuple[float, float], data_format: DataFormat) -> None:
        super().__init__()
        conv = partial(ConvNorm, width, width, 3, groups=width, data_format=data_format)
        self.conv_proj_q = conv()
        self.conv_proj_k = conv(stride=2)
        self.conv_proj_v = conv(stride=2)
        self.proj_q, self.proj_k, self.proj_v, self.proj = (linear(width, width) for _ in range(4))
        # As in the authors' code, the scale depends on the full width instead of the width of a head.
        self.attention = DotProductAttention(heads, width**-0.5, rates[1])
        self.proj_drop = dropout(rates[0])
        self._data_format = data_format

    def forward(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        """Maps tokens [B, N, width] to the same shape. The last tokens form an image of ``size``."""
        height, width = size
        count = x.shape[1] - height * width
        others, pixels = paddle.split(x, [count, height * width], axis=1) if count else (None, x)
        image = pixels.reshape([-1, height, width, x.shape[2]])
        parts = []
        for name in "qkv":
            conv = getattr(self, f"conv_proj_{name}")
            project = getattr(self, f"proj_{name}")
            tokens = apply_to_tokens(conv, image, self._data_format).flatten(1, 2)
            parts.append(project(tokens if others is None else paddle.concat([others, tokens], axis=1)))
        return self.proj_drop(self.proj(self.attention(*parts)))


class CvTStage(nn.Layer):  # type: ignore[misc]
    """A stage of a strided convolution, layer norm and transformer blocks.

    Args:
        first: Whether this is the first stage, which has a larger convolution.
        last: Whether this is the last stage, which has a class token.
        drop_paths: Probability of skipping each block for an image in training.
        rates: Dropout rates after each layer and of the attention weights.
    """

    def __init__(
        self,
        in_channels: int,
        width: int,
        heads: int,
        first: bool,
        last: bool,
        drop_paths: list[float],
        rates: tuple[float, float],
        data_format: DataFormat,
    ) -> None:
        super().__init__()
        kernel, stride, padding = (7, 4, 2) if first else (3, 2, 1)
        conv = nn.Conv2D(in_channels, width, kernel, stride, padding=padding, data_format=data_format)
        self.patch_embed = PatchNorm(conv, data_format)
        if last:
            self.cls_token = self.create_parameter([1, 1, width], attr=normal())
        self.pos_drop = dropout(rates[0])
        block = partial(TransformerBlock, mlp=_RATIO * width, drop_rate=rates[0], act=quick_gelu)
        attention = partial(ConvAttention, width, heads, rates, data_format)
        self.blocks = nn.LayerList([block(width, attention(), drop_path=rate) for rate in drop_paths])
        self._last = last
        self._data_format = data_format

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to features in the same layout. The last stage returns [B, width]."""
        x = self.patch_embed(x)
        size = x.shape[1:3]
        tokens = x.flatten(1, 2)
        if self._last:
            token = self.cls_token.astype(x.dtype) + paddle.zeros_like(tokens[:, :1])
            tokens = paddle.concat([token, tokens], axis=1)
        tokens = self.pos_drop(tokens)
        for block in self.blocks:
            tokens = block(tokens, size)
        if self._last:
            return tokens[:, 0]
        return to_image(tokens.reshape([-1, *x.shape[1:]]), self._data_format)


class CvT(nn.Layer):  # type: ignore[misc]
    """The CvT network.

    Args:
        widths: Width of a token per stage.
        depths: Number of blocks per stage.
        heads: Number of heads of each block, per stage.
        drop_path_rate: Probability of skipping the last block of the last stage. The probability decreases
            linearly to 0 for the first block of this stage. Blocks of other stages are never skipped.
        drop_rate: Dropout rate of tokens and after each layer.
        attn_drop_rate: Dropout rate of the attention weights.
    """

    def __init__(
        self,
        widths: tuple[int, int, int],
        depths: tuple[int, int, int],
        heads: tuple[int, int, int],
        drop_path_rate: float = 0.1,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
    ) -> None:
        super().__init__()
        channels = input_image_channel
        drops = (drop_rate, attn_drop_rate)
        for i, (width, depth) in enumerate(zip(widths, depths, strict=True)):
            first = i == 0
            last = i == len(widths) - 1
            rates = drop_paths(drop_path_rate if last else 0.0, depth)
            stage = CvTStage(channels, width, heads[i], first, last, rates, drops, data_format)
            self.add_sublayer(f"stage{i}", stage)
            channels = width
        self.norm = nn.LayerNorm(channels)
        bias = ParamAttr(initializer=nn.initializer.Uniform(-(channels**-0.5), channels**-0.5))
        self.head = nn.Linear(channels, class_num, weight_attr=normal(DEVIATION), bias_attr=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        return self.head(self.norm(self.stage2(self.stage1(self.stage0(x)))))


CvT_13_224 = CvT_13_384 = partial(CvT, (64, 192, 384), (1, 2, 10), (1, 3, 6))
CvT_21_224 = CvT_21_384 = partial(CvT, (64, 192, 384), (1, 4, 16), (1, 3, 6))
CvT_W24_384 = partial(CvT, (192, 768, 1024), (2, 2, 20), (3, 12, 16), drop_path_rate=0.3)
