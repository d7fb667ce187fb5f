"""MobileNetV4 (Qin et al. 2024, https://arxiv.org/abs/2404.10518)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar, NamedTuple

from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import Activation, ConvNorm, DataFormat
from ppcls.arch.layers.drop_path import dropout
from ppcls.arch.layers.mobile import MultiQueryAttention
from ppcls.arch.layers.sequence import LayerScale, ResidualSequence
from ppcls.arch.public.names import PublicNames


class V4Convolution(NamedTuple):
    """A block that is a convolution, with its own number of output channels."""

    channels: int
    kernel: int


class V4Edge(NamedTuple):
    """An inverted residual with a full convolution, and ``width`` channels within the block."""

    width: int


class V4Inverted(NamedTuple):
    """A universal inverted residual (figure 4).

    Attributes:
        width: Number of channels within the block.
        first: Kernel of the depthwise convolution before the expansion; 0 for no convolution.
        second: Kernel of the depthwise convolution after the expansion; 0 for no convolution.
    """

    width: int
    first: int
    second: int


class V4Attention(NamedTuple):
    """A `MultiQueryAttention`.

    Attributes:
        width: Width of a head.
        heads: Number of heads.
        reduction: Stride of keys and values.
    """

    width: int
    heads: int
    reduction: int


Block = V4Convolution | V4Edge | V4Inverted | V4Attention


class V4Stage(NamedTuple):
    """Blocks with the same number of output channels. The first block halves the size."""

    channels: int
    blocks: tuple[Block, ...]


# Stages of the networks (tables 11 to 15).
_SMALL = (
    V4Stage(
        32,
        (
            V4Convolution(32, 3),
            V4Convolution(32, 1),
        ),
    ),
    V4Stage(
        64,
        (
            V4Convolution(96, 3),
            V4Convolution(64, 1),
        ),
    ),
    V4Stage(
        96,
        (
            V4Inverted(192, 5, 5),
            *[V4Inverted(192, 0, 3)] * 4,
            V4Inverted(384, 3, 0),
        ),
    ),
    V4Stage(
        128,
        (
            V4Inverted(576, 3, 3),
            V4Inverted(512, 5, 5),
            V4Inverted(512, 0, 5),
            V4Inverted(384, 0, 5),
            *[V4Inverted(512, 0, 3)] * 2,
        ),
    ),
)
_MEDIUM = (
    V4Stage(48, (V4Edge(128),)),
    V4Stage(
        80,
        (
            V4Inverted(192, 3, 5),
            V4Inverted(160, 3, 3),
        ),
    ),
    V4Stage(
        160,
        (
            V4Inverted(480, 3, 5),
            *[V4Inverted(640, 3, 3)] * 2,
            V4Inverted(640, 3, 5),
            V4Inverted(640, 3, 3),
            V4Inverted(640, 3, 0),
            V4Inverted(320, 0, 0),
            V4Inverted(640, 3, 0),
        ),
    ),
    V4Stage(
        256,
        (
            V4Inverted(960, 5, 5),
            V4Inverted(1024, 5, 5),
            *[V4Inverted(1024, 3, 5)] * 2,
            V4Inverted(1024, 0, 0),
            V4Inverted(1024, 3, 0),
            V4Inverted(512, 3, 5),
            V4Inverted(1024, 5, 5),
            *[V4Inverted(1024, 0, 0)] * 2,
            V4Inverted(512, 5, 0),
        ),
    ),
)
_LARGE = (
    V4Stage(48, (V4Edge(96),)),
    V4Stage(
        96,
        (
            V4Inverted(192, 3, 5),
            V4Inverted(384, 3, 3),
        ),
    ),
    V4Stage(
        192,
        (
            V4Inverted(384, 3, 5),
            *[V4Inverted(768, 3, 3)] * 3,
            V4Inverted(768, 3, 5),
            *[V4Inverted(768, 5, 3)] * 5,
            V4Inverted(768, 3, 0),
        ),
    ),
    V4Stage(
        512,
        (
            V4Inverted(768, 5, 5),
            *[V4Inverted(2048, 5, 5)] * 3,
            V4Inverted(2048, 5, 0),
            V4Inverted(2048, 5, 3),
            *[V4Inverted(2048, 5, 0)] * 2,
            V4Inverted(2048, 5, 3),
            V4Inverted(2048, 5, 5),
            *[V4Inverted(2048, 5, 0)] * 3,
        ),
    ),
)
_HYBRID_MEDIUM = (
    *_MEDIUM[:2],
    V4Stage(
        160,
        (
            V4Inverted(480, 3, 5),
            V4Inverted(320, 0, 0),
            V4Inverted(640, 3, 3),
            V4Inverted(640, 3, 5),
            V4Attention(64, 4, 2),
            V4Inverted(640, 3, 3),
            V4Attention(64, 4, 2),
            V4Inverted(640, 3, 0),
            V4Attention(64, 4, 2),
            V4Inverted(640, 3, 3),
            V4Attention(64, 4, 2),
            V4Inverted(640, 3, 0),
        ),
    ),
    V4Stage(
        256,
        (
            V4Inverted(960, 5, 5),
            V4Inverted(1024, 5, 5),
            *[V4Inverted(1024, 3, 5)] * 2,
            V4Inverted(512, 0, 0),
            V4Inverted(512, 3, 5),
            V4Inverted(512, 0, 0),
            V4Inverted(1024, 0, 0),
            V4Attention(64, 4, 1),
            V4Inverted(1024, 3, 0),
            V4Attention(64, 4, 1),
            V4Inverted(1024, 5, 5),
            V4Attention(64, 4, 1),
            V4Inverted(1024, 5, 0),
            V4Attention(64, 4, 1),
            V4Inverted(1024, 5, 0),
        ),
    ),
)
_HYBRID_LARGE = (
    *_LARGE[:2],
    V4Stage(
        192,
        (
            V4Inverted(384, 3, 5),
            *[V4Inverted(768, 3, 3)] * 3,
            V4Inverted(768, 3, 5),
            *[V4Inverted(768, 5, 3)] * 2,
            V4Attention(48, 8, 2),
            V4Inverted(768, 5, 3),
            V4Attention(48, 8, 2),
            V4Inverted(768, 5, 3),
            V4Attention(48, 8, 2),
            V4Inverted(768, 5, 3),
            V4Attention(48, 8, 2),
            V4Inverted(768, 3, 0),
        ),
    ),
    V4Stage(
        512,
        (
            V4Inverted(768, 5, 5),
            *[V4Inverted(2048, 5, 5)] * 3,
            V4Inverted(2048, 5, 0),
            V4Inverted(2048, 5, 3),
            *[V4Inverted(2048, 5, 0)] * 2,
            V4Inverted(2048, 5, 3),
            V4Inverted(2048, 5, 5),
            V4Attention(64, 8, 1),
            V4Inverted(2048, 5, 0),
            V4Attention(64, 8, 1),
            V4Inverted(2048, 5, 0),
            V4Attention(64, 8, 1),
            V4Inverted(2048, 5, 0),
            V4Attention(64, 8, 1),
            V4Inverted(2048, 5, 0),
        ),
    ),
)
_LAST = 960
_FEATURES = 1280


class MobileNetV4(nn.Layer):  # type: ignore[misc]
    """The MobileNetV4 network.

    Args:
        stages: Stages of the network.
        stem: Number of channels of the first convolution.
        act: Activation.
        scale: Initial value of a learned factor per channel in inverted residuals and attention; 0 for no
            factor.
        drop_path_rate: Probability of skipping the last block, decreasing linearly to 0 for the first block.
        drop_rate: Dropout rate before the classifier.
        timm_variant: Whether attention divides products by the square root of the width of one head, as in
            timm, instead of the width of all heads.
    """

    public_names: ClassVar[PublicNames] = PublicNames(
        timm={
            r"^conv_stem\.": ("conv_stem.", "bn1."),
            r"^conv_head\.": ("conv_head.", "norm_head."),
            r"^blocks\.(\d+)\.": "blocks.{stage}.{block}.",
            r"^(blocks\.\d+\.\d+)\.bn\.": r"\1.bn1.",
            r"\.conv_exp\.": (".conv_exp.", ".bn1."),
            r"\.conv_pwl\.": (".conv_pwl.", ".bn2."),
            r"\.(key|value)_down_proj\.": (r".attn.\1.down_conv.", r".attn.\1.norm."),
            r"\.(query|key|value)_proj\.": r".attn.\1.proj.",
            r"^(blocks\.\d+\.\d+)\.proj\.": r"\1.attn.output.proj.",
        },
        variant="attention in PaddleClas's MobileNetV4 divides its scores by a larger number",
    )

    def __init__(
        self,
        stages: Sequence[V4Stage],
        stem: int = 32,
        act: Activation = F.relu,
        scale: float = 0.0,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
        drop_path_rate: float = 0.0,
        drop_rate: float = 0.0,
        timm_variant: bool = False,
    ) -> None:
        super().__init__()
        self._conv = conv = partial(ConvNorm, data_format=data_format, decay=False)
        self._act = act
        self._scale = scale
        self._data_format = data_format
        self.depths = [*(len(stage.blocks) for stage in stages), 1]
        self.timm_variant = timm_variant or not scale  # only hybrid networks have factors and attention
        self._per_head = timm_variant
        self.conv_stem = conv(input_image_channel, stem, 3, 2, act=act)
        self.blocks = nn.Sequential()
        channels = stem
        count = sum(self.depths)
        specs = [(stage, number, spec) for stage in stages for number, spec in enumerate(stage.blocks)]
        for i, (stage, number, spec) in enumerate(specs):
            out = spec.channels if isinstance(spec, V4Convolution) else stage.channels
            stride = 1 if number else 2
            block = self._build_block(spec, channels, out, stride, drop_path_rate * i / count)
            self.blocks.add_sublayer(str(i), block)
            channels = out
        self.blocks.add_sublayer(str(count - 1), conv(channels, _LAST, 1, act=act))
        self.global_pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self.conv_head = conv(_LAST, _FEATURES, 1, act=act)
        self.dropout = dropout(drop_rate)
        self.classifier = nn.Linear(_FEATURES, class_num)

    def _build_block(self, spec: Block, channels: int, out: int, stride: int, drop: float) -> nn.Layer:
        """Returns a block.

        Args:
            spec: Settings of the block.
            channels: Number of channels before the block.
            out: Number of channels after the block.
            stride: Stride of the block.
            drop: Probability of skipping the block in training.
        """
        conv = self._conv
        act = self._act
        layers: dict[str, nn.Layer] = {}
        match spec:
            case V4Convolution(kernel=kernel):
                return conv(channels, out, kernel, stride, act=act)
            case V4Attention(width, heads, reduction):
                factor = (width if self._per_head else width * heads) ** -0.5
                settings = (factor, self._scale, drop, self._data_format)
                return MultiQueryAttention(channels, width, heads, reduction, *settings)
            case V4Edge(width):
                layers["conv_exp"] = conv(channels, width, 3, stride, act=act)
                layers["conv_pwl"] = conv(width, out, 1)
            case V4Inverted(width, first, second):
                if first:
                    layers["dw_start"] = conv(channels, channels, first, 1, channels)
                layers["pw_exp"] = conv(channels, width, 1, act=act)
                if second:
                    layers["dw_mid"] = conv(width, width, second, stride, width, act)
                layers["pw_proj"] = conv(width, out, 1)
                if self._scale:
                    layers["layer_scale"] = LayerScale(out, self._scale, self._data_format)
        return ResidualSequence(layers, stride == 1 and channels == out, drop)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        x = self.conv_head(self.global_pool(self.blocks(self.conv_stem(x))))
        return self.classifier(self.dropout(x.flatten(1)))


_HYBRID = partial(MobileNetV4, scale=1e-5)
MobileNetV4_conv_small = partial(MobileNetV4, _SMALL)
MobileNetV4_conv_medium = partial(MobileNetV4, _MEDIUM)
MobileNetV4_conv_large = partial(MobileNetV4, _LARGE, 24)
MobileNetV4_hybrid_medium = partial(_HYBRID, _HYBRID_MEDIUM)
MobileNetV4_hybrid_large = partial(_HYBRID, _HYBRID_LARGE, 24, F.gelu)
