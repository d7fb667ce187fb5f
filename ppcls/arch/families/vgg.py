"""VGG (Simonyan and Zisserman 2014, https://arxiv.org/abs/1409.1556).

The convolutions have no bias. The first linear layer expects 7 x 7 pixels. For images whose size is not 224
x 224, average pooling produces this size.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import DataFormat
from ppcls.arch.public.names import PublicNames

_WIDTHS = (64, 128, 256, 512, 512)
_SIDE = 7
_HIDDEN = 4096


class ConvBlock(nn.Layer):  # type: ignore[misc]
    """Several 3x3 convolutions with ReLU, followed by 2x2 max pooling."""

    def __init__(self, in_channels: int, out_channels: int, depth: int, data_format: DataFormat) -> None:
        super().__init__()
        self._convs = []
        for i in range(depth):
            conv = nn.Conv2D(
                out_channels if i else in_channels,
                out_channels,
                3,
                padding=1,
                bias_attr=False,
                data_format=data_format,
            )
            self._convs.append(self.add_sublayer(f"conv{i + 1}", conv))
        self.max_pool = nn.MaxPool2D(2, stride=2, data_format=data_format)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/2, W/2]."""
        for conv in self._convs:
            x = F.relu(conv(x))
        return self.max_pool(x)


class VGG(nn.Layer):  # type: ignore[misc]
    """The VGG network.

    Args:
        depths: Number of convolutions per block.
    """

    public_names: ClassVar[PublicNames] = PublicNames(
        different=(
            "PaddleClas's VGG has no bias in its convolutions; set Arch.name: vgg11, vgg13, vgg16 or vgg19"
        ),
    )

    def __init__(
        self,
        depths: tuple[int, int, int, int, int],
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
    ) -> None:
        super().__init__()
        inputs = (input_image_channel, *_WIDTHS)
        self._blocks = []
        for i, (width, depth) in enumerate(zip(_WIDTHS, depths, strict=True)):
            block = ConvBlock(inputs[i], width, depth, data_format)
            self._blocks.append(self.add_sublayer(f"conv_block_{i + 1}", block))
        self.pool = nn.AdaptiveAvgPool2D(_SIDE, data_format=data_format)
        # PaddleClas's weights expect this mode, which scales in inference instead of training.
        self.drop = nn.Dropout(0.5, mode="downscale_in_infer")
        self.fc1 = nn.Linear(_WIDTHS[-1] * _SIDE * _SIDE, _HIDDEN)
        self.fc2 = nn.Linear(_HIDDEN, _HIDDEN)
        self.fc3 = nn.Linear(_HIDDEN, class_num)
        self._channels_last = data_format == "NHWC"

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        for block in self._blocks:
            x = block(x)
        x = self.pool(x)
        if self._channels_last:  # the weights of fc1 expect features in the order of NCHW
            x = x.transpose([0, 3, 1, 2])
        x = self.drop(F.relu(self.fc1(x.flatten(1))))
        return self.fc3(self.drop(F.relu(self.fc2(x))))


VGG11 = partial(VGG, (1, 1, 2, 2, 2))
VGG13 = partial(VGG, (2, 2, 2, 2, 2))
VGG16 = partial(VGG, (2, 2, 3, 3, 3))
VGG19 = partial(VGG, (2, 2, 4, 4, 4))
