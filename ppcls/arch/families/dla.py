"""DLA (Yu et al. 2017, https://arxiv.org/abs/1707.06484): trees of blocks whose outputs are aggregated.

Images may have any size; PaddleClas's networks accept multiples of 32 only.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import DataFormat, batch_norm


def _convolution(
    in_channels: int, out: int, kernel: int, data_format: DataFormat, **options: int
) -> nn.Conv2D:
    normal = nn.initializer.Normal(std=(2.0 / (kernel**2 * out)) ** 0.5)
    attribute = paddle.ParamAttr(initializer=normal)
    return nn.Conv2D(
        in_channels,
        out,
        kernel,
        padding=kernel // 2,
        weight_attr=attribute,
        bias_attr=False,
        data_format=data_format,
        **options,
    )


class AggregatedBlock(nn.Layer):  # type: ignore[misc]
    """A residual block: two 3x3 convolutions, or a bottleneck.

    Args:
        groups: Groups of the bottleneck's 3x3 convolution.
        group_width: Channels of each group, for 64 output channels; None for two 3x3 convolutions.
    """

    def __init__(
        self,
        in_channels: int,
        out: int,
        stride: int,
        groups: int,
        group_width: int | None,
        data_format: DataFormat,
    ) -> None:
        super().__init__()
        inner = out if group_width is None else out * group_width // 64 * groups // 2
        rows = [(in_channels, inner, 3, stride, 1), (inner, out, 3, 1, 1)]
        if group_width is not None:
            rows = [(in_channels, inner, 1, 1, 1), (inner, inner, 3, stride, groups), (inner, out, 1, 1, 1)]
        self._pairs = []
        for i, (inputs, outputs, kernel, step, split) in enumerate(rows, start=1):
            conv = _convolution(inputs, outputs, kernel, data_format, stride=step, groups=split)
            norm = batch_norm(outputs, data_format)
            self._pairs.append((self.add_sublayer(f"conv{i}", conv), self.add_sublayer(f"bn{i}", norm)))

    def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/stride, W/stride]."""
        y = x
        for i, (conv, norm) in enumerate(self._pairs):
            y = norm(conv(F.relu(y) if i else y))
        return F.relu(y + (x if shortcut is None else shortcut))


class AggregationRoot(nn.Layer):  # type: ignore[misc]
    """A 1x1 convolution of several features, with an optional shortcut of the first one."""

    def __init__(self, in_channels: int, out: int, residual: bool, data_format: DataFormat) -> None:
        super().__init__()
        self.conv = _convolution(in_channels, out, 1, data_format)
        self.bn = batch_norm(out, data_format)
        self._residual, self._axis = residual, 1 if data_format == "NCHW" else 3

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Maps features [B, C, H, W] (or NHWC) to [B, C', H, W]."""
        y = self.bn(self.conv(paddle.concat(features, self._axis)))
        return F.relu(y + features[0] if self._residual else y)


class AggregationTree(nn.Layer):  # type: ignore[misc]
    """A binary tree of blocks; the root of its last subtree also receives the outputs of all others.

    Args:
        levels: Depth of the tree.
        block: Constructor of a block.
        earlier: Channels of the outputs of other trees that the root receives.
        level_root: Whether the root also receives the tree's input.
        residual: Whether roots have a shortcut.
    """

    def __init__(
        self,
        levels: int,
        block: partial[AggregatedBlock],
        in_channels: int,
        out: int,
        stride: int = 1,
        earlier: int = 0,
        level_root: bool = False,
        residual: bool = False,
        data_format: DataFormat = "NCHW",
    ) -> None:
        super().__init__()
        self._levels, self._level_root = levels, level_root
        earlier += in_channels if level_root else 0
        self.downsample = (
            nn.MaxPool2D(stride, stride, ceil_mode=True, data_format=data_format)
            if stride > 1
            else nn.Identity()
        )
        self.project = nn.Identity()
        if levels == 1:
            self.tree1, self.tree2 = block(in_channels, out, stride), block(out, out, 1)
            self.root = AggregationRoot(2 * out + earlier, out, residual, data_format)
            if in_channels != out:
                conv = _convolution(in_channels, out, 1, data_format)
                self.project = nn.Sequential(conv, batch_norm(out, data_format))
        else:
            tree = partial(AggregationTree, levels - 1, block, residual=residual, data_format=data_format)
            self.tree1, self.tree2 = tree(in_channels, out, stride), tree(out, out, earlier=earlier + out)

    def forward(self, x: Tensor, earlier: Sequence[Tensor] = ()) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/stride, W/stride]."""
        bottom = self.downsample(x)
        if self._level_root:
            earlier = [*earlier, bottom]
        if self._levels > 1:
            return self.tree2(x1 := self.tree1(x), [*earlier, x1])
        x1 = self.tree1(x, self.project(bottom))
        return self.root([self.tree2(x1), x1, *earlier])


class DLA(nn.Layer):  # type: ignore[misc]
    """The DLA network.

    Args:
        levels: Depth of each of the last four stages.
        channels: Channels of all six stages.
        groups: See `AggregatedBlock`.
        group_width: See `AggregatedBlock`.
        residual: Whether roots have a shortcut.
    """

    def __init__(
        self,
        levels: tuple[int, int, int, int],
        channels: tuple[int, ...],
        groups: int = 1,
        group_width: int | None = 64,
        residual: bool = False,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
    ) -> None:
        super().__init__()
        inputs = (input_image_channel, channels[0], channels[0])
        for name, size, out, kernel, stride in zip(
            ("base_layer", "level0", "level1"),
            inputs,
            (*channels[:1], *channels[:2]),
            (7, 3, 3),
            (1, 1, 2),
            strict=True,
        ):
            conv = _convolution(size, out, kernel, data_format, stride=stride)
            self.add_sublayer(name, nn.Sequential(conv, batch_norm(out, data_format), nn.ReLU()))
        block = partial(AggregatedBlock, groups=groups, group_width=group_width, data_format=data_format)
        tree = partial(AggregationTree, block=block, stride=2, residual=residual, data_format=data_format)
        for i, depth in enumerate(levels, start=2):
            layer = tree(depth, in_channels=channels[i - 1], out=channels[i], level_root=i > 2)
            self.add_sublayer(f"level{i}", layer)
        self.global_pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        normal = nn.initializer.Normal(std=(2.0 / class_num) ** 0.5)
        attribute = paddle.ParamAttr(initializer=normal)
        self.fc = nn.Conv2D(channels[-1], class_num, 1, weight_attr=attribute, data_format=data_format)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        for name in ("base_layer", *(f"level{i}" for i in range(6))):
            x = getattr(self, name)(x)
        return self.fc(self.global_pool(x)).flatten(1)


_COMPACT, _WIDE = (16, 32, 64, 64, 128, 256), (16, 32, 128, 256, 512, 1024)
DLA34 = partial(DLA, (1, 2, 2, 1), (16, 32, 64, 128, 256, 512), group_width=None)
DLA46_c = partial(DLA, (1, 2, 2, 1), _COMPACT)
DLA46x_c = partial(DLA, (1, 2, 2, 1), _COMPACT, 32, 4)
DLA60 = partial(DLA, (1, 2, 3, 1), _WIDE)
DLA60x = partial(DLA, (1, 2, 3, 1), _WIDE, 32, 4)
DLA60x_c = partial(DLA, (1, 2, 3, 1), _COMPACT, 32, 4)
DLA102 = partial(DLA, (1, 3, 4, 1), _WIDE, residual=True)
DLA102x = partial(DLA, (1, 3, 4, 1), _WIDE, 32, 4, residual=True)
DLA102x2 = partial(DLA, (1, 3, 4, 1), _WIDE, 64, 4, residual=True)
DLA169 = partial(DLA, (2, 3, 5, 1), _WIDE, residual=True)
