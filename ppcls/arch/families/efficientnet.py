"""EfficientNet (Tan and Le 2019, https://arxiv.org/abs/1905.11946).

Convolutions with stride 2 are padded as in TensorFlow, for the input size of the published models. If the
feature map before such a convolution has an even size, more rows and columns are added on the right and at
the bottom. B0_small has no squeeze-and-excitation, and pads all sides equally.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import ConvNorm, DataFormat, round_channels, uniform_linear
from ppcls.arch.layers.drop_path import DropPath
from ppcls.arch.layers.sequence import add_branch
from ppcls.arch.layers.squeeze_excitation import SqueezeExcitation
from ppcls.arch.public.names import EPSILON, PublicNames

# Table 1 of the paper: number of blocks, kernel, stride of the first block, expansion, channels.
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
_STEM = 32
_FEATURES = 1280


@dataclass(frozen=True)
class EfficientNetSettings:
    """The settings that PaddleClas's key ``override_params`` can change.

    Attributes:
        batch_norm_momentum: Weight of the old value in updates of batch norm's running statistics.
        batch_norm_epsilon: Epsilon of batch norm.
        depth_trunc: Rounding of the numbers of blocks: ``ceil`` or ``round``.
        drop_connect_rate: Probability of skipping the last block. It decreases linearly towards the first
            block.
    """

    # As in the code of the authors, which uses TensorFlow; Paddle's defaults are 0.9 and 1e-5.
    batch_norm_momentum: float = 0.99
    batch_norm_epsilon: float = 1e-3
    depth_trunc: str = "ceil"
    drop_connect_rate: float = 0.2

    def conv(self, data_format: DataFormat) -> partial[ConvNorm]:
        """Returns a constructor of convolutions with these settings."""
        return partial(
            EfficientNetConvNorm,
            data_format=data_format,
            epsilon=self.batch_norm_epsilon,
            momentum=self.batch_norm_momentum,
        )

    def blocks(self, count: float) -> int:
        """Returns ``count``, a number of blocks, rounded according to ``depth_trunc``."""
        return max(1, round(count)) if self.depth_trunc == "round" else math.ceil(count)


class Nested(nn.Layer):  # type: ignore[misc]
    """Contains a layer as ``_conv``, which adds one level to the names of its parameters."""

    def __init__(self, layer: nn.Layer) -> None:
        super().__init__()
        self._conv = layer

    def forward(self, x: Tensor) -> Tensor:
        """Returns the output of the layer."""
        return self._conv(x)


class EfficientNetConvNorm(ConvNorm):
    """A `ConvNorm` whose parameters have the names of this family."""

    names = ("_conv", "_bn")

    @staticmethod
    def place(convolution: nn.Conv2D) -> nn.Layer:
        """Returns a `Nested` layer that contains the convolution."""
        return Nested(convolution)


def _padding(kernel: int, stride: int, side: int) -> int | list[int]:
    """Returns the padding of a convolution for images of ``side``.

    The result is [top, bottom, left, right], or one number for all edges.
    """
    if stride == 1 or side % stride:
        return kernel // 2
    # The padding has one more row and column in total, so that odd sizes are also rounded up.
    before = (kernel - stride) // 2
    return [before, before + stride, before, before + stride]


class EfficientNetSqueezeExcitation(SqueezeExcitation):
    """A `SqueezeExcitation` whose parameters have the names of this family."""

    names = ("_conv1", "_conv2")

    @staticmethod
    def convolution(in_channels: int, out_channels: int, data_format: DataFormat) -> nn.Layer:
        """Returns a `Nested` 1x1 convolution with a bias."""
        return Nested(nn.Conv2D(in_channels, out_channels, 1, data_format=data_format))


class MBConv(nn.Layer):  # type: ignore[misc]
    """An inverted residual with squeeze-and-excitation and stochastic depth.

    Args:
        expansion: Number of channels of the depthwise convolution divided by ``in_channels``.
        kernel: Kernel of the depthwise convolution.
        stride: Stride of the depthwise convolution.
        side: Side of the feature map for the published input size.
        drop: Probability of skipping the block for an image in training.
        use_se: Whether to use squeeze-and-excitation.
        conv: Constructor of the convolutions.
        initializer: Initializer of the depthwise convolution; Paddle's default if None.
    """

    adds_branch: ClassVar[bool] = True  # its sums can use the kernels of `ppcls.arch.fused`

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        expansion: int,
        kernel: int,
        stride: int,
        side: int,
        drop: float,
        use_se: bool,
        conv: partial[ConvNorm],
        data_format: DataFormat,
        initializer: nn.initializer.Initializer | None = None,
    ) -> None:
        super().__init__()
        width = in_channels * expansion
        padding = _padding(kernel, stride, side)
        self._ecn = Nested(conv(in_channels, width, 1, act=F.swish)) if expansion > 1 else nn.Identity()
        depthwise = partial(conv, padding=padding, initializer=initializer)
        self._dcn = Nested(depthwise(width, width, kernel, stride, width, F.swish))
        # A quarter of the input of the block, not of the expanded width, as in the code of the authors.
        squeezed = max(1, in_channels // 4)
        self._se = (
            EfficientNetSqueezeExcitation(width, squeezed, F.swish, F.sigmoid, data_format)
            if use_se
            else nn.Identity()
        )
        self._pcn = Nested(conv(width, out_channels, 1))
        self._shortcut = stride == 1 and in_channels == out_channels
        self._drop = DropPath(drop) if self._shortcut and drop else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/stride, W/stride]."""
        y = self._pcn(self._se(self._dcn(self._ecn(x))))
        return add_branch(self, x, y, self._drop) if self._shortcut else y


class EfficientNetFeatures(nn.Layer):  # type: ignore[misc]
    """The first convolution and all blocks of an `EfficientNet`.

    Args:
        width: Factor for all numbers of channels.
        depth: Factor for the number of blocks of each stage.
        side: Side of the images in the publication; 1 to pad evenly.
        use_se: Whether blocks use squeeze-and-excitation.
        settings: Settings of the network.
        tiny: Argument of `EfficientNet`.
    """

    def __init__(
        self,
        width: float,
        depth: float,
        side: int,
        use_se: bool,
        in_channels: int,
        data_format: DataFormat,
        settings: EfficientNetSettings,
        tiny: bool = False,
    ) -> None:
        super().__init__()
        channels = _STEM if tiny else round_channels(_STEM * width)
        initializer = nn.initializer.KaimingNormal() if tiny else None
        conv = settings.conv(data_format)
        stem = conv(in_channels, channels, 3, 2, act=F.swish, padding=_padding(3, 2, side))
        self._conv_stem = Nested(stem)
        side = math.ceil(side / 2)
        total = sum(settings.blocks(repeats * depth) for repeats, *_ in STAGES)
        self._blocks: list[MBConv] = []
        for repeats, kernel, first_stride, expansion, out in STAGES:
            out = round_channels(out * width)
            for i in range(settings.blocks(repeats * depth)):
                number = len(self._blocks)
                stride = 1 if i else first_stride
                block = MBConv(
                    channels,
                    out,
                    expansion,
                    kernel,
                    stride,
                    side,
                    settings.drop_connect_rate * number / total,
                    use_se,
                    conv,
                    data_format,
                    initializer,
                )
                # The names in checkpoints of PaddleClas: with a point at the end, and different for the
                # first block of a stage.
                name = f"block.{number}." if i else f"_blocks.{number}."
                self._blocks.append(self.add_sublayer(name, block))
                channels = out
                side = math.ceil(side / stride)
        self.out_channels = channels

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, out_channels, H/32, W/32]."""
        x = self._conv_stem(x)
        for block in self._blocks:
            x = block(x)
        return x


_TORCHVISION_B5 = (
    2048  # features of EfficientNetB5; torchvision has the same epsilon as PaddleClas from B5 on
)


def _public_epsilon(model: nn.Layer, timm: bool) -> float | None:
    large = model._fc.weight.shape[0] >= _TORCHVISION_B5
    return EPSILON if model.timm_variant and (timm or not large) else None


def reject_padding(model: nn.Layer, _names: Collection[str], source: str) -> str:
    """Returns why a file does not fit: padding and epsilon differ. Only the name of the file shows it."""
    is_tensorflow = "tf_efficientnet" in source
    if model.timm_variant and is_tensorflow:
        return "this network pads as in TensorFlow; set Arch.timm_variant: False"
    if not model.timm_variant and not is_tensorflow:
        return (
            "expected a file name with 'tf_efficientnet'. Other EfficientNets of timm and torchvision differ "
            "in padding and epsilon; to use them, set Arch.timm_variant: True"
        )
    return ""


class EfficientNet(nn.Layer):  # type: ignore[misc]
    """The EfficientNet network.

    Args:
        width: Factor for all numbers of channels.
        depth: Factor for the number of blocks of each stage.
        side: Side of the images in the publication; 1 to pad evenly.
        dropout: Dropout rate before the classifier.
        use_se: Whether blocks use squeeze-and-excitation.
        tiny: Whether to build a TinyNet: the first and the last convolution ignore ``width``, and depthwise
            convolutions have Kaiming's initial weights.
        override_params: Values of `EfficientNetSettings` to change, by name.
        timm_variant: Whether to pad evenly, as in timm's networks whose names do not begin with ``tf_``, and
            to round TinyNet's numbers of blocks as in its paper.
    """

    public_names: ClassVar[PublicNames] = PublicNames(
        timm={
            r"^_ef\._conv_stem\._conv\._conv\._conv\.": "conv_stem.",
            r"^_ef\._conv_stem\._conv\._bn\.|^_ef\._conv_stem\._bn\.": "bn1.",
            r"^_conv\._conv\._conv\.": "conv_head.",
            r"^_conv\._bn\.": "bn2.",
            r"^_fc\.": "classifier.",
            r"^_ef\.(?:_blocks|block)\.(\d+)\.\.": "blocks.{stage}.{block}.",
            r"\._se\._conv1\._conv\.": ".se.conv_reduce.",
            r"\._se\._conv2\._conv\.": ".se.conv_expand.",
            r"cn\._conv\._conv\._conv\.": "cn.conv.",
            r"cn\.(?:_conv\.)?_bn\.": "cn.bn.",
            r"^(blocks\.0\.\d+)\._dcn\.": (r"\1.conv_dw.", r"\1.bn1."),
            r"^(blocks\.0\.\d+)\._pcn\.": (r"\1.conv_pw.", r"\1.bn2."),
            r"\._ecn\.": (".conv_pw.", ".bn1."),
            r"\._dcn\.": (".conv_dw.", ".bn2."),
            r"\._pcn\.": (".conv_pwl.", ".bn3."),
        },
        torchvision={
            r"^_ef\._conv_stem\._conv\._conv\._conv\.": "features.0.0.",
            r"^_ef\._conv_stem\._conv\._bn\.|^_ef\._conv_stem\._bn\.": "features.0.1.",
            r"^_conv\._conv\._conv\.": "features.8.0.",
            r"^_conv\._bn\.": "features.8.1.",
            r"^_fc\.": "classifier.1.",
            r"^_ef\.(?:_blocks|block)\.(\d+)\.\.": "features.{stage+1}.{block}.block.",
            r"\._se\._conv(\d)\._conv\.": r"._se.fc\1.",
            r"cn\._conv\._conv\._conv\.": "cn.0.",
            r"cn\._conv\._bn\.": "cn.1.",
            r"^(features\.1\.\d+\.block)\._dcn\.": r"\1.0.",
            r"^(features\.1\.\d+\.block)\._se\.": r"\1.1.",
            r"^(features\.1\.\d+\.block)\._pcn\.": r"\1.2.",
            r"\._ecn\.": ".0.",
            r"\._dcn\.": ".1.",
            r"\._se\.": ".2.",
            r"\._pcn\.": ".3.",
        },
        starts=r"^_ef\._blocks\.(\d+)\.",
        epsilon=_public_epsilon,
        reject_file=reject_padding,
    )

    def __init__(
        self,
        width: float,
        depth: float,
        side: int,
        dropout: float,
        use_se: bool = True,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
        timm_variant: bool = False,
        tiny: bool = False,
        override_params: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        rounding = {"depth_trunc": "round"} if tiny and timm_variant else {}
        settings = EfficientNetSettings(**{**rounding, **(override_params or {})})
        self.timm_variant = timm_variant or (tiny and settings.depth_trunc == "round")
        # With an odd side, all sides are padded equally, as in timm's networks without the prefix tf_.
        side = 1 if timm_variant else side
        self._ef = EfficientNetFeatures(
            width, depth, side, use_se, input_image_channel, data_format, settings, tiny
        )
        features = _FEATURES if tiny else round_channels(_FEATURES * width)
        self._conv = settings.conv(data_format)(self._ef.out_channels, features, 1, act=F.swish)
        self._pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self._drop = nn.Dropout(dropout)
        self._fc = uniform_linear(features, class_num) if tiny else nn.Linear(features, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        return self._fc(self._drop(self._pool(self._conv(self._ef(x)))).flatten(1))


EfficientNetB0_small = partial(EfficientNet, 1.0, 1.0, 1, 0.2, False)
EfficientNetB0 = partial(EfficientNet, 1.0, 1.0, 224, 0.2)
EfficientNetB1 = partial(EfficientNet, 1.0, 1.1, 240, 0.2)
EfficientNetB2 = partial(EfficientNet, 1.1, 1.2, 260, 0.3)
EfficientNetB3 = partial(EfficientNet, 1.2, 1.4, 300, 0.3)
EfficientNetB4 = partial(EfficientNet, 1.4, 1.8, 380, 0.4)
EfficientNetB5 = partial(EfficientNet, 1.6, 2.2, 456, 0.4)
EfficientNetB6 = partial(EfficientNet, 1.8, 2.6, 528, 0.5)
EfficientNetB7 = partial(EfficientNet, 2.0, 3.1, 600, 0.5)


class TinyNet(EfficientNet):
    """TinyNet (Han et al. 2020, https://arxiv.org/abs/2010.14819), which pads evenly."""

    public_names: ClassVar[PublicNames] = replace(
        EfficientNet.public_names,
        variant="PaddleClas's TinyNet rounds its numbers of blocks up",
    )


_TINY = partial(TinyNet, side=1, dropout=0.2, tiny=True)
TinyNet_A = partial(_TINY, 1.0, 1.2)
TinyNet_B = partial(_TINY, 0.75, 1.1)
TinyNet_C = partial(_TINY, 0.54, 0.85)
TinyNet_D = partial(_TINY, 0.54, 0.695)
TinyNet_E = partial(_TINY, 0.51, 0.6)
