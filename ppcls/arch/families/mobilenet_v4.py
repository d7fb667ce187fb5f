"""MobileNetV4 (Qin et al. 2024, https://arxiv.org/abs/2404.10518)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import Activation, ConvNorm, DataFormat
from ppcls.arch.layers.drop_path import dropout
from ppcls.arch.layers.mobile import MultiQueryAttention
from ppcls.arch.layers.sequence import LayerScale, ResidualSequence
from ppcls.arch.public.names import PublicNames

# Stages (tables 11 to 15), written as "channels: blocks". The first block of a stage halves the size. "*3"
# repeats a block three times. A block has one of these forms:
#   conv/channels/kernel: convolution
#   edge/inner channels: inverted residual with a full convolution
#   attention/width of a head/number of heads/stride of keys and values: `MultiQueryAttention`
#   inner channels/first depthwise kernel/second depthwise kernel: inverted residual; 0 for no convolution
_SMALL = (
    "32: conv/32/3 conv/32/1",
    "64: conv/96/3 conv/64/1",
    "96: 192/5/5 192/0/3*4 384/3/0",
    "128: 576/3/3 512/5/5 512/0/5 384/0/5 512/0/3*2",
)
_MEDIUM = (
    "48: edge/128",
    "80: 192/3/5 160/3/3",
    "160: 480/3/5 640/3/3*2 640/3/5 640/3/3 640/3/0 320/0/0 640/3/0",
    "256: 960/5/5 1024/5/5 1024/3/5*2 1024/0/0 1024/3/0 512/3/5 1024/5/5 1024/0/0*2 512/5/0",
)
_LARGE = (
    "48: edge/96",
    "96: 192/3/5 384/3/3",
    "192: 384/3/5 768/3/3*3 768/3/5 768/5/3*5 768/3/0",
    "512: 768/5/5 2048/5/5*3 2048/5/0 2048/5/3 2048/5/0*2 2048/5/3 2048/5/5 2048/5/0*3",
)
_A = "attention/64/4/2"
_B = "attention/64/4/1"
_HYBRID_MEDIUM = (
    *_MEDIUM[:2],
    f"160: 480/3/5 320/0/0 640/3/3 640/3/5 {_A} 640/3/3 {_A} 640/3/0 {_A} 640/3/3 {_A} 640/3/0",
    "256: 960/5/5 1024/5/5 1024/3/5*2 512/0/0 512/3/5 512/0/0 1024/0/0 "
    f"{_B} 1024/3/0 {_B} 1024/5/5 {_B} 1024/5/0 {_B} 1024/5/0",
)
_HYBRID_LARGE = (
    *_LARGE[:2],
    "192: 384/3/5 768/3/3*3 768/3/5 768/5/3*2"
    + 3 * " attention/48/8/2 768/5/3"
    + " attention/48/8/2 768/3/0",
    "512: 768/5/5 2048/5/5*3 2048/5/0 2048/5/3 2048/5/0*2 2048/5/3 2048/5/5"
    + 4 * " attention/64/8/1 2048/5/0",
)
_LAST = 960
_FEATURES = 1280


def _blocks(stage: str) -> list[tuple[int, int, str]]:
    """Returns the channels, the stride and the description of each block of a stage."""
    channels, _, blocks = stage.partition(": ")
    pairs = (block.partition("*") for block in blocks.split())
    specs = [spec for spec, _, count in pairs for _ in range(int(count or 1))]
    return [(int(channels), 1 if i else 2, spec) for i, spec in enumerate(specs)]


def _inverted_residual(
    conv: partial[ConvNorm], channels: int, out: int, stride: int, sizes: Sequence[int], act: Activation
) -> dict[str, nn.Layer]:
    """Returns the layers of a universal inverted residual (figure 4)."""
    width, first, second = sizes
    layers = {"dw_start": conv(channels, channels, first, 1, channels)} if first else {}
    layers["pw_exp"] = conv(channels, width, 1, act=act)
    if second:
        layers["dw_mid"] = conv(width, width, second, stride, width, act)
    return {**layers, "pw_proj": conv(width, out, 1)}


class MobileNetV4(nn.Layer):  # type: ignore[misc]
    """The MobileNetV4 network.

    Args:
        stages: Stages, in the format of `_SMALL`.
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
        stages: Sequence[str],
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
        conv = partial(ConvNorm, data_format=data_format, decay=False)
        self.depths = [*(len(_blocks(stage)) for stage in stages), 1]
        self.timm_variant = timm_variant or not scale  # only hybrid networks have factors and attention
        self.conv_stem = conv(input_image_channel, stem, 3, 2, act=act)
        self.blocks = nn.Sequential()
        channels = stem
        count = sum(self.depths)
        for i, (out, stride, spec) in enumerate(block for stage in stages for block in _blocks(stage)):
            kind = spec.partition("/")[0]
            sizes = [int(part) for part in spec.split("/") if part.isdigit()]
            drop = drop_path_rate * i / count
            if kind == "conv":
                block = conv(channels, sizes[0], sizes[1], stride, act=act)
                out = sizes[0]
            elif kind == "attention":
                width, heads, reduction = sizes
                factor = (width if timm_variant else width * heads) ** -0.5
                attention = partial(MultiQueryAttention, channels, width, heads, reduction)
                block = attention(factor, scale, drop, data_format)
            elif kind == "edge":
                expand = conv(channels, sizes[0], 3, stride, act=act)
                layers = {"conv_exp": expand, "conv_pwl": conv(sizes[0], out, 1)}
                block = ResidualSequence(layers, stride == 1 and channels == out, drop)
            else:
                layers = _inverted_residual(conv, channels, out, stride, sizes, act)
                layers |= {"layer_scale": LayerScale(out, scale, data_format)} if scale else {}
                block = ResidualSequence(layers, stride == 1 and channels == out, drop)
            self.blocks.add_sublayer(str(i), block)
            channels = out
        self.blocks.add_sublayer(str(count - 1), conv(channels, _LAST, 1, act=act))
        self.global_pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self.conv_head = conv(_LAST, _FEATURES, 1, act=act)
        self.dropout = dropout(drop_rate)
        self.classifier = nn.Linear(_FEATURES, class_num)

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
