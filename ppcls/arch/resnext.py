"""ResNeXt (Xie et al. 2016, https://arxiv.org/abs/1611.05431): a bottleneck's 3x3 convolution in groups.

``32x4d``: 32 groups of 4 channels in the first stage.
The "vd" networks (He et al. 2018, https://arxiv.org/abs/1812.01187) begin with three 3x3 convolutions, and
their shortcuts average before they project.

Parameters, in millions, with and without "vd" alike: ResNeXt50 25.0 (32x4d) and 45.2 (64x4d),
ResNeXt101 44.2 and 83.5, ResNeXt152 60.0 and 115.0.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from paddle import nn

from ppcls.arch.conv_norm import UnderscoredConvNorm
from ppcls.arch.residual import BottleneckBlock, NumberedResNet, Style

WIDTHS = {32: (128, 256, 512, 1024), 64: (256, 512, 1024, 2048)}  # of the four stages, for groups of 4


def resnext_style(groups: int, *, vd: bool = False, excited: bool = False) -> Style:
    """Returns the style of ``groups`` groups; the output has 256 channels in the first stage with any."""
    return Style(UnderscoredConvNorm, groups, 64 // groups, vd, excited)


def _resnext(depths: tuple[int, int, int, int], groups: int, *, vd: bool = False) -> Callable[..., nn.Layer]:
    return partial(
        NumberedResNet,
        BottleneckBlock,
        depths,
        resnext_style(groups, vd=vd),
        stem=(32, 32, 64) if vd else (64,),
        widths=WIDTHS[groups],
    )


ResNeXt50_32x4d = _resnext((3, 4, 6, 3), 32)
ResNeXt50_64x4d = _resnext((3, 4, 6, 3), 64)
ResNeXt101_32x4d = _resnext((3, 4, 23, 3), 32)
ResNeXt101_64x4d = _resnext((3, 4, 23, 3), 64)
ResNeXt152_32x4d = _resnext((3, 8, 36, 3), 32)
ResNeXt152_64x4d = _resnext((3, 8, 36, 3), 64)

ResNeXt50_vd_32x4d = _resnext((3, 4, 6, 3), 32, vd=True)
ResNeXt50_vd_64x4d = _resnext((3, 4, 6, 3), 64, vd=True)
ResNeXt101_vd_32x4d = _resnext((3, 4, 23, 3), 32, vd=True)
ResNeXt101_vd_64x4d = _resnext((3, 4, 23, 3), 64, vd=True)
ResNeXt152_vd_32x4d = _resnext((3, 8, 36, 3), 32, vd=True)
ResNeXt152_vd_64x4d = _resnext((3, 8, 36, 3), 64, vd=True)
