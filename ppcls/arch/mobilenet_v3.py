"""MobileNetV3 (Howard et al. 2019, https://arxiv.org/abs/1905.02244), parameters as in PaddleClas.

As in V2 there, the first block widens with a convolution of its own; and squeeze-and-excitation's gate has
the slope 0.2, not 1/6.

Parameters, in millions: MobileNetV3_small at x0_35 1.7, x0_5 1.9, x0_75 2.4, x1_0 2.9, x1_25 3.6;
MobileNetV3_large at x0_35 2.1, x0_5 2.7, x0_75 3.9, x1_0 5.5, x1_25 7.4.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.conv_norm import ConvNorm, DataFormat, round_channels
from ppcls.arch.inverted_residual import InvertedResidual
from ppcls.arch.late_features import LateFeatures
from ppcls.arch.squeeze_excitation import SqueezeExcitation

Row = tuple[int, int, int, bool, Any, int]

# Table 1: kernel, width, channels, squeeze-and-excitation, activation, stride.
_LARGE: tuple[Row, ...] = (
    (3, 16, 16, False, F.relu, 1),
    (3, 64, 24, False, F.relu, 2),
    (3, 72, 24, False, F.relu, 1),
    (5, 72, 40, True, F.relu, 2),
    (5, 120, 40, True, F.relu, 1),
    (5, 120, 40, True, F.relu, 1),
    (3, 240, 80, False, F.hardswish, 2),
    (3, 200, 80, False, F.hardswish, 1),
    (3, 184, 80, False, F.hardswish, 1),
    (3, 184, 80, False, F.hardswish, 1),
    (3, 480, 112, True, F.hardswish, 1),
    (3, 672, 112, True, F.hardswish, 1),
    (5, 672, 160, True, F.hardswish, 2),
    (5, 960, 160, True, F.hardswish, 1),
    (5, 960, 160, True, F.hardswish, 1),
)
# Table 2.
_SMALL: tuple[Row, ...] = (
    (3, 16, 16, True, F.relu, 2),
    (3, 72, 24, False, F.relu, 2),
    (3, 88, 24, False, F.relu, 1),
    (5, 96, 40, True, F.hardswish, 2),
    (5, 240, 40, True, F.hardswish, 1),
    (5, 240, 40, True, F.hardswish, 1),
    (5, 120, 48, True, F.hardswish, 1),
    (5, 144, 48, True, F.hardswish, 1),
    (5, 288, 96, True, F.hardswish, 2),
    (5, 576, 96, True, F.hardswish, 1),
    (5, 576, 96, True, F.hardswish, 1),
)
_GATE = partial(F.hardsigmoid, slope=0.2, offset=0.5)


class MobileNetV3Net(LateFeatures):
    """A MobileNetV3.

    Args:
        rows: Of table 1 or 2.
        width: Channels of the last convolution before pooling, at scale 1.
        scale: Of all channels but the last ones.
        class_num: Number of classes.
        data_format: Layout of the input; parameters have the same shapes in both.
        input_image_channel: Channels of the input.
        dropout_prob: Of the features before the classifier.
    """

    def __init__(
        self,
        rows: tuple[Row, ...],
        width: int,
        scale: float = 1.0,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
        dropout_prob: float = 0.2,
    ) -> None:
        super().__init__()
        conv = partial(ConvNorm, act=F.hardswish, data_format=data_format, decay=False)
        channels = round_channels(16 * scale)
        self.conv = conv(input_image_channel, channels, 3, 2)
        blocks = []
        for kernel, middle, out, weighed, act, stride in rows:
            mid, out = round_channels(middle * scale), round_channels(out * scale)
            weigh = SqueezeExcitation(mid, mid // 4, gate=_GATE, data_format=data_format) if weighed else None
            blocks.append(
                InvertedResidual(channels, mid, out, kernel, stride, act, weigh, data_format, decay=False)
            )
            channels = out
        self.blocks = nn.Sequential(*blocks)
        last = round_channels(width * scale)
        self.last_second_conv = conv(channels, last, 1)
        self.add_classifier(last, class_num, F.hardswish, dropout_prob, data_format)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W], or [B, H, W, C] under NHWC, to logits [B, class_num]."""
        return self.classify(self.last_second_conv(self.blocks(self.conv(x))))


MobileNetV3_small_x0_35 = partial(MobileNetV3Net, _SMALL, 576, 0.35)
MobileNetV3_small_x0_5 = partial(MobileNetV3Net, _SMALL, 576, 0.5)
MobileNetV3_small_x0_75 = partial(MobileNetV3Net, _SMALL, 576, 0.75)
MobileNetV3_small_x1_0 = partial(MobileNetV3Net, _SMALL, 576, 1.0)
MobileNetV3_small_x1_25 = partial(MobileNetV3Net, _SMALL, 576, 1.25)
MobileNetV3_large_x0_35 = partial(MobileNetV3Net, _LARGE, 960, 0.35)
MobileNetV3_large_x0_5 = partial(MobileNetV3Net, _LARGE, 960, 0.5)
MobileNetV3_large_x0_75 = partial(MobileNetV3Net, _LARGE, 960, 0.75)
MobileNetV3_large_x1_0 = partial(MobileNetV3Net, _LARGE, 960, 1.0)
MobileNetV3_large_x1_25 = partial(MobileNetV3Net, _LARGE, 960, 1.25)
