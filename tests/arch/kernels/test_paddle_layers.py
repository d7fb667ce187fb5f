"""The private attributes of Paddle's layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.nn import functional as F

from ppcls.arch.kernels.paddle_layers import (
    dilation_of,
    epsilon_of,
    explicit_padding,
    groups_of,
    layout_of,
    momentum_of,
    normalized_axes,
    output_size_of,
    padding_argument,
    pads_zeros,
    replace_weight,
    running_statistics,
    set_momentum_of,
    stride_of,
    use_running_statistics,
    uses_running_statistics,
)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("padding", [0, 1, [2, 1], "SAME", "VALID", [1, 2, 0, 3]])
@pytest.mark.parametrize(("stride", "dilation", "groups"), [(1, 1, 1), ((2, 1), 1, 2), (1, (1, 2), 4)])
def test_settings_of_a_convolution_compute_what_the_layer_computes(
    layout: str, padding: object, stride: object, dilation: object, groups: int
) -> None:
    layer = nn.Conv2D(4, 8, 3, stride, padding, dilation, groups, data_format=layout)
    image = paddle.randn([2, 4, 9, 8] if layout == "NCHW" else [2, 9, 8, 4])
    settings = {"dilation": list(dilation_of(layer)), "groups": groups_of(layer)}
    kernel = (layer.weight, layer.bias, list(stride_of(layer)))
    output = F.conv2d(image, *kernel, padding_argument(layer), data_format=layout_of(layer), **settings)
    np.testing.assert_array_equal(output.numpy(), layer(image).numpy())
    explicit = explicit_padding(layer)
    assert (explicit is None) == isinstance(padding, str)
    if explicit is not None:
        output = F.conv2d(image, *kernel, list(explicit), data_format=layout_of(layer), **settings)
        np.testing.assert_array_equal(output.numpy(), layer(image).numpy())


@pytest.mark.parametrize(("size", "expected"), [(1, (1, 1)), ((2, 3), (2, 3))])
def test_settings_of_adaptive_pooling(size: Any, expected: tuple[int, int]) -> None:
    layer = nn.AdaptiveAvgPool2D(size, data_format="NHWC")
    assert (output_size_of(layer), layout_of(layer)) == (expected, "NHWC")
    assert layer(paddle.randn([1, 6, 6, 2])).shape == [1, *expected, 2]


def test_padding_other_than_zeros_is_not_explicit() -> None:
    layer = nn.Conv2D(4, 4, 3, padding=1, padding_mode="reflect")
    assert not pads_zeros(layer)
    assert explicit_padding(layer) is None


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_settings_of_batch_norm_compute_its_running_statistics(layout: str) -> None:
    norm = nn.BatchNorm2D(3, epsilon=0.5, data_format=layout)
    set_momentum_of(norm, 0.25)
    assert (momentum_of(norm), epsilon_of(norm), layout_of(norm)) == (0.25, 0.5, layout)
    image = paddle.randn([4, 3, 5, 5] if layout == "NCHW" else [4, 5, 5, 3])
    axes = [0, 2, 3] if layout == "NCHW" else [0, 1, 2]
    norm(image)
    mean, variance = running_statistics(norm)
    np.testing.assert_allclose(mean.numpy(), 0.75 * image.mean(axes).numpy(), rtol=1e-5, atol=1e-6)
    expected = 0.25 + 0.75 * image.var(axes, unbiased=False).numpy()
    np.testing.assert_allclose(variance.numpy(), expected, rtol=1e-5)


def test_batch_norm_with_running_statistics_does_not_change_them() -> None:
    norm = nn.BatchNorm2D(3)
    assert not uses_running_statistics(norm)
    assert not uses_running_statistics(nn.Linear(2, 2))
    use_running_statistics(norm)
    assert uses_running_statistics(norm)
    before = [value.numpy() for value in running_statistics(norm)]
    norm(paddle.randn([2, 3, 4, 4]) + 7)
    np.testing.assert_array_equal([value.numpy() for value in running_statistics(norm)], before)


def test_settings_of_layer_norm() -> None:
    assert normalized_axes(nn.LayerNorm([4, 5])) == 2
    assert (normalized_axes(nn.LayerNorm(4)), epsilon_of(nn.LayerNorm(4, 0.5))) == (1, 0.5)


def test_replaced_weight_is_used_and_receives_no_parameter() -> None:
    layer = nn.Linear(2, 2, bias_attr=False)
    weight = layer.weight
    replace_weight(layer, weight * 3.0)
    image = paddle.ones([1, 2])
    np.testing.assert_allclose(layer(image).numpy(), 3.0 * (image @ weight).numpy(), rtol=1e-6)
    layer(image).sum().backward()
    np.testing.assert_array_equal(weight.grad.numpy(), np.full([2, 2], 3.0))
