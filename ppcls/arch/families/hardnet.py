"""HarDNet (Chao et al. 2019, https://arxiv.org/abs/1909.00948), a DenseNet with fewer connections."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import ConvNorm, DataFormat
from ppcls.arch.layers.drop_path import image_dropout


class HarmonicConv(ConvNorm):
    """A `ConvNorm` whose parameters have the names of this network."""

    names = ("conv", "norm")


class DepthwiseConv(ConvNorm):
    """A depthwise 3x3 convolution and batch norm, with the parameter names of this network."""

    names = ("dwconv", "norm")

    def __init__(self, channels: int, data_format: DataFormat, stride: int = 1) -> None:
        super().__init__(channels, channels, 3, stride, channels, data_format=data_format)


def links(layer: int) -> list[int]:
    """Returns the numbers of the layers whose outputs a layer reads.

    These are ``layer - p`` for each power of two ``p`` that divides ``layer``.
    """
    return [layer - (1 << i) for i in range(layer.bit_length()) if layer % (1 << i) == 0]


class HarmonicBlock(nn.Layer):  # type: ignore[misc]
    """A block of layers that read the outputs of few earlier layers; see `links`.

    The block returns the outputs of all layers with odd numbers and of the last layer.

    Args:
        channels: Number of input channels.
        growth: Number of channels of a layer that reads one output.
        factor: Factor for the number of channels, per further output that a layer reads.
        depth: Number of layers.
        separable: Whether a layer is a 1x1 and a depthwise convolution. If False, it is a 3x3 convolution.
    """

    def __init__(
        self, channels: int, growth: int, factor: float, depth: int, separable: bool, data_format: DataFormat
    ) -> None:
        super().__init__()
        conv = partial(HarmonicConv, act=F.relu6, data_format=data_format)
        widths = [channels]
        self.layers = nn.LayerList()
        for i in range(1, depth + 1):
            sources = links(i)
            # Rounded to an even number, as in the code of the authors.
            widths.append(int(growth * factor ** (len(sources) - 1) + 1) // 2 * 2)
            inputs = sum(widths[source] for source in sources)
            layer = conv(inputs, widths[-1], 1 if separable else 3)
            if separable:
                depthwise = DepthwiseConv(widths[-1], data_format)
                layer = nn.Sequential(("layer1", layer), ("layer2", depthwise))
            self.layers.append(layer)
        self._kept = [i for i in range(1, depth + 1) if i % 2 or i == depth]
        self.out_channels = sum(widths[i] for i in self._kept)
        self._axis = 1 if data_format == "NCHW" else 3

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H, W]."""
        features = [x]
        for i, layer in enumerate(self.layers):
            inputs = [features[source] for source in links(i + 1)]
            features.append(layer(inputs[0] if len(inputs) == 1 else paddle.concat(inputs, self._axis)))
        return paddle.concat([features[i] for i in self._kept], self._axis)


class HarDNet(nn.Layer):  # type: ignore[misc]
    """The HarDNet network.

    Args:
        stem: Number of channels of the first two convolutions.
        widths: Number of channels after each block.
        growths: Argument ``growth`` of each `HarmonicBlock`.
        depths: Number of layers per block.
        halved: Whether the size is halved after the block, for each block.
        factor: Argument of `HarmonicBlock`.
        separable: Whether convolutions are depthwise separable. If True, depthwise convolutions halve the
            size instead of max pooling.
        drop_rate: Dropout rate before the classifier.
        drop_last: Dropout rate after the last block; None for no dropout layer.
    """

    def __init__(
        self,
        stem: tuple[int, int],
        widths: Sequence[int],
        growths: Sequence[int],
        depths: Sequence[int],
        halved: Sequence[bool],
        factor: float = 1.7,
        separable: bool = False,
        drop_rate: float = 0.1,
        drop_last: float | None = None,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
    ) -> None:
        super().__init__()
        conv = partial(HarmonicConv, act=F.relu6, data_format=data_format)
        pool = partial(nn.MaxPool2D, stride=2, data_format=data_format)
        half = partial(DepthwiseConv, data_format=data_format, stride=2)
        self.base = nn.LayerList([conv(input_image_channel, stem[0], 3, 2)])
        self.base.append(conv(*stem, 1 if separable else 3))
        self.base.append(half(stem[1]) if separable else pool(3, padding=1))
        channels = stem[1]
        for i, width in enumerate(widths):
            block = HarmonicBlock(channels, growths[i], factor, depths[i], separable, data_format)
            self.base.append(block)
            if drop_last is not None and i == len(widths) - 1:
                self.base.append(image_dropout(drop_last, data_format))
            self.base.append(conv(block.out_channels, width, 1))
            if halved[i]:
                self.base.append(half(width) if separable else pool(2))
            channels = width
        mean = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        classifier = nn.Linear(channels, class_num)
        self.base.append(nn.Sequential(mean, nn.Flatten(), nn.Dropout(drop_rate), classifier))

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        for layer in self.base:
            x = layer(x)
        return x


_SMALL = (24, 48), (96, 320, 640, 1024), (16, 20, 64, 160), (4, 16, 8, 4), (True, True, True, False)
_MEDIUM = (
    *((32, 64), (128, 256, 320, 640, 1024), (14, 16, 20, 40, 160), (8, 16, 16, 16, 4)),
    (True, False, True, True, False),
)
_LARGE = (
    *((48, 96), (192, 256, 320, 480, 720, 1280), (24, 24, 28, 36, 48, 256), (8, 16, 16, 16, 16, 4)),
    (True, False, True, False, True, False),
)
HarDNet39_ds = partial(HarDNet, *_SMALL, factor=1.6, separable=True, drop_rate=0.05)
HarDNet68 = partial(HarDNet, *_MEDIUM)
HarDNet68_ds = partial(HarDNet, *_MEDIUM, separable=True, drop_rate=0.05)
HarDNet85 = partial(HarDNet, *_LARGE, drop_rate=0.2, drop_last=0.1)
