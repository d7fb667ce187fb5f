"""Depthwise convolutions of the fused kernels against Paddle's in float64, on a GPU or an emulated one."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
from cuda_emulation import emulate_gpu
from paddle import Tensor
from paddle.nn import functional as F

from ppcls.arch.fused import depthwise as module
from ppcls.arch.fused.depthwise import Window, convolve_depthwise, supports

TOLERANCE = {"float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}


@pytest.fixture(autouse=True)
def _emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate_gpu(monkeypatch, module)


def random(shape: tuple[int, ...], dtype: str, seed: int) -> Tensor:
    values = np.random.default_rng(seed).standard_normal(shape)
    tensor = paddle.to_tensor(values.astype("float32")).astype(dtype)
    tensor.stop_gradient = False
    return tensor


def double(tensor: Tensor) -> Tensor:
    exact = paddle.to_tensor(tensor.astype("float32").numpy().astype("float64"))
    exact.stop_gradient = False
    return exact


def assert_close(value: Tensor, expected: Tensor, tolerance: float) -> None:
    assert list(value.shape) == list(expected.shape)
    error = np.linalg.norm(value.astype("float32").numpy() - expected.numpy())
    assert error <= tolerance * np.linalg.norm(expected.numpy())


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize(
    ("sides", "channels", "kernel", "stride", "padding"),
    [
        ((7, 7), 96, 7, 1, (3, 3, 3, 3)),
        ((5, 16), 24, 3, 1, (1, 1, 1, 1)),
        ((9, 9), 72, 5, 1, (2, 2, 2, 2)),
        ((14, 14), 16, 3, 2, (1, 1, 1, 1)),
        ((15, 9), 16, 5, 2, (2, 2, 2, 2)),
        ((14, 14), 64, 3, 2, (0, 2, 0, 2)),
        ((18, 12), 40, 5, 2, (1, 3, 1, 3)),
        ((1, 1), 40, 3, 1, (1, 1, 1, 1)),
    ],
)
def test_convolve_depthwise_matches_float64(
    sides: tuple[int, int],
    channels: int,
    kernel: int,
    stride: int,
    padding: tuple[int, int, int, int],
    biased: bool,
    dtype: str,
) -> None:
    x = random((2, *sides, channels), dtype, 1)
    weight = random((channels, 1, kernel, kernel), "float32", 2)
    bias = random((channels,), "float32", 3) if biased else None
    y = convolve_depthwise(x, weight, bias, Window(stride, padding))
    gradient = random(tuple(y.shape), dtype, 4)
    y.backward(gradient)

    tensors = [x, weight, *([] if bias is None else [bias])]
    exact = list(map(double, tensors))
    image = exact[0].transpose([0, 3, 1, 2])
    shape = (stride, list(padding), 1, channels)
    expected = F.conv2d(image, exact[1], exact[2] if biased else None, *shape).transpose([0, 2, 3, 1])
    expected.backward(double(gradient))
    assert_close(y, expected, TOLERANCE[dtype])
    for tensor, reference in zip(tensors, exact, strict=True):
        assert tensor.grad.dtype == tensor.dtype
        assert_close(tensor.grad, reference.grad, TOLERANCE[dtype] if tensor is x else 1e-5)


def test_convolve_depthwise_computes_only_needed_gradients() -> None:
    x, weight = random((1, 5, 5, 8), "float16", 1), random((8, 1, 3, 3), "float32", 2)
    weight.stop_gradient = True
    convolve_depthwise(x, weight, None, Window(1, (1, 1, 1, 1))).sum().backward()
    assert weight.grad is None
    assert x.grad is not None


@pytest.mark.parametrize(
    ("weight", "stride", "channels", "dtype", "expected"),
    [
        ([8, 1, 3, 3], (1, 1), 8, "float16", True),
        ([8, 1, 7, 7], (2, 2), 8, "bfloat16", True),
        ([8, 1, 3, 3], (1, 1), 8, "float32", True),
        ([8, 1, 3, 3], (1, 1), 8, "float64", False),
        ([16, 1, 3, 3], (1, 1), 8, "float16", False),
        ([8, 2, 3, 3], (1, 1), 16, "float16", False),
        ([8, 1, 3, 5], (1, 1), 8, "float16", False),
        ([8, 1, 4, 4], (1, 1), 8, "float16", False),
        ([8, 1, 3, 3], (1, 2), 8, "float16", False),
        ([7, 1, 3, 3], (1, 1), 7, "float16", False),
    ],
)
def test_supports(
    weight: list[int], stride: tuple[int, int], channels: int, dtype: str, expected: Any
) -> None:
    assert supports(weight, stride, channels, getattr(paddle, dtype)) is expected
