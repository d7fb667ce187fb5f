"""Compiled models compute the same as eager ones."""

from __future__ import annotations

from functools import partial

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F

from ppcls.arch.families.ghostnet import GhostBottleneck
from ppcls.arch.families.pp_hgnet import (
    AffineConvNorm,
    AggregationBlock,
    EffectiveSqueezeExcitation,
    LightConv,
    PPHGNetV2Stem,
)
from ppcls.arch.families.repvgg import RepVGGBlock
from ppcls.arch.families.res2net import Res2NetBlock, Res2NetStyle
from ppcls.arch.families.shufflenet_v2 import DownsamplingUnit, ShuffleUnit
from ppcls.arch.layers.conv_norm import ConvNorm


def test_compiled_blocks_equal_eager_blocks():
    paddle.seed(3)
    affine = partial(AffineConvNorm, act=F.relu)
    style = Res2NetStyle(expansion=1, share=4)
    scales = [Res2NetBlock(8, 64, 1, True, style, "NCHW"), Res2NetBlock(64, 64, 2, True, style, "NCHW")]
    for block in scales:
        block.name_filters("res2a")
    whole = nn.Sequential(
        PPHGNetV2Stem(3, 8, 8, affine, "NCHW"),
        RepVGGBlock(8, 8, 1, 1, False, "NCHW"),
        *scales,
        DownsamplingUnit(64, 8, F.relu, "NCHW"),
        ShuffleUnit(8, F.relu, "NCHW"),
        GhostBottleneck(8, 8, 8, 3, 1, True, "NCHW"),
        AggregationBlock(
            [ConvNorm(8, 8, 3), LightConv(8, 8, 5, affine)],
            (affine(24, 8, 1), EffectiveSqueezeExcitation(8, "NCHW")),
            True,
            "NCHW",
        ),
    )
    whole.eval()
    images = paddle.randn([2, 3, 32, 32])
    expected = whole(images).numpy()
    spec = paddle.static.InputSpec([None, 3, 32, 32], "float32")
    found = paddle.jit.to_static(whole, input_spec=[spec], full_graph=True)(images).numpy()
    assert expected.std() > 0
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_compiled_nhwc_stem_equals_the_eager_one() -> None:
    stem = nn.Sequential(ConvNorm(3, 8, 3, data_format="NHWC"))
    stem.eval()
    images = paddle.randn([2, 16, 16, 3])
    expected = stem(images).numpy()
    spec = paddle.static.InputSpec([None, 16, 16, 3], "float32")
    found = paddle.jit.to_static(stem, input_spec=[spec], full_graph=True)(images).numpy()
    assert expected.std() > 0
    np.testing.assert_allclose(found, expected, atol=1e-5)
