"""DLA (Yu et al. 2017, https://arxiv.org/abs/1707.06484), whose blocks form trees of aggregated outputs.

Images may have any size. PaddleClas's networks accept only multiples of 32.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import ConvNorm, DataFormat, FanOutNormal
from ppcls.arch.layers.sequence import named
from ppcls.arch.public.names import PublicNames

_CONV = partial(ConvNorm, initializer=FanOutNormal())


class AggregatedBlock(nn.Sequential):  # type: ignore[misc]
    """A residual block: two 3x3 convolutions, or a bottleneck.

    Args:
        groups: For a bottleneck, number of groups of its 3x3 convolution, and number of channels per group
            for 64 output channels. None for two 3x3 convolutions.
    """

    def __init__(
        self, channels: int, out: int, stride: int, groups: tuple[int, int] | None, data_format: DataFormat
    ) -> None:
        rows = [(channels, out, 3, stride, 1), (out, out, 3, 1, 1)]
        if groups is not None:
            inner = out * groups[1] // 64 * groups[0] // 2
            rows = [(channels, inner, 1, 1, 1), (inner, inner, 3, stride, groups[0]), (inner, out, 1, 1, 1)]
        layers: dict[str, nn.Layer] = {}
        for i, row in enumerate(rows, start=1):
            act = nn.ReLU() if i < len(rows) else None
            layers |= named(f"conv{i}", f"bn{i}", _CONV(*row, data_format=data_format), act)
        super().__init__(*layers.items())

    def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/stride, W/stride]."""
        y = nn.Sequential.forward(self, x)  # Paddle 2.6 cannot compile super()
        return F.relu(y + (x if shortcut is None else shortcut))


class AggregationTree(nn.Layer):  # type: ignore[misc]
    """A binary tree of blocks. The root of its last subtree also receives the outputs of all other subtrees.

    Args:
        levels: Depth of the tree.
        block: Constructor of a block.
        earlier: Total number of channels of the outputs of other trees that the root receives.
        level_root: Whether the root also receives the input of the tree.
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
        self._levels = levels
        self._level_root = level_root
        self._residual = residual
        self._axis = 1 if data_format == "NCHW" else 3
        earlier += in_channels if level_root else 0
        pool = partial(nn.MaxPool2D, stride, stride, ceil_mode=True, data_format=data_format)
        self.downsample = pool() if stride > 1 else nn.Identity()
        self.project = nn.Identity()
        if levels == 1:
            self.tree1 = block(in_channels, out, stride)
            self.tree2 = block(out, out, 1)
            self.root = _CONV(2 * out + earlier, out, 1, data_format=data_format)
            if in_channels != out:
                self.project = nn.Sequential(*_CONV(in_channels, out, 1, data_format=data_format).children())
        else:
            tree = partial(AggregationTree, levels - 1, block, residual=residual, data_format=data_format)
            self.tree1 = tree(in_channels, out, stride)
            self.tree2 = tree(out, out, earlier=earlier + out)

    def forward(self, x: Tensor, earlier: Sequence[Tensor] = ()) -> Tensor:
        """Maps [B, C, H, W] (or NHWC) to [B, C', H/stride, W/stride]."""
        bottom = self.downsample(x)
        if self._level_root:
            earlier = [*earlier, bottom]
        if self._levels > 1:
            return self.tree2(x1 := self.tree1(x), [*earlier, x1])
        x1 = self.tree1(x, self.project(bottom))
        y = self.root(paddle.concat([x2 := self.tree2(x1), x1, *earlier], self._axis))
        return F.relu(y + x2 if self._residual else y)


class DLA(nn.Layer):  # type: ignore[misc]
    """The DLA network.

    Args:
        levels: Depth of each of the last four stages.
        channels: Number of channels of all six stages.
        groups: Argument of `AggregatedBlock`.
        residual: Whether roots have a shortcut.
    """

    public_names: ClassVar[PublicNames] = PublicNames(
        timm={},
    )

    def __init__(
        self,
        levels: tuple[int, int, int, int],
        channels: tuple[int, ...],
        groups: tuple[int, int] | None = (1, 64),
        residual: bool = False,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
    ) -> None:
        super().__init__()
        first, second, *_ = channels
        conv = partial(_CONV, data_format=data_format)
        stem = conv(input_image_channel, first, 7), conv(first, first, 3), conv(first, second, 3, 2)
        for name, layers in zip(("base_layer", "level0", "level1"), stem, strict=True):
            self.add_sublayer(name, nn.Sequential(*layers.children(), nn.ReLU()))
        block = partial(AggregatedBlock, groups=groups, data_format=data_format)
        tree = partial(AggregationTree, block=block, stride=2, residual=residual, data_format=data_format)
        for i, depth in enumerate(levels, start=2):
            layer = tree(depth, in_channels=channels[i - 1], out=channels[i], level_root=i > 2)
            self.add_sublayer(f"level{i}", layer)
        self.global_pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self.fc = nn.Conv2D(channels[-1], class_num, 1, weight_attr=FanOutNormal(), data_format=data_format)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        for name in ("base_layer", *(f"level{i}" for i in range(6))):
            x = getattr(self, name)(x)
        return self.fc(self.global_pool(x)).flatten(1)


_COMPACT = (16, 32, 64, 64, 128, 256)
_WIDE = (16, 32, 128, 256, 512, 1024)
DLA34 = partial(DLA, (1, 2, 2, 1), (16, 32, 64, 128, 256, 512), None)
DLA46_c = partial(DLA, (1, 2, 2, 1), _COMPACT)
DLA46x_c = partial(DLA, (1, 2, 2, 1), _COMPACT, (32, 4))
DLA60 = partial(DLA, (1, 2, 3, 1), _WIDE)
DLA60x = partial(DLA, (1, 2, 3, 1), _WIDE, (32, 4))
DLA60x_c = partial(DLA, (1, 2, 3, 1), _COMPACT, (32, 4))
DLA102 = partial(DLA, (1, 3, 4, 1), _WIDE, residual=True)
DLA102x = partial(DLA, (1, 3, 4, 1), _WIDE, (32, 4), residual=True)
DLA102x2 = partial(DLA, (1, 3, 4, 1), _WIDE, (64, 4), residual=True)
DLA169 = partial(DLA, (2, 3, 5, 1), _WIDE, residual=True)
