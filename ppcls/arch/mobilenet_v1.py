"""MobileNet (Howard et al. 2017, https://arxiv.org/abs/1704.04861), parameter for parameter as in PaddleClas.

Parameters, in millions: MobileNetV1_x0_25 0.5, MobileNetV1_x0_5 1.3, MobileNetV1_x0_75 2.6, MobileNetV1 4.2.
"""

from __future__ import annotations

from functools import partial

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.conv_norm import ConvNorm, DataFormat
from ppcls.arch.depthwise_separable import DepthwiseSeparable

# Of each block: channels of its output at scale 1, stride.
_BLOCKS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))


class Block(DepthwiseSeparable):
    """`DepthwiseSeparable` under this network's names."""

    names = ("depthwise_conv", "weigh", "pointwise_conv")


class MobileNetV1Net(nn.Layer):  # type: ignore[misc]
    """A MobileNet.

    Args:
        scale: Of all channels.
        class_num: Number of classes.
        data_format: Layout of the input; parameters have the same shapes in both.
        input_image_channel: Channels of the input.
    """

    def __init__(
        self,
        scale: float = 1.0,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
    ) -> None:
        super().__init__()
        normal = nn.initializer.KaimingNormal()
        conv = partial(ConvNorm, act=F.relu, data_format=data_format, initializer=normal)
        channels = int(32 * scale)
        self.conv = conv(input_image_channel, channels, 3, 2)
        blocks = []
        for width, stride in _BLOCKS:
            blocks.append(Block(channels, int(width * scale), 3, stride, conv))
            channels = int(width * scale)
        self.blocks = nn.Sequential(*blocks)
        self.avg_pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self.fc = nn.Linear(channels, class_num, weight_attr=paddle.ParamAttr(initializer=normal))

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W], or [B, H, W, C] under NHWC, to logits [B, class_num]."""
        return self.fc(self.avg_pool(self.blocks(self.conv(x))).flatten(1))


MobileNetV1_x0_25 = partial(MobileNetV1Net, 0.25)
MobileNetV1_x0_5 = partial(MobileNetV1Net, 0.5)
MobileNetV1_x0_75 = partial(MobileNetV1Net, 0.75)
MobileNetV1 = partial(MobileNetV1Net, 1.0)
