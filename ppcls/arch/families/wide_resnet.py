"""WideResNet (Zagoruyko & Komodakis 2016, https://arxiv.org/abs/1605.07146) as in FixMatch.

As in FixMatch's code, the activation is leaky ReLU, and the first block of the last two stages does not
normalize its input. With the option ``wide_block: original``, the network is that of the paper: the
activation is ReLU, and all blocks normalize their input.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from paddle import Tensor, nn

from ppcls.arch.layers.conv_norm import DataFormat, batch_norm, leaky_relu
from ppcls.arch.layers.drop_path import image_dropout
from ppcls.arch.layers.norm_act import norm_relu

_SLOPE = 0.1
# Made for the million updates of FixMatch. In a run of a few epochs, these statistics lag behind the weights
# for half of the run; Arch.batch_norm_momentum changes the value.
_MOMENTUM = 0.999
_EPSILON = 1e-5
_STEM = 16  # number of channels of the first convolution


Block = Literal["fixmatch", "original"]


def _activate(norm: nn.BatchNorm2D, x: Tensor, block: Block) -> Tensor:
    return norm_relu(norm, x) if block == "original" else leaky_relu(norm(x), _SLOPE)


class WideBlock(nn.Layer):  # type: ignore[misc]
    """A residual block of two convolutions, each with batch norm and activation before it.

    Args:
        channels: Number of channels of the input and of the output. If they differ, the shortcut is a
            convolution.
        first: Whether the block is part of the first stage. In other stages of FixMatch's network, a block
            whose shortcut is a convolution does not normalize its input.
        drop_rate: Dropout rate between the convolutions.
        block: Kind of the block.
    """

    def __init__(
        self,
        channels: tuple[int, int],
        stride: int,
        first: bool,
        drop_rate: float,
        block: Block,
        data_format: DataFormat,
    ) -> None:
        super().__init__()
        self._block = block
        inputs, outputs = channels
        conv = partial(nn.Conv2D, bias_attr=False, data_format=data_format)
        self.bn1 = batch_norm(inputs, data_format, _EPSILON, _MOMENTUM)
        self.conv1 = conv(inputs, outputs, 3, stride, padding=1)
        self.bn2 = batch_norm(outputs, data_format, _EPSILON, _MOMENTUM)
        self.drop = image_dropout(drop_rate, data_format)
        self.conv2 = conv(outputs, outputs, 3, padding=1)
        self._projected = inputs != outputs
        if self._projected:
            self.add_sublayer("convShortcut", conv(inputs, outputs, 1, stride))  # the name in PaddleClas
        self._normalized = block == "original" or first or not self._projected
        if not self._normalized:  # bn1 is not used, but checkpoints contain it
            for parameter in self.bn1.parameters():
                parameter.stop_gradient = True

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/stride, W/stride]."""
        inner = _activate(self.bn1, x, self._block) if self._normalized else x
        shortcut = self.convShortcut(inner) if self._projected else x
        return shortcut + self.conv2(self.drop(_activate(self.bn2, self.conv1(inner), self._block)))


class WideResNet(nn.Layer):  # type: ignore[misc]
    """The WideResNet network.

    Args:
        depth: Number of layers: 6 n + 4 for n blocks per stage.
        widen_factor: Number of channels of the first stage divided by 16.
        dropout: Dropout rate in the blocks.
        wide_block: Kind of the blocks.
    """

    def __init__(
        self,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
        depth: int = 28,
        widen_factor: int = 2,
        dropout: float = 0.0,
        wide_block: Block = "fixmatch",
    ) -> None:
        super().__init__()
        self._block = wide_block
        self.conv1 = nn.Conv2D(
            input_image_channel, _STEM, 3, padding=1, bias_attr=False, data_format=data_format
        )
        channels = _STEM
        for stage, stride in enumerate((1, 2, 2)):
            width = _STEM * widen_factor << stage
            blocks = []
            for i in range((depth - 4) // 6):
                settings = stride if i == 0 else 1, stage == 0, dropout, wide_block, data_format
                blocks.append(WideBlock((channels, width), *settings))
                channels = width
            self.add_sublayer(f"block{stage + 1}", nn.Sequential(("layer", nn.Sequential(*blocks))))
        self.bn1 = batch_norm(channels, data_format, _EPSILON, _MOMENTUM)
        self.pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self.fc = nn.Linear(channels, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        x = self.block3(self.block2(self.block1(self.conv1(x))))
        return self.fc(self.pool(_activate(self.bn1, x, self._block)).flatten(1))
