"""PP-HGNet (PaddleClas, docs/en/models/PP-HGNet_en.md), parameter for parameter as there.

A block's convolutions follow one another; all that they make is gathered by a 1x1 convolution, as in VoVNet
(Lee et al. 2019, https://arxiv.org/abs/1904.09730), whose successor's weighing of channels follows
(Lee and Park 2019, https://arxiv.org/abs/1911.06667, section 3.2).

Parameters, in millions: PPHGNet_tiny 14.7, PPHGNet_small 24.4, PPHGNet_base 71.6.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.conv_norm import ConvNorm, DataFormat

_FEATURES = 2048


class EffectiveSqueezeExcitation(nn.Layer):  # type: ignore[misc]
    """Weights each channel by what one 1x1 convolution makes of all channels' means."""

    def __init__(self, channels: int, data_format: DataFormat) -> None:
        super().__init__()
        self.avg_pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        normal = paddle.ParamAttr(initializer=nn.initializer.KaimingNormal())
        self.conv = nn.Conv2D(channels, channels, 1, weight_attr=normal, data_format=data_format)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] to the same shape, or [B, H, W, C]."""
        return x * F.sigmoid(self.conv(self.avg_pool(x)))


class GatheringBlock(nn.Layer):  # type: ignore[misc]
    """Layers one after another; two more gather the input and all that these made.

    Args:
        layers: Those that follow one another.
        gather: Two, on the channels of all.
        added: Whether the input is added to the output.
        data_format: Layout of input and output.
    """

    names: ClassVar[tuple[str, str]] = ("aggregation_conv", "att")  # of those that gather, in checkpoints

    def __init__(
        self,
        layers: Sequence[nn.Layer],
        gather: tuple[nn.Layer, nn.Layer],
        added: bool,
        data_format: DataFormat,
    ) -> None:
        super().__init__()
        self.layers = nn.LayerList(layers)
        for name, layer in zip(self.names, gather, strict=True):
            self.add_sublayer(name, layer)
        self._added = added
        self._channels = 1 if data_format == "NCHW" else 3

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] to [B, C', H, W], or the same in NHWC."""
        made = [x]
        for layer in self.layers:
            made.append(layer(made[-1]))
        first, second = self.names
        y = getattr(self, second)(getattr(self, first)(paddle.concat(made, axis=self._channels)))
        return x + y if self._added else y


class Stage(nn.Layer):  # type: ignore[misc]
    """Blocks of one width; a convolution of each channel halves the size before them where it is wanted.

    Args:
        in_channels: Channels of the input.
        halved: Whether the size is halved.
        blocks: All of them.
        data_format: Layout of input and output.
    """

    def __init__(
        self, in_channels: int, halved: bool, blocks: Sequence[GatheringBlock], data_format: DataFormat
    ) -> None:
        super().__init__()
        conv = hg_conv(data_format)
        self.downsample = conv(in_channels, in_channels, 3, 2, in_channels) if halved else nn.Identity()
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] to [B, C', H, W] or half the size, or the same in NHWC."""
        return self.blocks(self.downsample(x))


def hg_conv(data_format: DataFormat, kind: type[ConvNorm] = ConvNorm) -> partial[ConvNorm]:
    """Returns what makes the convolutions of PP-HGNet and PP-HGNetV2."""
    return partial(kind, data_format=data_format, initializer=nn.initializer.KaimingNormal(), decay=False)


class PPHGNet(nn.Layer):  # type: ignore[misc]
    """A PP-HGNet.

    Args:
        stem: Widths of the first convolutions.
        middles: Of the four stages, channels between a block's layers.
        widths: Of the four stages, channels of the output.
        depths: Blocks in each of the four stages.
        layers: Layers of a block.
        dropout: Of the features.
        class_num: Number of classes.
        data_format: Layout of the input; parameters have the same shapes in both.
        input_image_channel: Channels of the input.
    """

    def __init__(
        self,
        stem: tuple[int, int, int],
        middles: tuple[int, int, int, int],
        widths: tuple[int, int, int, int],
        depths: tuple[int, int, int, int],
        layers: int,
        dropout: float = 0.0,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
    ) -> None:
        super().__init__()
        conv = partial(hg_conv(data_format), act=F.relu)
        inputs = (input_image_channel, *stem)
        self.stem = nn.Sequential(*(conv(inputs[i], width, 3, 1 if i else 2) for i, width in enumerate(stem)))
        self.pool = nn.MaxPool2D(3, stride=2, padding=1, data_format=data_format)
        self.stages = nn.LayerList()
        channels = stem[-1]
        for middle, out, depth in zip(middles, widths, depths, strict=True):
            blocks = [
                _block(out if i else channels, middle, out, layers, i > 0, data_format) for i in range(depth)
            ]
            self.stages.append(Stage(channels, len(self.stages) > 0, blocks, data_format))
            channels = out
        self.avg_pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        normal = paddle.ParamAttr(initializer=nn.initializer.KaimingNormal())
        self.last_conv = nn.Conv2D(
            channels, _FEATURES, 1, weight_attr=normal, bias_attr=False, data_format=data_format
        )
        self.dropout = nn.Dropout(dropout, mode="downscale_in_infer")
        self.fc = nn.Linear(_FEATURES, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W], or [B, H, W, C] under NHWC, to logits [B, class_num]."""
        x = self.pool(self.stem(x))
        for stage in self.stages:
            x = stage(x)
        x = F.relu(self.last_conv(self.avg_pool(x)))
        return self.fc(self.dropout(x).flatten(1))


def _block(
    in_channels: int, middle: int, out_channels: int, layers: int, added: bool, data_format: DataFormat
) -> GatheringBlock:
    conv = partial(hg_conv(data_format), act=F.relu)
    gather = (
        conv(in_channels + layers * middle, out_channels, 1),
        EffectiveSqueezeExcitation(out_channels, data_format),
    )
    made = [conv(middle if i else in_channels, middle, 3) for i in range(layers)]
    return GatheringBlock(made, gather, added, data_format)


PPHGNet_tiny = partial(PPHGNet, (48, 48, 96), (96, 128, 160, 192), (224, 448, 512, 768), (1, 1, 2, 1), 5)
PPHGNet_small = partial(PPHGNet, (64, 64, 128), (128, 160, 192, 224), (256, 512, 768, 1024), (1, 1, 2, 1), 6)
PPHGNet_base = partial(
    PPHGNet, (96, 96, 160), (192, 224, 256, 288), (320, 640, 960, 1280), (1, 2, 3, 2), 7, 0.2
)
