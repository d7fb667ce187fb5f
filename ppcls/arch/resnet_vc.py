"""ResNet "vc" (He et al. 2018, https://arxiv.org/abs/1812.01187, figure 2b): three 3x3 convolutions begin.

Parameters, in millions: ResNet50_vc 25.6.
"""

from __future__ import annotations

from functools import partial

from ppcls.arch.residual import BottleneckBlock, NumberedResNet

ResNet50_vc = partial(NumberedResNet, BottleneckBlock, (3, 4, 6, 3), stem=(32, 32, 64))
