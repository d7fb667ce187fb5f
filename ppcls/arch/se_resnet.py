"""SE-ResNet (Hu et al. 2017, https://arxiv.org/abs/1709.01507): a ResNet with squeeze-and-excitation.

The "vd" networks (He et al. 2018, https://arxiv.org/abs/1812.01187) begin with three 3x3 convolutions, and
their shortcuts average before they project.

Parameters, in millions, with and without "vd" alike: SE_ResNet18 11.8, SE_ResNet34 22.0, SE_ResNet50 28.1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from paddle import nn

from ppcls.arch.conv_norm import UnderscoredConvNorm
from ppcls.arch.residual import BasicBlock, Block, BottleneckBlock, NumberedResNet, Style


def _se_resnet(
    kind: type[Block], depths: tuple[int, int, int, int], *, vd: bool = False
) -> Callable[..., nn.Layer]:
    style = Style(UnderscoredConvNorm, pooled_shortcut=vd, excited=True)
    return partial(NumberedResNet, kind, depths, style, stem=(32, 32, 64) if vd else (64,))


SE_ResNet18 = _se_resnet(BasicBlock, (2, 2, 2, 2))
SE_ResNet34 = _se_resnet(BasicBlock, (3, 4, 6, 3))
SE_ResNet50 = _se_resnet(BottleneckBlock, (3, 4, 6, 3))

SE_ResNet18_vd = _se_resnet(BasicBlock, (2, 2, 2, 2), vd=True)
SE_ResNet34_vd = _se_resnet(BasicBlock, (3, 4, 6, 3), vd=True)
SE_ResNet50_vd = _se_resnet(BottleneckBlock, (3, 4, 6, 3), vd=True)
