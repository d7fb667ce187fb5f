"""MixNet (Tan and Le 2019, https://arxiv.org/abs/1907.09595): depthwise convolutions of several sizes."""

from __future__ import annotations

from functools import partial

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import Activation, DataFormat, batch_norm, round_channels
from ppcls.arch.layers.squeeze_excitation import SqueezeExcitation

_FEATURES = 1536
_SQUEEZE = (
    0,
    2,
    4,
    2,
)  # reduction of squeeze-and-excitation per stage, in addition to the expansion; 0: none

# A block: its output channels, the number of convolutions that expand, filter and reduce, and the expansion.
_Block = tuple[int, int, int, int, int]
_SMALL: tuple[tuple[_Block, ...], ...] = (
    ((24, 2, 1, 2, 6), (24, 2, 1, 2, 3)),
    ((40, 1, 3, 1, 6), *[(40, 2, 2, 2, 6)] * 3),
    ((80, 1, 3, 2, 6), *[(80, 1, 2, 2, 6)] * 2),
    ((120, 2, 3, 2, 6), *[(120, 2, 4, 2, 3)] * 2, (200, 1, 5, 1, 6), *[(200, 1, 4, 2, 6)] * 2),
)
_MEDIUM: tuple[tuple[_Block, ...], ...] = (
    ((32, 2, 3, 2, 6), (32, 2, 1, 2, 3)),
    ((40, 1, 4, 1, 6), *[(40, 2, 2, 2, 6)] * 3),
    ((80, 1, 3, 1, 6), *[(80, 2, 4, 2, 6)] * 3),
    ((120, 1, 1, 1, 6), *[(120, 2, 4, 2, 3)] * 3, (200, 1, 4, 1, 6), *[(200, 1, 4, 2, 6)] * 3),
)


class MixedConv(nn.Layer):  # type: ignore[misc]
    """Convolutions side by side, each of a part of the channels.

    Args:
        kernels: Kernel of each convolution.
        depthwise: Whether they are depthwise.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernels: list[int],
        stride: int,
        depthwise: bool,
        data_format: DataFormat,
    ) -> None:
        super().__init__()
        self._parts = _split(in_channels, len(kernels))
        self._axis = 1 if data_format == "NCHW" else 3
        outputs = _split(out_channels, len(kernels))
        for i, (inputs, out, kernel) in enumerate(zip(self._parts, outputs, kernels, strict=True)):
            conv = nn.Conv2D(
                inputs,
                out,
                kernel,
                stride,
                padding=kernel // 2,
                groups=inputs if depthwise else 1,
                bias_attr=False,
                data_format=data_format,
            )
            self.add_sublayer(str(i), conv)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/stride, W/stride]."""
        parts = paddle.split(x, self._parts, self._axis)
        outputs = [getattr(self, str(i))(part) for i, part in enumerate(parts)]
        return paddle.concat(outputs, self._axis)


def _split(channels: int, count: int) -> list[int]:
    """Returns the sizes of ``count`` parts; the first one is the largest."""
    part = channels // count
    return [channels - part * (count - 1)] + [part] * (count - 1)


class MixedConvNorm(nn.Layer):  # type: ignore[misc]
    """One convolution or `MixedConv`, batch norm and an optional activation."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernels: list[int],
        stride: int = 1,
        depthwise: bool = False,
        act: Activation | None = None,
        data_format: DataFormat = "NCHW",
    ) -> None:
        super().__init__()
        mixed = MixedConv(in_channels, out_channels, kernels, stride, depthwise, data_format)
        self.conv = mixed if len(kernels) > 1 else next(iter(mixed.children()))
        self.bn = batch_norm(out_channels, data_format)
        self._act = act

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/stride, W/stride]."""
        x = self.bn(self.conv(x))
        return x if self._act is None else self._act(x)


class MixedBlock(nn.Layer):  # type: ignore[misc]
    """An inverted residual of mixed convolutions.

    Args:
        block: Properties of the block.
        squeeze: Reduction of squeeze-and-excitation, in addition to the expansion; 0 for none.
    """

    def __init__(
        self,
        in_channels: int,
        block: _Block,
        stride: int,
        squeeze: int,
        act: Activation,
        data_format: DataFormat,
    ) -> None:
        super().__init__()
        out, expand, kernels, reduce, expansion = block
        width = in_channels * expansion
        conv = partial(MixedConvNorm, data_format=data_format)
        self.exp_conv = conv(in_channels, width, [1] * expand, act=act) if expansion > 1 else nn.Identity()
        sides = [3 + 2 * i for i in range(kernels)]
        self.conv1 = conv(width, width, sides, stride, depthwise=True, act=act)
        self.se = nn.Identity()
        if squeeze:
            squeezed = width // (expansion * squeeze)
            self.se = SqueezeExcitation(width, squeezed, act, F.sigmoid, data_format)
        self.conv2 = conv(width, out, [1] * reduce)
        self._shortcut = stride == 1 and in_channels == out

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/stride, W/stride]."""
        y = self.conv2(self.se(self.conv1(self.exp_conv(x))))
        return x + y if self._shortcut else y


class MixNet(nn.Layer):  # type: ignore[misc]
    """The MixNet network.

    Args:
        stem: Channels of the first convolution.
        stages: Blocks of each stage.
        scale: Factor on all channels.
    """

    def __init__(
        self,
        stem: int,
        stages: tuple[tuple[_Block, ...], ...],
        scale: float = 1.0,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
    ) -> None:
        super().__init__()
        channels = round_channels(stem * scale)
        conv = partial(MixedConvNorm, act=F.relu, data_format=data_format)
        first = MixedBlock(channels, (channels, 1, 1, 1, 1), 1, 0, F.relu, data_format)
        begin = nn.Sequential(("conv1", conv(input_image_channel, channels, [3], 2)), ("conv2", first))
        self.features = nn.Sequential(("init_block", begin))
        for i, (blocks, squeeze) in enumerate(zip(stages, _SQUEEZE, strict=True), 1):
            stage = nn.Sequential()
            halving = len(blocks) // 2 if i == len(stages) else 0
            for j, (out, expand, kernels, reduce, expansion) in enumerate(blocks):
                block = round_channels(out * scale), expand, kernels, reduce, expansion
                stride, act = 2 if j == halving else 1, F.swish if i > 1 else F.relu
                unit = MixedBlock(channels, block, stride, squeeze, act, data_format)
                stage.add_sublayer(f"unit{j + 1}", unit)
                channels = block[0]
            self.features.add_sublayer(f"stage{i}", stage)
        self.features.add_sublayer("final_block", conv(channels, _FEATURES, [1]))
        self.features.add_sublayer("final_pool", nn.AdaptiveAvgPool2D(1, data_format=data_format))
        self.output = nn.Linear(_FEATURES, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        return self.output(self.features(x).flatten(1))


MixNet_S = partial(MixNet, 16, _SMALL)
MixNet_M = partial(MixNet, 24, _MEDIUM)
MixNet_L = partial(MixNet, 24, _MEDIUM, 1.3)
