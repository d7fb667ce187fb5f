"""DenseNet (Huang et al. 2016, https://arxiv.org/abs/1608.06993)."""

from __future__ import annotations

import re
from functools import partial
from typing import ClassVar

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import DataFormat, UnderscoredConvNorm, batch_norm, uniform_linear
from ppcls.arch.layers.norm_act import convolve_norm, norm_relu
from ppcls.arch.public.names import PublicNames

_BOTTLENECK = 4  # number of channels between the two convolutions of a layer, divided by the growth


class NormConv(nn.Layer):  # type: ignore[misc]
    """Batch norm and ReLU, followed by a convolution."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int, data_format: DataFormat) -> None:
        super().__init__()
        self._batch_norm = batch_norm(in_channels, data_format)
        self._conv = nn.Conv2D(
            in_channels, out_channels, kernel, padding=kernel // 2, bias_attr=False, data_format=data_format
        )

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H, W]."""
        return self._conv(norm_relu(self._batch_norm, x))

    @property
    def layers(self) -> tuple[nn.BatchNorm2D, nn.Conv2D]:
        """The batch norm and the convolution."""
        return self._batch_norm, self._conv


class DenseLayer(nn.Layer):  # type: ignore[misc]
    """Two convolutions, whose output is appended to the channels of the input."""

    def __init__(self, in_channels: int, growth: int, data_format: DataFormat) -> None:
        super().__init__()
        width = _BOTTLENECK * growth
        self.bn_ac_func1 = NormConv(in_channels, width, 1, data_format)
        self.bn_ac_func2 = NormConv(width, growth, 3, data_format)
        self.growth = growth
        self._channels = 1 if data_format == "NCHW" else 3

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C + growth, H, W]."""
        return paddle.concat([x, self.new_channels(norm_relu(self.norm, x))], axis=self._channels)

    @property
    def norm(self) -> nn.BatchNorm2D:
        """The first batch norm."""
        return self.bn_ac_func1.layers[0]

    def new_channels(self, normalized: Tensor) -> Tensor:
        """Maps ReLU of the first batch norm, [B, C, H, W] (or NHWC), to the channels to append."""
        # The first convolution and the second batch norm can be one kernel.
        second_norm, second_convolution = self.bn_ac_func2.layers
        return second_convolution(convolve_norm(self.bn_ac_func1.layers[1], second_norm, normalized, F.relu))

    def convolutions_and_norms(self) -> list[tuple[nn.Layer, nn.Layer]]:
        """Returns the first convolution and the batch norm after it; see `ConvNorm`."""
        return [(self.bn_ac_func1.layers[1], self.bn_ac_func2.layers[0])]


class DenseBlock(nn.Layer):  # type: ignore[misc]
    """A sequence of dense layers. In checkpoints, their names are ``conv{number}_1`` and so on."""

    def __init__(
        self, number: int, in_channels: int, depth: int, growth: int, data_format: DataFormat
    ) -> None:
        super().__init__()
        self._layers = [
            self.add_sublayer(
                f"conv{number}_{i + 1}", DenseLayer(in_channels + i * growth, growth, data_format)
            )
            for i in range(depth)
        ]

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C + depth * growth, H, W]."""
        for layer in self._layers:
            x = layer(x)
        return x

    def appending_layers(self) -> list[DenseLayer]:
        """Returns the layers, which `ppcls.arch.fused.blocks.appending` runs without concatenation.

        Returns none if a subclass of the block or of a layer may compute something else.
        """
        known = type(self) is DenseBlock and all(type(layer) is DenseLayer for layer in self._layers)
        return self._layers if known else []


class Transition(nn.Layer):  # type: ignore[misc]
    """Halves the number of channels with a 1x1 convolution and the size with average pooling."""

    def __init__(self, channels: int, data_format: DataFormat) -> None:
        super().__init__()
        self.conv_ac_func = NormConv(channels, channels // 2, 1, data_format)
        self.avg_pool = nn.AvgPool2D(2, 2, data_format=data_format)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C/2, H/2, W/2]."""
        return self.avg_pool(self.conv_ac_func(x))


def _current_name(name: str) -> str:
    """Returns the current form of a name. Old files of torchvision have ``norm.1`` instead of ``norm1``."""
    return re.sub(r"\.(norm|conv)\.(\d)\.", r".\1\2.", name)


class DenseNet(nn.Layer):  # type: ignore[misc]
    """The DenseNet network.

    Args:
        depths: Number of layers of each block.
        channels: Number of channels of the first convolution.
        growth: Number of channels that each layer adds.
    """

    public_names: ClassVar[PublicNames] = PublicNames(
        timm={
            r"^conv1_func\.": ("features.conv0.", "features.norm0."),
            r"^batch_norm\.": "features.norm5.",
            r"^db_conv_(\d)\.conv\d_(\d+)\.": r"features.denseblock{\1-1}.denselayer\2.",
            r"^tr_conv(\d)_blk\.conv_ac_func\.": (
                r"features.transition{\1-1}.conv.",
                r"features.transition{\1-1}.norm.",
            ),
            r"\.bn_ac_func(\d)\.": (r".conv\1.", r".norm\1."),
            r"^out\.": "classifier.",
        },
        current_name=_current_name,
    )

    def __init__(
        self,
        depths: tuple[int, int, int, int],
        channels: int = 64,
        growth: int = 32,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
    ) -> None:
        super().__init__()
        self.conv1_func = UnderscoredConvNorm(
            input_image_channel, channels, 7, 2, act=F.relu, data_format=data_format
        )
        self.max_pool = nn.MaxPool2D(3, stride=2, padding=1, data_format=data_format)
        self._stages = []
        for number, depth in enumerate(depths, start=2):
            block = DenseBlock(number, channels, depth, growth, data_format)
            self._stages.append(self.add_sublayer(f"db_conv_{number}", block))
            channels += depth * growth
            if number <= len(depths):
                transition = Transition(channels, data_format)
                self._stages.append(self.add_sublayer(f"tr_conv{number}_blk", transition))
                channels //= 2
        self.batch_norm = batch_norm(channels, data_format)
        self.avg_pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self.out = uniform_linear(channels, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        x = self.max_pool(self.conv1_func(x))
        for stage in self._stages:
            x = stage(x)
        return self.out(self.avg_pool(norm_relu(self.batch_norm, x)).flatten(1))


DenseNet121 = partial(DenseNet, (6, 12, 24, 16))
DenseNet161 = partial(DenseNet, (6, 12, 36, 24), 96, 48)
DenseNet169 = partial(DenseNet, (6, 12, 32, 32))
DenseNet201 = partial(DenseNet, (6, 12, 48, 32))
DenseNet264 = partial(DenseNet, (6, 12, 64, 48))
