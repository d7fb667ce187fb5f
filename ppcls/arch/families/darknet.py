"""DarkNet-53, the backbone of YOLOv3 (Redmon and Farhadi 2018, https://arxiv.org/abs/1804.02767)."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import ConvNorm, DataFormat, leaky_relu, uniform_linear
from ppcls.arch.public.names import PublicNames

_DEPTHS = (1, 2, 8, 8, 4)  # number of blocks per stage
_FIRST = 64


class DarkConvNorm(ConvNorm):
    """A `ConvNorm` whose parameters have the names of PaddleClas's DarkNet."""

    names = ("_conv", "_bn")


class DarkBlock(nn.Layer):  # type: ignore[misc]
    """A 1x1 convolution to half of the channels, a 3x3 convolution to all channels, and a shortcut."""

    def __init__(self, channels: int, conv: partial[ConvNorm]) -> None:
        super().__init__()
        self._conv1 = conv(channels, channels // 2, 1)
        self._conv2 = conv(channels // 2, channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to the same shape."""
        return x + self._conv2(self._conv1(x))


class DarkNet53(nn.Layer):  # type: ignore[misc]
    """The DarkNet-53 network.

    Args:
        timm_variant: Whether the activation is leaky ReLU, as in timm and in the paper, instead of ReLU.
    """

    public_names: ClassVar[PublicNames] = PublicNames(
        timm={
            r"^_conv1\.": "stem.conv1.",
            r"^_conv2\.": "stages.0.conv_down.",
            r"^_downsample_(\d)\.": r"stages.{\1+1}.conv_down.",
            r"^_basic_block_(\d)(\d)\._": r"stages.\1.blocks.{\2-1}.",
            r"\._conv\.": ".conv.",
            r"\._bn\.": ".bn.",
            r"^_out\.": "head.fc.",
        },
        variant="PaddleClas's DarkNet53 has ReLU instead of leaky ReLU",
    )

    def __init__(
        self,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
        timm_variant: bool = False,
    ) -> None:
        super().__init__()
        self.timm_variant = timm_variant
        act = leaky_relu if timm_variant else F.relu
        conv = partial(DarkConvNorm, act=act, data_format=data_format)
        self._conv1 = conv(input_image_channel, _FIRST // 2, 3)
        self._conv2 = conv(_FIRST // 2, _FIRST, 3, 2)
        self._layers = []
        channels = _FIRST
        for stage, depth in enumerate(_DEPTHS):
            for number in range(1, depth + 1):
                # The only block of the first stage is named _basic_block_01.
                name = f"_basic_block_{stage}{number}"
                self._layers.append(self.add_sublayer(name, DarkBlock(channels, conv)))
            if stage + 1 < len(_DEPTHS):
                downsample = conv(channels, 2 * channels, 3, 2)
                self._layers.append(self.add_sublayer(f"_downsample_{stage}", downsample))
                channels *= 2
        self._pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self._out = uniform_linear(channels, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        x = self._conv2(self._conv1(x))
        for layer in self._layers:
            x = layer(x)
        return self._out(self._pool(x).flatten(1))
