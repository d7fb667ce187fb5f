"""PP-HGNet and PP-HGNetV2 (PaddleClas, docs/en/models/PP-HGNet_en.md and PP-HGNetV2_en.md).

V2 has another stem, two 1x1 convolutions for aggregation, and cheaper layers in the last two stages. Its
small networks B0 to B3 multiply the output of each ReLU by a learned number and add another learned number.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import ConvNorm, DataFormat, kaiming_conv
from ppcls.arch.public.names import PublicNames

_FEATURES = 2048


class EffectiveSqueezeExcitation(nn.Layer):  # type: ignore[misc]
    """Multiplies each channel by a gate, which a 1x1 convolution computes from the means of all channels."""

    def __init__(self, channels: int, data_format: DataFormat) -> None:
        super().__init__()
        self.avg_pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        normal = paddle.ParamAttr(initializer=nn.initializer.KaimingNormal())
        self.conv = nn.Conv2D(channels, channels, 1, weight_attr=normal, data_format=data_format)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to the same shape."""
        return x * F.sigmoid(self.conv(self.avg_pool(x)))


class AggregationBlock(nn.Layer):  # type: ignore[misc]
    """A sequence of layers, and two layers that aggregate the block's input and the outputs of all layers.

    Args:
        layers: Number of layers of the sequence.
        aggregation: Two layers that aggregate the concatenated channels.
        shortcut: Whether to add the input to the output.
    """

    # Names of the aggregating layers in checkpoints.
    names: ClassVar[tuple[str, str]] = ("aggregation_conv", "att")

    def __init__(
        self,
        layers: Sequence[nn.Layer],
        aggregation: tuple[nn.Layer, nn.Layer],
        shortcut: bool,
        data_format: DataFormat,
    ) -> None:
        super().__init__()
        self.layers = nn.LayerList(layers)
        for name, layer in zip(self.names, aggregation, strict=True):
            self.add_sublayer(name, layer)
        self._shortcut = shortcut
        self._channels = 1 if data_format == "NCHW" else 3

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H, W]."""
        outputs = [x]
        for layer in self.layers:
            outputs.append(layer(outputs[-1]))
        first, second = self.names
        y = getattr(self, second)(getattr(self, first)(paddle.concat(outputs, axis=self._channels)))
        return x + y if self._shortcut else y


class PPHGNetStage(nn.Layer):  # type: ignore[misc]
    """A stage of blocks with the same number of channels.

    Args:
        halved: Whether the stage begins with a depthwise convolution that halves the size.
        blocks: Number of blocks of the stage.
    """

    def __init__(
        self, in_channels: int, halved: bool, blocks: Sequence[AggregationBlock], data_format: DataFormat
    ) -> None:
        super().__init__()
        conv = kaiming_conv(data_format)
        self.downsample = conv(in_channels, in_channels, 3, 2, in_channels) if halved else nn.Identity()
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H, W], or to [B, C', H/2, W/2] if ``halved``."""
        return self.blocks(self.downsample(x))


def _dropout_factors(model: nn.Layer) -> dict[str, float]:
    # timm's weights expect PyTorch's dropout, which scales in training; see `mode` below.
    return {"fc.weight": 1 / (1 - model.dropout.p)}


class PPHGNet(nn.Layer):  # type: ignore[misc]
    """The PP-HGNet network.

    Args:
        stem: Number of channels of the first three convolutions.
        middles: Number of channels between the layers of a block, per stage.
        widths: Number of output channels per stage.
        depths: Number of blocks per stage.
        layers: Number of layers of a block.
        dropout: Dropout rate before the classifier.
    """

    public_names: ClassVar[PublicNames] = PublicNames(
        timm={
            r"\.aggregation_conv\.|\.aggregation_squeeze_conv\.": ".aggregation.0.",
            r"\.att\.conv\.": ".aggregation.1.conv.",
            r"\.aggregation_excitation_conv\.": ".aggregation.1.",
            r"^last_conv\.": "head.last_conv.0.",
            r"^lab\.": "head.last_conv.2.",
            r"^fc\.": "head.fc.",
            r"^stem\.": "stem.stem.",
        },
        factors=_dropout_factors,
    )

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
        conv = partial(kaiming_conv(data_format), act=F.relu)
        inputs = (input_image_channel, *stem)
        self.stem = nn.Sequential(*(conv(inputs[i], width, 3, 1 if i else 2) for i, width in enumerate(stem)))
        self.pool = nn.MaxPool2D(3, stride=2, padding=1, data_format=data_format)
        self.stages = nn.LayerList()
        channels = stem[-1]
        for middle, out, depth in zip(middles, widths, depths, strict=True):
            blocks = [
                _block(out if i else channels, middle, out, layers, i > 0, data_format) for i in range(depth)
            ]
            self.stages.append(PPHGNetStage(channels, len(self.stages) > 0, blocks, data_format))
            channels = out
        self.avg_pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        normal = paddle.ParamAttr(initializer=nn.initializer.KaimingNormal())
        self.last_conv = nn.Conv2D(
            channels, _FEATURES, 1, weight_attr=normal, bias_attr=False, data_format=data_format
        )
        # PaddleClas's weights expect this mode, which scales in inference instead of training.
        self.dropout = nn.Dropout(dropout, mode="downscale_in_infer")
        self.fc = nn.Linear(_FEATURES, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        x = self.pool(self.stem(x))
        for stage in self.stages:
            x = stage(x)
        x = F.relu(self.last_conv(self.avg_pool(x)))
        return self.fc(self.dropout(x).flatten(1))


def _block(
    in_channels: int, middle: int, out_channels: int, layers: int, shortcut: bool, data_format: DataFormat
) -> AggregationBlock:
    conv = partial(kaiming_conv(data_format), act=F.relu)
    aggregation = (
        conv(in_channels + layers * middle, out_channels, 1),
        EffectiveSqueezeExcitation(out_channels, data_format),
    )
    sequence = [conv(middle if i else in_channels, middle, 3) for i in range(layers)]
    return AggregationBlock(sequence, aggregation, shortcut, data_format)


PPHGNet_tiny = partial(PPHGNet, (48, 48, 96), (96, 128, 160, 192), (224, 448, 512, 768), (1, 1, 2, 1), 5)
PPHGNet_small = partial(PPHGNet, (64, 64, 128), (128, 160, 192, 224), (256, 512, 768, 1024), (1, 1, 2, 1), 6)
PPHGNet_base = partial(
    PPHGNet, (96, 96, 160), (192, 224, 256, 288), (320, 640, 960, 1280), (1, 2, 3, 2), 7, 0.2
)


_EVEN = [0, 1, 0, 1]  # padding at the bottom and on the right, so that a 2x2 kernel does not change the size


class LearnedAffine(nn.Layer):  # type: ignore[misc]
    """Multiplies all values by a learned number and adds another. Both have 1/100 of the learning rate."""

    def __init__(self) -> None:
        super().__init__()
        # Their learning rate is a hundredth of that of the other parameters, as in PaddleClas (`lab_lr`).
        self.scale, self.bias = (
            self.create_parameter(
                [1], attr=paddle.ParamAttr(initializer=nn.initializer.Constant(start), learning_rate=0.01)
            )
            for start in (1.0, 0.0)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, ...] to the same shape."""
        return self.scale.astype(x.dtype) * x + self.bias.astype(x.dtype)  # avoids float32 under AMP


class AffineConvNorm(ConvNorm):
    """A `ConvNorm` with a `LearnedAffine` after its activation, if there is an activation."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.lab = nn.Identity() if self._act is None else LearnedAffine()

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/stride, W/stride]."""
        return self.lab(ConvNorm.forward(self, x))  # Paddle 2.6 cannot compile super()


class LightConv(nn.Layer):  # type: ignore[misc]
    """A 1x1 convolution followed by a depthwise convolution."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int, conv: partial[ConvNorm]) -> None:
        super().__init__()
        self.conv1 = conv(in_channels, out_channels, 1, act=None)
        self.conv2 = conv(out_channels, out_channels, kernel, 1, out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H, W]."""
        return self.conv2(self.conv1(x))


class PPHGNetV2Stem(nn.Layer):  # type: ignore[misc]
    """Reduces the size to a quarter.

    At half the size, a branch of two convolutions runs in parallel with a pooling layer.
    """

    def __init__(
        self,
        in_channels: int,
        middle: int,
        out_channels: int,
        conv: partial[ConvNorm],
        data_format: DataFormat,
    ) -> None:
        super().__init__()
        self.stem1 = conv(in_channels, middle, 3, 2)
        self.stem2a = conv(middle, middle // 2, 2, padding=_EVEN)
        self.stem2b = conv(middle // 2, middle, 2, padding=_EVEN)
        self.stem3 = conv(2 * middle, middle, 3, 2)
        self.stem4 = conv(middle, out_channels, 1)
        self.pool = nn.MaxPool2D(2, 1, _EVEN, data_format=data_format)
        self._channels = 1 if data_format == "NCHW" else 3

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/4, W/4]."""
        x = self.stem1(x)
        both = [self.pool(x), self.stem2b(self.stem2a(x))]
        return self.stem4(self.stem3(paddle.concat(both, axis=self._channels)))


class PPHGNetV2Block(AggregationBlock):
    """An `AggregationBlock` whose parameters have the names of V2."""

    names = ("aggregation_squeeze_conv", "aggregation_excitation_conv")


class PPHGNetV2(nn.Layer):  # type: ignore[misc]
    """The PP-HGNetV2 network.

    Args:
        stem: Number of channels of the stem's inner convolutions, and of its last convolution.
        middles: Number of channels between the layers of a block, per stage.
        widths: Number of output channels per stage.
        depths: Number of blocks per stage.
        layers: Number of layers of a block.
        affine: Whether a `LearnedAffine` follows each activation.
    """

    public_names: ClassVar[PublicNames] = PublicNames(
        timm={
            r"\.aggregation_conv\.|\.aggregation_squeeze_conv\.": ".aggregation.0.",
            r"\.att\.conv\.": ".aggregation.1.conv.",
            r"\.aggregation_excitation_conv\.": ".aggregation.1.",
            r"^last_conv\.": "head.last_conv.0.",
            r"^lab\.": "head.last_conv.2.",
            r"^fc\.": "head.fc.",
        },
    )

    def __init__(
        self,
        stem: tuple[int, int],
        middles: tuple[int, int, int, int],
        widths: tuple[int, int, int, int],
        depths: tuple[int, int, int, int],
        layers: int,
        affine: bool = False,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
    ) -> None:
        super().__init__()
        conv = partial(kaiming_conv(data_format, AffineConvNorm if affine else ConvNorm), act=F.relu)
        self.stem = PPHGNetV2Stem(input_image_channel, *stem, conv, data_format)
        self.stages = nn.LayerList()
        channels = stem[-1]
        for stage, (middle, out, depth) in enumerate(zip(middles, widths, depths, strict=True)):
            # The last two stages have light layers.
            layer = partial(LightConv, kernel=5, conv=conv) if stage > 1 else partial(conv, kernel=3)
            blocks = []
            for i in range(depth):
                inputs = out if i else channels
                sequence = [layer(middle if j else inputs, middle) for j in range(layers)]
                aggregation = (conv(inputs + layers * middle, out // 2, 1), conv(out // 2, out, 1))
                blocks.append(PPHGNetV2Block(sequence, aggregation, i > 0, data_format))
            self.stages.append(PPHGNetStage(channels, stage > 0, blocks, data_format))
            channels = out
        self.avg_pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        normal = paddle.ParamAttr(initializer=nn.initializer.KaimingNormal())
        self.last_conv = nn.Conv2D(
            channels, _FEATURES, 1, weight_attr=normal, bias_attr=False, data_format=data_format
        )
        self.lab = LearnedAffine() if affine else nn.Identity()
        self.fc = nn.Linear(_FEATURES, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        x = self.lab(F.relu(self.last_conv(self.avg_pool(x))))
        return self.fc(x.flatten(1))


_SMALL = (64, 256, 512, 1024)
_BASE = (128, 512, 1024, 2048)

PPHGNetV2_B0 = partial(PPHGNetV2, (16, 16), (16, 32, 64, 128), _SMALL, (1, 1, 2, 1), 3, True)
PPHGNetV2_B1 = partial(PPHGNetV2, (24, 32), (32, 48, 96, 192), _SMALL, (1, 1, 2, 1), 3, True)
PPHGNetV2_B2 = partial(PPHGNetV2, (24, 32), (32, 64, 128, 256), (96, 384, 768, 1536), (1, 1, 3, 1), 4, True)
PPHGNetV2_B3 = partial(PPHGNetV2, (24, 32), (32, 64, 128, 256), _BASE, (1, 1, 3, 1), 5, True)
PPHGNetV2_B4 = partial(PPHGNetV2, (32, 48), (48, 96, 192, 384), _BASE, (1, 1, 3, 1), 6)
PPHGNetV2_B5 = partial(PPHGNetV2, (32, 64), (64, 128, 256, 512), _BASE, (1, 2, 5, 2), 6)
PPHGNetV2_B6 = partial(PPHGNetV2, (48, 96), (96, 192, 384, 768), (192, 512, 1024, 2048), (2, 3, 6, 3), 6)
