"""SE-ResNeXt and SENet-154 (Hu et al. 2017, https://arxiv.org/abs/1709.01507): channels weighted.

Parameters, in millions: SE_ResNeXt50_32x4d 27.6, SE_ResNeXt101_32x4d 49.0, SE_ResNeXt50_vd_32x4d 27.7,
SENet154_vd 121.7.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from paddle import nn

from ppcls.arch.residual import BottleneckBlock, NumberedResNet
from ppcls.arch.resnext import WIDTHS, resnext_style


def _se_resnext(
    depths: tuple[int, int, int, int], groups: int = 32, *, vd: bool = False
) -> Callable[..., nn.Layer]:
    return partial(
        NumberedResNet,
        BottleneckBlock,
        depths,
        resnext_style(groups, vd=vd, excited=True),
        stem=(64, 64, 128) if vd else (64,),
        widths=WIDTHS[groups],
    )


SE_ResNeXt50_32x4d = _se_resnext((3, 4, 6, 3))
SE_ResNeXt101_32x4d = _se_resnext((3, 4, 23, 3))
SE_ResNeXt50_vd_32x4d = _se_resnext((3, 4, 6, 3), vd=True)
SENet154_vd = _se_resnext((3, 8, 36, 3), 64, vd=True)
