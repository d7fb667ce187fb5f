from __future__ import annotations

import paddle

from ppcls.arch.layers.conv_norm import ConvNorm


def test_grouped_convolution_of_three_channels_trains_in_nhwc() -> None:
    layer = ConvNorm(3, 6, 3, groups=3, data_format="NHWC")
    assert layer(paddle.randn([2, 4, 4, 3])).shape == [2, 4, 4, 6]
