"""GhostNet (Han et al. 2019, https://arxiv.org/abs/1911.11907)."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import (
    Activation,
    DataFormat,
    UnderscoredConvNorm,
    kaiming_conv,
    round_channels,
    uniform_linear,
)
from ppcls.arch.layers.squeeze_excitation import LinearSqueezeExcitation
from ppcls.arch.public.names import PublicNames

# Table 1 of the paper: kernel, width, channels, whether to use squeeze-and-excitation, stride.
_ROWS = (
    (3, 16, 16, False, 1),
    (3, 48, 24, False, 2),
    (3, 72, 24, False, 1),
    (5, 72, 40, True, 2),
    (5, 120, 40, True, 1),
    (3, 240, 80, False, 2),
    (3, 200, 80, False, 1),
    (3, 184, 80, False, 1),
    (3, 184, 80, False, 1),
    (3, 480, 112, True, 1),
    (3, 672, 112, True, 1),
    (5, 672, 160, True, 2),
    (5, 960, 160, False, 1),
    (5, 960, 160, True, 1),
    (5, 960, 160, False, 1),
    (5, 960, 160, True, 1),
)
_LAST = 960
_FEATURES = 1280
_DIVISOR = 4  # all numbers of channels are multiples of this number
_GATE = partial(paddle.clip, min=0.0, max=1.0)


_conv = partial(kaiming_conv, kind=UnderscoredConvNorm)


class GhostModule(nn.Layer):  # type: ignore[misc]
    """A 1x1 convolution for half of the output, and a depthwise 3x3 convolution of it for the other half."""

    def __init__(
        self, in_channels: int, out_channels: int, act: Activation | None, data_format: DataFormat
    ) -> None:
        super().__init__()
        half = out_channels // 2
        conv = _conv(data_format)
        self.primary_conv = conv(in_channels, half, 1, act=act)
        self.cheap_operation = conv(half, half, 3, 1, half, act)
        self._channels = 1 if data_format == "NCHW" else 3

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H, W]."""
        x = self.primary_conv(x)
        return paddle.concat([x, self.cheap_operation(x)], axis=self._channels)


class GhostBottleneck(nn.Layer):  # type: ignore[misc]
    """Two ghost modules and a shortcut (figure 3).

    Args:
        width: Number of channels between the two modules.
        kernel: Kernel of the depthwise convolutions, which only blocks with a stride of 2 have.
        stride: Stride of the block.
        use_se: Whether to use squeeze-and-excitation.
        timm_variant: Argument of `GhostNet`.
    """

    def __init__(
        self,
        in_channels: int,
        width: int,
        out_channels: int,
        kernel: int,
        stride: int,
        use_se: bool,
        data_format: DataFormat,
        timm_variant: bool = False,
    ) -> None:
        super().__init__()
        conv = _conv(data_format)
        self.ghost_module_1 = GhostModule(in_channels, width, F.relu, data_format)
        self.depthwise_conv = conv(width, width, kernel, stride, width) if stride > 1 else nn.Identity()
        gate, divisor = (F.hardsigmoid, _DIVISOR) if timm_variant else (_GATE, 1)
        self.se_block = (
            LinearSqueezeExcitation(width, 4, gate, data_format, divisor) if use_se else nn.Identity()
        )
        self.ghost_module_2 = GhostModule(width, out_channels, None, data_format)
        same = stride == 1 and in_channels == out_channels
        self.shortcut_depthwise = (
            nn.Identity() if same else conv(in_channels, in_channels, kernel, stride, in_channels)
        )
        self.shortcut_conv = nn.Identity() if same else conv(in_channels, out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/stride, W/stride]."""
        y = self.ghost_module_2(self.se_block(self.depthwise_conv(self.ghost_module_1(x))))
        return y + self.shortcut_conv(self.shortcut_depthwise(x))


class GhostNet(nn.Layer):  # type: ignore[misc]
    """The GhostNet network.

    Args:
        scale: Factor for all numbers of channels except the last one.
        timm_variant: Whether to build timm's variant, which has another width and gate in
            squeeze-and-excitation, and a bias instead of batch norm in the last convolution.
    """

    public_names: ClassVar[PublicNames] = PublicNames(
        timm={
            r"^conv1\.": ("conv_stem.", "bn1."),
            r"^conv_last\.": ("blocks.9.0.conv.", "blocks.9.0.bn1."),
            r"^_ghostbottleneck_(\d+)\.": "blocks.{stage}.{block}.",
            r"\.depthwise_conv\.": (".conv_dw.", ".bn_dw."),
            r"\.se_block\.squeeze\.": ".se.conv_reduce.",
            r"\.se_block\.excitation\.": ".se.conv_expand.",
            r"\.shortcut_depthwise\.": (".shortcut.0.", ".shortcut.1."),
            r"\.shortcut_conv\.": (".shortcut.2.", ".shortcut.3."),
            r"\.ghost_module_(\d)\.": r".ghost\1.",
            r"\._conv\.": ".0.",
            r"\._batch_norm\.": ".1.",
            r"^fc_0\.0\.": "conv_head.",
            r"^fc_1\.": "classifier.",
        },
        starts=(0, 1, 2, 3, 4, 5, 6, 11, 12),
        variant="PaddleClas's GhostNet differs in squeeze-and-excitation and in the last convolution",
    )

    def __init__(
        self,
        scale: float,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
        timm_variant: bool = False,
    ) -> None:
        super().__init__()
        self.timm_variant = timm_variant
        conv = partial(_conv(data_format), act=F.relu)
        channels = round_channels(16 * scale, _DIVISOR)
        self.conv1 = conv(input_image_channel, channels, 3, 2)
        self._blocks = []
        for i, (kernel, middle, out, use_se, stride) in enumerate(_ROWS):
            width = round_channels(middle * scale, _DIVISOR)
            out = round_channels(out * scale, _DIVISOR)
            sizes = (channels, width, out, kernel, stride)
            block = GhostBottleneck(*sizes, use_se, data_format, timm_variant)
            self._blocks.append(self.add_sublayer(f"_ghostbottleneck_{i}", block))
            channels = out
        last = round_channels(_LAST * scale, _DIVISOR)
        self.conv_last = conv(channels, last, 1)
        self.avg_pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self.fc_0 = (
            nn.Sequential(nn.Conv2D(last, _FEATURES, 1, data_format=data_format), nn.ReLU())
            if timm_variant
            else conv(last, _FEATURES, 1)
        )
        self.dropout = nn.Dropout(0.2)
        self.fc_1 = uniform_linear(_FEATURES, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        x = self.conv1(x)
        for block in self._blocks:
            x = block(x)
        x = self.fc_0(self.avg_pool(self.conv_last(x)))
        return self.fc_1(self.dropout(x).flatten(1))


GhostNet_x0_5 = partial(GhostNet, 0.5)
GhostNet_x1_0 = partial(GhostNet, 1.0)
GhostNet_x1_3 = partial(GhostNet, 1.3)
