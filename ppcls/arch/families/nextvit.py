"""Next-ViT (Li et al. 2022, https://arxiv.org/abs/2207.05501), which has attention only in some blocks."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import ConvNorm, DataFormat, batch_norm, round_channels
from ppcls.arch.layers.drop_path import DropPath, drop_paths
from ppcls.arch.layers.tokens import AveragedAttention, PixelMlp, pointwise, to_image, to_tokens
from ppcls.arch.layers.transformer import DEVIATION, linear, normal
from ppcls.arch.public.names import PublicNames

_HEAD = 32
_STEM = ((64, 2), (32, 1), (64, 1), (64, 2))  # channels and stride
_WIDTHS = ((96, 96), (192, 256), (384, 512), (768, 1024))  # channels without and with attention, per stage
_REDUCTIONS = (8, 4, 2, 1)  # factor by which the sides of keys and values are reduced, per stage
_GROUP = 5  # every fifth block of the third stage has attention
_SHARE = 0.75  # share of the channels that have attention
Rates = tuple[float, float, float]
_INIT = nn.initializer.Normal(std=DEVIATION)


class NextConvNorm(ConvNorm):
    """A `ConvNorm` whose parameters have the names of this network."""

    names = ("conv", "norm")


class GroupedConvAttention(ConvNorm):
    """A grouped 3x3 convolution with one group per head, batch norm, ReLU and a 1x1 convolution."""

    names = ("group_conv3x3", "norm")

    def __init__(self, channels: int, data_format: DataFormat) -> None:
        super().__init__(channels, channels, 3, 1, channels // _HEAD, F.relu, data_format, initializer=_INIT)
        self.projection = pointwise(channels, channels, data_format, _INIT, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to the same shape."""
        return self.projection(ConvNorm.forward(self, x))  # Paddle 2.6 cannot compile super()


class ReluMlp(PixelMlp):
    """A `PixelMlp` whose parameters have the names of this network."""

    names = ("conv1", "conv2")


class NextBlock(nn.Layer):  # type: ignore[misc]
    """A `GroupedConvAttention` followed by a `ReluMlp`, each with a shortcut.

    An `AveragedAttention` may come first; the channels of the other attention are appended to its output.

    Args:
        stride: Stride of the average pooling before the block.
        reduction: Factor by which the sides of keys and values are reduced; 0 for no `AveragedAttention`.
        rates: Dropout rates after each layer and of the attention weights, and probability of skipping the
            attention or the `ReluMlp`. If there are two kinds of attention, each gets a part of it.
    """

    def __init__(
        self, channels: int, out: int, stride: int, reduction: int, rates: Rates, data_format: DataFormat
    ) -> None:
        super().__init__()
        self._data_format = data_format
        self._attends = reduction > 0
        drop = rates[2]
        width = round_channels(out * _SHARE, 32) if reduction else out
        self.patch_embed = _embed(channels, width, stride, data_format)
        if reduction:
            self.norm1 = batch_norm(width, data_format)
            self.mhsa_drop = DropPath(drop * _SHARE)
            self.e_mhsa = AveragedAttention(width, width // _HEAD, reduction**2, rates[:2])
            self.projection = _embed(width, out - width, 1, data_format)
        self.add_sublayer("norm2" if reduction else "norm", batch_norm(out, data_format))
        self.mhca = GroupedConvAttention(out - width if reduction else out, data_format)
        hidden = round_channels(out * (2 if reduction else 3), 32)
        self.mlp = ReluMlp(out, hidden, rates[0], data_format, F.relu, normal())
        self.mhca_drop = DropPath(drop * (1 - _SHARE if reduction else 1))
        self.drop_path = DropPath(drop)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', ceil(H/stride), ceil(W/stride)]."""
        x = others = self.patch_embed(x)
        if self._attends:
            attended = self.e_mhsa(to_tokens(self.norm1(x), self._data_format))
            x = x + self.mhsa_drop(to_image(attended, self._data_format))
            others = self.projection(x)
        others = others + self.mhca_drop(self.mhca(others))
        x = paddle.concat([x, others], 3 if self._data_format == "NHWC" else 1) if self._attends else others
        return x + self.drop_path(self.mlp((self.norm2 if self._attends else self.norm)(x)))


def _embed(in_channels: int, out: int, stride: int, data_format: DataFormat) -> nn.Layer:
    """Returns average pooling with ``stride``, and a 1x1 convolution if the size or the channels change."""
    if stride == 1 and in_channels == out:
        return nn.Identity()
    pool = nn.AvgPool2D(stride, stride, ceil_mode=True, data_format=data_format)
    conv = NextConvNorm(in_channels, out, 1, data_format=data_format, initializer=_INIT)
    return nn.Sequential(*([("avgpool", pool)] if stride > 1 else []), *conv.named_children())


class NextViT(nn.Layer):  # type: ignore[misc]
    """The Next-ViT network.

    Args:
        depth: Number of blocks of the third stage, a multiple of 5.
        drop_path_rate: Probability of skipping the last block, decreasing linearly to 0 for the first block.
        drop_rate: Dropout rate after each layer.
        attn_drop_rate: Dropout rate of the attention weights.
    """

    public_names: ClassVar[PublicNames] = PublicNames(
        timm={
            r"^features\.(\d+)\.": "stages.{stage}.blocks.{block}.",
            r"\.mlp\.conv(\d)\.": r".mlp.fc\1.",
            r"^proj_head\.0\.": "head.fc.",
        },
    )

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
        channels = input_image_channel
        stem = list[nn.Layer]()
        for out, stride in _STEM:
            stem.append(NextConvNorm(channels, out, 3, stride, 1, F.relu, data_format, initializer=_INIT))
            channels = out
        self.stem = nn.Sequential(*stem)
        self.depths = depths = 3, 4, depth, 3
        blocks = list[nn.Layer]()
        paths = iter(drop_paths(drop_path_rate, sum(depths)))
        for stage, count in enumerate(depths):
            period = _GROUP if stage == 2 else count  # distance between blocks with attention
            for i in range(count):
                stride = 2 if stage and not i else 1
                attends = stage > 0 and (i + 1) % period == 0
                out = _WIDTHS[stage][attends]
                reduction = _REDUCTIONS[stage] if attends else 0
                rates = drop_rate, attn_drop_rate, next(paths)
                blocks.append(NextBlock(channels, out, stride, reduction, rates, data_format))
                channels = out
        self.features = nn.Sequential(*blocks)
        self.norm = batch_norm(channels, data_format)
        self.avgpool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self.proj_head = nn.Sequential(linear(channels, class_num))

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        return self.proj_head(self.avgpool(self.norm(self.features(self.stem(x)))).flatten(1))


NextViT_small_224 = NextViT_small_384 = partial(NextViT, 10, drop_path_rate=0.1)
NextViT_base_224 = NextViT_base_384 = partial(NextViT, 20, drop_path_rate=0.2)
NextViT_large_224 = NextViT_large_384 = partial(NextViT, 30, drop_path_rate=0.2)
