"""DSNet (Mao et al. 2021, https://arxiv.org/abs/2105.14734), with convolution and attention in parallel.

Convolutions process one half of the channels at full size. Self-attention processes the other half at a
reduced size. Then each half attends to the other half. As in PaddleClas, the rates of stochastic depth start
at 0 in every stage.
"""

from __future__ import annotations

from functools import partial

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import DataFormat, batch_norm
from ppcls.arch.layers.drop_path import DropPath, drop_paths, dropout, image_dropout
from ppcls.arch.layers.tokens import PixelMlp, to_image, to_tokens
from ppcls.arch.layers.transformer import DotProductAttention

# per stage
_WIDTHS = (64, 128, 320, 512)
_HEADS = (1, 2, 5, 8)
_REDUCTIONS = (8, 4, 2, 2)  # factor by which the sides are reduced for attention, per stage
_RATIO = 4


class DualStreamBlock(nn.Layer):  # type: ignore[misc]
    """A block of two parallel streams (figure 2), followed by a `PixelMlp`, each with a shortcut.

    Args:
        channels: Number of channels of both streams together.
        heads: Number of heads.
        reduction: Factor by which the attention stream is smaller than the convolution stream.
        rates: Dropout rates after each layer and of the attention weights.
        drop_path: Probability of skipping the streams or the `PixelMlp` for an image in training.
    """

    def __init__(
        self,
        channels: int,
        heads: int,
        reduction: int,
        rates: tuple[float, float],
        drop_path: float,
        data_format: DataFormat,
    ) -> None:
        super().__init__()
        half = channels // 2
        conv = partial(nn.Conv2D, data_format=data_format)
        self.pos_embed = conv(channels, channels, 3, padding=1, groups=channels)
        self.norm1 = batch_norm(channels, data_format)
        self.norm2 = batch_norm(channels, data_format)
        self.conv1 = conv(channels, channels, 1)
        self.conv2 = conv(channels, channels, 1)
        self.norm_conv1 = batch_norm(half, data_format)
        self.norm_conv2 = batch_norm(half, data_format)
        self.norm_sa1 = nn.LayerNorm(half)
        self.norm_sa2 = nn.LayerNorm(half)
        self.conv = conv(half, half, 3, padding=1, groups=half)
        self.channel_up = nn.Linear(half, 3 * half)
        self.cross_channel_up_sa = nn.Linear(half, 3 * half)
        self.cross_channel_up_conv = conv(half, 3 * half, 1)
        self.fuse_channel_conv = nn.Linear(half, half)
        self.fuse_channel_sa = nn.Linear(half, half)
        self.attention = DotProductAttention(heads, drop_rate=rates[1])
        self.proj_drop = dropout(rates[0])
        self.drop_path = DropPath(drop_path)
        self.mlp = PixelMlp(channels, _RATIO * channels, rates[0], data_format)
        self._reduction = reduction
        self._data_format = data_format

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to the same shape."""
        x = x + self.pos_embed(x)
        axis = 1 if self._data_format == "NCHW" else 3
        attended, convolved = paddle.split(self.conv1(self.norm1(x)), 2, axis)
        convolved = convolved + self.conv(self.norm_conv1(convolved))
        size = convolved.shape[2:] if axis == 1 else convolved.shape[1:3]
        small = [side // self._reduction for side in size]
        tokens = self._tokens(F.interpolate(attended, small, mode="bilinear", data_format=self._data_format))
        tokens = tokens + self._attend(*self.channel_up(self.norm_sa1(tokens)).split(3, axis=-1))

        projected = self._tokens(self.cross_channel_up_conv(self.norm_conv2(convolved)))
        large_query, large_key, large_value = projected.split(3, axis=-1)
        query, key, value = self.cross_channel_up_sa(self.norm_sa2(tokens)).split(3, axis=-1)
        fused = self.fuse_channel_conv(self._attend(large_query, key, value))
        convolved = convolved + self._image(fused, size)
        tokens = tokens + self.fuse_channel_sa(self._attend(query, large_key, large_value))
        image = self._image(tokens, small)
        attended = F.interpolate(image, size, mode="bilinear", data_format=self._data_format)

        x = x + self.drop_path(self.conv2(paddle.concat([convolved, attended], axis)))
        return x + self.drop_path(self.mlp(self.norm2(x)))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return self.proj_drop(self.attention(query, key, value))

    def _tokens(self, x: Tensor) -> Tensor:
        return to_tokens(x, self._data_format).flatten(1, 2)

    def _image(self, tokens: Tensor, size: list[int]) -> Tensor:
        return to_image(tokens.reshape([-1, *size, tokens.shape[2]]), self._data_format)


class DSNet(nn.Layer):  # type: ignore[misc]
    """The DSNet network.

    Args:
        depths: Number of blocks per stage.
        drop_rate: Dropout rate after the first patch embedding and after each layer.
        attn_drop_rate: Dropout rate of the attention weights.
        drop_path_rate: Probability of skipping the last block if all blocks were in one stage. In each stage,
            the probability starts at 0 and increases by the same amount per block.
    """

    def __init__(
        self,
        depths: tuple[int, int, int, int],
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.1,
        drop_path_rate: float = 0.1,
    ) -> None:
        super().__init__()
        channels = input_image_channel
        rates = drop_paths(drop_path_rate, sum(depths))
        self.pos_drop = image_dropout(drop_rate, data_format)
        for i, (width, depth) in enumerate(zip(_WIDTHS, depths, strict=True)):
            patch = 2 if i else 4
            embed = nn.Conv2D(channels, width, patch, patch, data_format=data_format)
            self.add_sublayer(f"patch_embed{i + 1}", nn.Sequential(("proj", embed)))
            shape = (width, _HEADS[i], _REDUCTIONS[i])
            drops = (drop_rate, attn_drop_rate)
            blocks = [DualStreamBlock(*shape, drops, rate, data_format) for rate in rates[:depth]]
            self.add_sublayer(f"blocks{i + 1}", nn.Sequential(*blocks))
            channels = width
        self.norm = batch_norm(channels, data_format)
        self.avg_pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self.head = nn.Linear(channels, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        x = self.blocks1(self.pos_drop(self.patch_embed1(x)))
        for i in range(2, 5):
            x = getattr(self, f"blocks{i}")(getattr(self, f"patch_embed{i}")(x))
        return self.head(self.avg_pool(self.norm(x)).flatten(1))


DSNet_tiny = partial(DSNet, (2, 2, 4, 1))
DSNet_small = partial(DSNet, (3, 4, 8, 3))
DSNet_base = partial(DSNet, (3, 4, 28, 3))
