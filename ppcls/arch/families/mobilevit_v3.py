"""MobileViTV3 (Wadekar and Chaurasia 2022, https://arxiv.org/abs/2209.15159).

MobileViTV3 fuses local with global features, and has a shortcut around each block. Networks with letters in
their names are derived from MobileViT. Networks with factors in their names are derived from MobileViTV2.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.families.mobilevit_v2 import MobileViTStages, MobileViTV2Block, scaled
from ppcls.arch.layers.conv_norm import ConvNorm, DataFormat, FanOutNormal
from ppcls.arch.layers.drop_path import dropout
from ppcls.arch.layers.tokens import even, over_patches, pointwise, resize, sides, transformer_block
from ppcls.arch.layers.transformer import SelfAttention, linear

_HEADS = 4


class MobileViTAttention(SelfAttention):
    """A `SelfAttention` whose parameters have the names of this family."""

    names = ("qkv_proj", "out_proj")


def transformer(width: int, depth: int, drop_rate: float) -> nn.Sequential:
    """Returns ``depth`` blocks of attention and two linear layers, and a final normalization."""
    blocks = []
    for _ in range(depth):
        attention = nn.LayerNorm(width), MobileViTAttention(width, _HEADS), dropout(drop_rate)
        first = linear(width, 2 * width)
        last = linear(2 * width, width)
        layers = nn.LayerNorm(width), first, nn.Silu(), nn.Identity(), last, dropout(drop_rate)
        blocks.append(transformer_block("pre_norm_mha", attention, layers))
    return nn.Sequential(*blocks, nn.LayerNorm(width))


class MobileViTV3Block(nn.Layer):  # type: ignore[misc]
    """A MobileViT block whose fusion consists of 1x1 convolutions (figure 1).

    Args:
        width: Width of a token.
        depth: Number of blocks of the transformer.
        drop_rate: Dropout rate within the transformer.
    """

    def __init__(
        self,
        channels: int,
        width: int,
        depth: int,
        conv: partial[ConvNorm],
        data_format: DataFormat,
        drop_rate: float,
    ) -> None:
        super().__init__()
        narrow = pointwise(channels, width, data_format, FanOutNormal(), bias=False)
        self.local_rep = nn.Sequential(
            ("conv_3x3", conv(channels, channels, 3, 1, channels, F.silu)),
            ("conv_1x1", nn.Sequential(("conv", narrow))),
        )
        self.global_rep = transformer(width, depth, drop_rate)
        self.conv_proj = conv(width, channels, 1, act=F.silu)
        self.fusion = conv(width + channels, channels, 1, act=F.silu)
        self._data_format = data_format
        self._channel = 3 if data_format == "NHWC" else 1

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to the same shape. The transformer gets images with even sides."""
        local = self.local_rep(x)
        size = sides(x, self._data_format)
        y = resize(local, even(size), self._data_format)
        y = over_patches(lambda x: self.global_rep(x.flatten(0, 1)), y, self._data_format, "NHWC")
        y = self.conv_proj(resize(y, size, self._data_format))
        return x + self.fusion(paddle.concat([local, y], axis=self._channel))


class LinearMobileViTV3Block(MobileViTV2Block):
    """A MobileViTV2 block with a fusion and a shortcut (figure 2)."""

    def __init__(
        self, channels: int, width: int, depth: int, conv: partial[ConvNorm], data_format: DataFormat
    ) -> None:
        super().__init__(channels, width, depth, conv, data_format)
        self.conv_proj = conv(2 * width, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to the same shape."""
        x = resize(x, even(sides(x, self._data_format)), self._data_format, align=True)
        local = self.local_rep(x)
        y = over_patches(self.global_rep, local, self._data_format, self._data_format)
        return x + self.conv_proj(paddle.concat([y, local], axis=3 if self._data_format == "NHWC" else 1))


class MobileViTV3(MobileViTStages):
    """The MobileViTV3 network, with the arguments of `MobileViTStages`."""


def from_mobilevit(
    channels: tuple[int, ...],
    widths: tuple[int, int, int],
    depths: tuple[int, int, int] = (2, 4, 3),
    expansion: int = 4,
    dropout: float = 0.1,
    classifier_dropout: float = 0.1,
    **options: Any,
) -> MobileViTV3:
    """Returns a network derived from MobileViT.

    Args:
        channels: Number of channels of the first convolution and of each stage.
        widths: Width of a token in the last three stages.
        depths: Number of transformer blocks in the last three stages.
        expansion: Number of channels within an inverted residual divided by that of its input.
        dropout: Dropout rate within transformers.
        classifier_dropout: Dropout rate before the classifier.
        options: Further arguments of `MobileViTStages`.
    """
    block = partial(MobileViTV3Block, drop_rate=dropout)
    features = min(4 * channels[-1], 960)
    settings: dict[str, Any] = {"repeats": 3, "features": features, "linear": linear}
    settings["drop_rate"] = classifier_dropout
    return MobileViTV3(channels, widths, depths, block, FanOutNormal(), expansion, **settings, **options)


def from_mobilevit_v2(factor: float, classifier_dropout: float = 0.1, **options: Any) -> MobileViTV3:
    """Returns a network derived from MobileViTV2. ``factor`` multiplies all numbers of channels."""
    settings: dict[str, Any] = {"block": LinearMobileViTV3Block, "drop_rate": classifier_dropout}
    channels, widths = scaled(factor)
    return MobileViTV3(channels, widths, **settings, **options)


_S = partial(from_mobilevit, (16, 32, 64, 128, 256, 320), (144, 192, 240))
_XS = partial(from_mobilevit, (16, 32, 48, 96, 160, 160), (96, 120, 144))
_XXS = partial(from_mobilevit, (16, 16, 24, 64, 80, 128), (64, 80, 96), expansion=2)
_SHORT = (2, 2, 3)

MobileViTV3_S = _S
MobileViTV3_S_L2 = partial(_S, depths=_SHORT)
MobileViTV3_XS = _XS
MobileViTV3_XS_L2 = partial(_XS, depths=_SHORT)
MobileViTV3_XXS = _XXS
MobileViTV3_XXS_L2 = partial(_XXS, depths=_SHORT)
MobileViTV3_x0_5 = partial(from_mobilevit_v2, 0.5)
MobileViTV3_x0_75 = partial(from_mobilevit_v2, 0.75)
MobileViTV3_x1_0 = partial(from_mobilevit_v2, 1.0)
