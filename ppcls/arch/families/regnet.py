"""RegNetX (Radosavovic et al. 2020, https://arxiv.org/abs/2003.13678).

Blocks are ResNeXt bottlenecks whose convolutions all have the same number of channels. A formula with three
numbers defines the widths of the blocks. Consecutive blocks of the same width form a stage.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import groupby
from typing import ClassVar

from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.layers.conv_norm import DataFormat, UnderscoredConvNorm, uniform_linear
from ppcls.arch.layers.residual import BottleneckBlock, ResidualStyle
from ppcls.arch.public.names import PublicNames

_STEM = 32
_MULTIPLE = 8  # all widths are multiples of this number


def plan_stages(slope: float, first: int, ratio: float, depth: int, group: int) -> list[tuple[int, int, int]]:
    """Returns the width, the number of groups and the number of blocks of each stage.

    Args:
        slope: Increase of the width per block (equation 2).
        first: Width of the first block.
        ratio: Ratio of the widths of consecutive stages (equations 3 and 4).
        depth: Total number of blocks.
        group: Number of channels per group. Widths are rounded to multiples of this number.
    """
    steps = [round(math.log(1 + slope * j / first) / math.log(ratio)) for j in range(depth)]
    widths = [round(first * ratio**step / _MULTIPLE) * _MULTIPLE for step in steps]
    stages = []
    for width, blocks in groupby(widths):
        size = min(group, width)
        groups = round(width / size)
        stages.append((groups * size, groups, len(list(blocks))))
    return stages


class RegNet(nn.Layer):  # type: ignore[misc]
    """The RegNetX network. The docstring of `plan_stages` describes the first five arguments."""

    public_names: ClassVar[PublicNames] = PublicNames(
        timm={
            r"^conv\.": "stem.",
            r"^s(\d)_b(\d+)\.": r"s\1.b\2.",
            r"\.conv(\d)\.": r".conv{\1+1}.",
            r"\.short\.": ".downsample.",
            r"\.": (".conv.", ".bn."),
            r"^out\.": "head.fc.",
        },
        torchvision={
            r"^conv\.": "stem.",
            r"^s(\d)_b(\d+)\.": r"trunk_output.block\1.block\1-{\2-1}.",
            r"\.conv(\d)\.": r".f.{\1:a b c}.",
            r"\.short\.": ".proj.",
            r"\.": (".0.", ".1."),
            r"^out\.": "fc.",
        },
    )

    def __init__(
        self,
        slope: float,
        first: int,
        ratio: float,
        depth: int,
        group: int,
        class_num: int = 1000,
        data_format: DataFormat = "NCHW",
        input_image_channel: int = 3,
    ) -> None:
        super().__init__()
        self.conv = UnderscoredConvNorm(input_image_channel, _STEM, 3, 2, act=F.relu, data_format=data_format)
        channels = _STEM
        self._blocks = []
        for stage, (width, groups, blocks) in enumerate(plan_stages(slope, first, ratio, depth, group), 1):
            style = ResidualStyle(UnderscoredConvNorm, groups, expansion=1)
            for i in range(blocks):
                block = BottleneckBlock(channels, width, 1 if i else 2, i == 0, style, data_format)
                self._blocks.append(self.add_sublayer(f"s{stage}_b{i + 1}", block))
                channels = width
        self.avg_pool = nn.AdaptiveAvgPool2D(1, data_format=data_format)
        self.out = uniform_linear(channels, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [B, C, H, W] (or NHWC) to logits [B, class_num]."""
        x = self.conv(x)
        for block in self._blocks:
            x = block(x)
        return self.out(self.avg_pool(x).flatten(1))


# The numbers are from appendix D of the paper.
RegNetX_200MF = partial(RegNet, 36.44, 24, 2.49, 13, 8)
RegNetX_400MF = partial(RegNet, 24.48, 24, 2.54, 22, 16)
RegNetX_600MF = partial(RegNet, 36.97, 48, 2.24, 16, 24)
RegNetX_800MF = partial(RegNet, 35.73, 56, 2.28, 16, 16)
RegNetX_1600MF = partial(RegNet, 34.01, 80, 2.25, 18, 24)
RegNetX_3200MF = partial(RegNet, 26.31, 88, 2.25, 25, 48)
RegNetX_4GF = partial(RegNet, 38.65, 96, 2.43, 23, 40)
RegNetX_6400MF = partial(RegNet, 60.83, 184, 2.07, 17, 56)
RegNetX_8GF = partial(RegNet, 49.56, 80, 2.88, 23, 120)
RegNetX_12GF = partial(RegNet, 73.36, 168, 2.37, 19, 112)
RegNetX_16GF = partial(RegNet, 55.59, 216, 2.1, 22, 128)
RegNetX_32GF = partial(RegNet, 69.86, 320, 2.0, 23, 168)
