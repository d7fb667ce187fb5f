"""Next-ViT (Li et al. 2022, https://arxiv.org/abs/2207.05501): convolutional blocks, and some with attention.

As in PaddleClas, keys and values are averages of consecutive tokens.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, NamedTuple

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import ConvNorm, DataFormat, batch_norm, round_channels
from ppcls.arch.layers.drop_path import DropPath, drop_paths, dropout
from ppcls.arch.layers.tokens import PixelMlp, TokenBatchNorm, pointwise, to_image, to_tokens
from ppcls.arch.layers.transformer import DEVIATION, DotProductAttention, linear, normal

_HEAD = 32
_STEM = ((64, 2), (32, 1), (64, 1), (64, 2))  # channels and stride
_WIDTHS = ((96, 96), (192, 256), (384, 512), (768, 1024))  # of blocks without and with attention, per stage
_REDUCTIONS = (8, 4, 2, 1)  # of the sides of keys and values, per stage
_GROUP = 5  # in the third stage, every block at a multiple of it has attention
_SHARE = 0.75  # of the channels that have attention
_NORMAL = nn.initializer.Normal(std=DEVIATION)


class Drops(NamedTuple):
    """Dropout after each layer and of attention weights, and the probability of skipping half a block."""

    layer: float
    attention: float
    path: float


class NextConvNorm(ConvNorm):
    """A `ConvNorm` with the parameter names of this network."""

    names: ClassVar[tuple[str, str]] = ("conv", "norm")


class GroupedConvAttention(ConvNorm):
    """A 3x3 convolution per head, batch norm, ReLU and a 1x1 convolution."""

    names: ClassVar[tuple[str, str]] = ("group_conv3x3", "norm")

    def __init__(self, channels: int, data_format: DataFormat) -> None:
        shape = channels, channels, 3, 1, channels // _HEAD
        super().__init__(*shape, F.relu, data_format, initializer=_NORMAL)
        self.projection = pointwise(channels, channels, data_format, _NORMAL, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to the same shape."""
        return self.projection(ConvNorm.forward(self, x))  # Paddle 2.6 cannot compile super()


class ReluMlp(PixelMlp):
    """A `PixelMlp` with ReLU, whose inner channels are ``ratio`` times the others."""

    names = ("conv1", "conv2")

    def __init__(self, channels: int, ratio: int, drop_rate: float, data_format: DataFormat) -> None:
        hidden = round_channels(channels * ratio, 32)
        super().__init__(channels, hidden, drop_rate, data_format, F.relu, normal())


class AveragedAttention(nn.Layer):  # type: ignore[misc]
    """Self-attention with averages of consecutive tokens as keys and values.

    Args:
        width: Width of a token.
        count: Number of tokens per average.
        drops: See `Drops`.
    """

    def __init__(self, width: int, count: int, drops: Drops) -> None:
        super().__init__()
        self.q, self.k, self.v, self.proj = (linear(width, width) for _ in range(4))
        self.proj_drop = dropout(drops.layer)
        self.attention = DotProductAttention(width // _HEAD, drop_rate=drops.attention)
        self._count, self._width = count, width
        if count > 1:
            self.norm = TokenBatchNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Maps tokens [B, N, width] to the same shape."""
        source = x
        if self._count > 1:
            kept = x.shape[1] // self._count
            groups = x[:, : kept * self._count].reshape([-1, kept, self._count, self._width])
            source = self.norm(groups.mean(2))
        return self.proj_drop(self.proj(self.attention(self.q(x), self.k(source), self.v(source))))


class GroupedConvBlock(nn.Layer):  # type: ignore[misc]
    """`GroupedConvAttention`, then `ReluMlp`, each with a shortcut.

    Args:
        stride: Stride of average pooling.
        drops: See `Drops`.
    """

    def __init__(self, channels: int, out: int, stride: int, drops: Drops, data_format: DataFormat) -> None:
        super().__init__()
        self.patch_embed = _embed(channels, out, stride, data_format)
        self.mhca = GroupedConvAttention(out, data_format)
        self.norm = batch_norm(out, data_format)
        self.mlp = ReluMlp(out, 3, drops.layer, data_format)
        self.drop_path = DropPath(drops.path)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', ceil(H/stride), ceil(W/stride)]."""
        x = self.patch_embed(x)
        x = x + self.drop_path(self.mhca(x))
        return x + self.drop_path(self.mlp(self.norm(x)))


class AveragedAttentionBlock(nn.Layer):  # type: ignore[misc]
    """`AveragedAttention`, to which the channels of `GroupedConvAttention` are appended, then `ReluMlp`.

    Args:
        stride: Stride of average pooling.
        reduction: Factor by which the sides of keys and values are reduced.
        drops: See `Drops`; smaller probabilities of skipping apply to both parts of the first half.
    """

    def __init__(
        self, channels: int, out: int, stride: int, reduction: int, drops: Drops, data_format: DataFormat
    ) -> None:
        super().__init__()
        width = round_channels(out * _SHARE, 32)
        self.patch_embed = _embed(channels, width, stride, data_format)
        self.norm1, self.norm2 = batch_norm(width, data_format), batch_norm(out, data_format)
        self.e_mhsa = AveragedAttention(width, reduction**2, drops)
        self.projection = _embed(width, out - width, 1, data_format)
        self.mhca = GroupedConvAttention(out - width, data_format)
        self.mlp = ReluMlp(out, 2, drops.layer, data_format)
        self.mhsa_drop, self.mhca_drop = (DropPath(drops.path * share) for share in (_SHARE, 1 - _SHARE))
        self.drop_path, self._data_format = DropPath(drops.path), data_format

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', ceil(H/stride), ceil(W/stride)]."""
        x = self.patch_embed(x)
        tokens = to_tokens(self.norm1(x), self._data_format)
        attended = self.e_mhsa(tokens.flatten(1, 2)).reshape([-1, *tokens.shape[1:]])
        x = x + self.mhsa_drop(to_image(attended, self._data_format))
        others = self.projection(x)
        others = others + self.mhca_drop(self.mhca(others))
        x = paddle.concat([x, others], axis=3 if self._data_format == "NHWC" else 1)
        return x + self.drop_path(self.mlp(self.norm2(x)))


def _embed(in_channels: int, out: int, stride: int, data_format: DataFormat) -> nn.Layer:
    """Returns average pooling with this stride, and a 1x1 convolution if size or channels change."""
    layers = nn.Sequential()
    if stride > 1:
        pool = nn.AvgPool2D(stride, stride, ceil_mode=True, data_format=data_format)
        layers.add_sublayer("avgpool", pool)
    if stride > 1 or in_channels != out:
        layers.add_sublayer("conv", pointwise(in_channels, out, data_format, _NORMAL, bias=False))
        layers.add_sublayer("norm", batch_norm(out, data_format))
    return layers


class NextViT(nn.Layer):  # type: ignore[misc]
    """The Next-ViT network.

    Args:
        depth: Blocks of the third stage, a multiple of 5.
        drop_path_rate: Probability of skipping the last block; it decreases linearly to 0 in the first one.
        drop_rate: Dropout after each layer.
        attn_drop_rate: Dropout of attention weights.
    """

    def __init__(
        self,
        depth: int,
        drop_path_rate: float = 0.0,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
    ) -> None:
        super().__init__()
        channels, stem = input_image_channel, list[nn.Layer]()
        conv = partial(NextConvNorm, act=F.relu, data_format=data_format, initializer=_NORMAL)
        for out, stride in _STEM:
            stem.append(conv(channels, out, 3, stride))
            channels = out
        self.stem = nn.Sequential(*stem)
        self.depths = depths = 3, 4, depth, 3
        blocks, paths = list[nn.Layer](), iter(drop_paths(drop_path_rate, sum(depths)))
        for stage, count in enumerate(depths):
            period = _GROUP if stage == 2 else count  # between blocks with attention
            for i in range(count):
                drops = Drops(drop_rate, attn_drop_rate, next(paths))
                stride, attends = 2 if stage and not i else 1, stage > 0 and (i + 1) % period == 0
                out = _WIDTHS[stage][attends]
                shape = channels, out, stride
                if attends:
                    blocks.append(AveragedAttentionBlock(*shape, _REDUCTIONS[stage], drops, data_format))
                else:
                    blocks.append(GroupedConvBlock(*shape, drops, data_format))
                channels = out
        self.features = nn.Sequential(*blocks)
        self.norm = batch_norm(channels, data_format)
        self.avgpool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self.proj_head = nn.Sequential(linear(channels, class_num))

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        x = self.norm(self.features(self.stem(x)))
        return self.proj_head(self.avgpool(x).flatten(1))


NextViT_small_224 = NextViT_small_384 = partial(NextViT, 10, drop_path_rate=0.1)
NextViT_base_224 = NextViT_base_384 = partial(NextViT, 20, drop_path_rate=0.2)
NextViT_large_224 = NextViT_large_384 = partial(NextViT, 30, drop_path_rate=0.2)
