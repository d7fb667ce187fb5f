from __future__ import annotations

import paddle
from paddle import nn

from ppcls.arch.cost import count_parameters, measure


def build(data_format: str = "NCHW") -> nn.Layer:
    return nn.Sequential(
        nn.Conv2D(4, 6, 3, stride=2, padding=1, groups=2, data_format=data_format),
        nn.BatchNorm2D(6, data_format=data_format),
        nn.AdaptiveAvgPool2D(1, data_format=data_format),
        nn.Flatten(),
        nn.Linear(6, 5),
    )


def test_measure_equals_count_by_hand():
    # 6 channels of 5 x 4 pixels from 2 channels in a window of 3 x 3; then 6 x 5.
    flops = 6 * 5 * 4 * 2 * 9 + 6 * 5
    parameters = 6 * 2 * 9 + 6 + 2 * 6 + 6 * 5 + 5
    assert measure(build, (4, 9, 7)) == (parameters, flops)
    assert measure(lambda: build("NHWC"), (9, 7, 4)) == (parameters, flops)
    assert count_parameters(build()) == parameters


def test_measure_ignores_frozen_layers_and_restores_dynamic_mode():
    def frozen() -> nn.Layer:
        model = build()
        model[0].weight.stop_gradient = True
        return model

    assert count_parameters(frozen()) == count_parameters(build()) - 108
    measure(frozen, (4, 9, 7))
    assert paddle.in_dynamic_mode()
