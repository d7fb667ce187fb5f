"""A convolution of one pixel is a matrix product, and trains as such."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from ppcls.arch.convolution import Conv2D


def make(**changes: object) -> Conv2D:
    paddle.seed(1)
    plain = {"in_channels": 6, "out_channels": 8, "kernel_size": 1, "bias_attr": False, "data_format": "NHWC"}
    return Conv2D(**{**plain, **changes})


@pytest.mark.parametrize("padding", [0, [0, 0]])
def test_the_product_is_the_convolution(padding: object) -> None:
    conv = make(padding=padding)
    assert conv.is_product
    image = paddle.randn([2, 5, 4, 6])
    found = []
    for forward in (conv, conv.product):
        x = image.clone()
        x.stop_gradient = False
        y = forward(x)
        (y * paddle.arange(8, dtype="float32")).sum().backward()
        found.append([each.numpy() for each in (y, x.grad, conv.weight.grad)])
        conv.clear_gradients()
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"data_format": "NCHW"},
        {"kernel_size": 3},
        {"stride": 2},
        {"groups": 2},
        {"padding": 1},
        {"padding": [0, 0, 1, 0]},
        {"bias_attr": None},
    ],
)
def test_others_stay_convolutions(changes: dict[str, object]) -> None:
    assert not make(**changes).is_product


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", [1, 3])
def test_in_float16_it_is_as_exact(kernel: int) -> None:
    conv = make(in_channels=64, out_channels=128, kernel_size=kernel, padding=kernel // 2)
    image = paddle.randn([4, 14, 14, 64])
    exact = conv(image)
    conv.to(dtype="float16")
    half = conv(image.astype("float16")).astype("float32")
    np.testing.assert_allclose(half.numpy(), exact.numpy(), atol=0.02)
