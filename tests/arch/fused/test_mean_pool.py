"""The mean of all pixels against NumPy in float64, on a GPU or an emulated one."""

from __future__ import annotations

import copy

import numpy as np
import paddle
import pytest
from cuda_emulation import emulate_gpu
from paddle import Tensor, nn

from ppcls.arch.fused import mean_pool as module
from ppcls.arch.fused.layers import fuse
from ppcls.arch.fused.mean_pool import mean_pool, pool_squares

TOLERANCE = {"float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}


@pytest.fixture(autouse=True)
def _emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate_gpu(monkeypatch, module)


def random(shape: tuple[int, ...], dtype: str, seed: int) -> Tensor:
    values = np.random.default_rng(seed).standard_normal(shape) + 0.5
    tensor = paddle.to_tensor(values.astype("float32")).astype(dtype)
    tensor.stop_gradient = False
    return tensor


def exact(tensor: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    values: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = tensor.astype("float32").numpy()
    return values.astype("float64")


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(
    "shape", [(2, 7, 7, 8), (1, 1, 1, 16), (3, 5, 9, 24), (2, 14, 14, 136), (1, 33, 31, 64), (2, 3, 3, 1024)]
)
def test_mean_pool_matches_float64(shape: tuple[int, ...], dtype: str) -> None:
    x = random(shape, dtype, 1)
    y = mean_pool(x)
    gradient = random((shape[0], 1, 1, shape[3]), dtype, 2)
    y.backward(gradient)
    expected = exact(x).mean((1, 2), keepdims=True)
    np.testing.assert_allclose(exact(y), expected, rtol=0, atol=TOLERANCE[dtype])
    spread = np.broadcast_to(exact(gradient) / (shape[1] * shape[2]), shape)
    np.testing.assert_allclose(exact(x.grad), spread, rtol=TOLERANCE[dtype], atol=1e-7)
    assert (y.dtype, x.grad.dtype) == (x.dtype, x.dtype)


def test_mean_pool_keeps_nan() -> None:
    x = paddle.zeros([1, 40, 40, 8])
    x[0, 39, 39, 3] = float("nan")
    assert np.isnan(mean_pool(x).numpy()).ravel().tolist() == [False] * 3 + [True] + [False] * 4


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(("shape", "side"), [((2, 6, 4, 8), 2), ((1, 9, 6, 40), 3), ((3, 28, 56, 136), 4)])
def test_pool_squares_matches_float64(shape: tuple[int, ...], side: int, dtype: str) -> None:
    x = random(shape, dtype, 1)
    batch, height, width, channels = shape
    squares = exact(x).reshape(batch, height // side, side, width // side, side, channels)
    y = pool_squares(x, side)
    assert y.dtype == x.dtype
    np.testing.assert_allclose(exact(y), squares.mean((2, 4)), rtol=0, atol=2 * TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("layer", "replaced"),
    [
        (nn.AvgPool2D(2, 2, data_format="NHWC"), True),
        (nn.AvgPool2D(2, data_format="NHWC"), True),
        (nn.AvgPool2D(2, 2), False),
        (nn.AvgPool2D(3, 2, data_format="NHWC"), False),
        (nn.AvgPool2D(2, 2, padding=1, data_format="NHWC"), False),
        (nn.AvgPool2D(2, 2, ceil_mode=True, data_format="NHWC"), True),
        (nn.AvgPool2D(2, 2, divisor_override=3, data_format="NHWC"), False),
        (nn.AvgPool2D([2, 2], 2, data_format="NHWC"), False),
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(2, 4, 6, 4), (2, 5, 4, 4), (2, 4, 4, 3)])
def test_fuse_replaces_only_means_of_squares(layer: nn.Layer, replaced: bool, shape: tuple[int, ...]) -> None:
    x = random(shape, "float32", 1)
    layer = copy.deepcopy(layer)
    expected = layer(x)
    fuse(layer)
    assert ("forward" in vars(layer)) == replaced
    with paddle.no_grad():
        np.testing.assert_allclose(layer(x).numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)
    layer(x).sum().backward()
    assert x.grad is not None, "with gradients, Paddle's operator is used"


@pytest.mark.parametrize(
    ("layer", "replaced"),
    [
        (nn.AdaptiveAvgPool2D(1, data_format="NHWC"), True),
        (nn.AdaptiveAvgPool2D((1, 1), data_format="NHWC"), True),
        (nn.AdaptiveAvgPool2D(1), False),
        (nn.AdaptiveAvgPool2D(2, data_format="NHWC"), False),
    ],
    ids=str,
)
def test_fuse_replaces_only_means_of_all_pixels(layer: nn.Layer, replaced: bool) -> None:
    x = random((2, 4, 4, 4), "float32", 1)
    expected = layer(x).numpy()
    fuse(layer)
    assert ("forward" in vars(layer)) == replaced
    np.testing.assert_allclose(layer(x).numpy(), expected, rtol=1e-5, atol=1e-6)
    odd = random((2, 4, 4, 3), "float32", 1)  # the channels fill no whole vectors
    np.testing.assert_allclose(layer(odd).numpy(), type(layer).forward(layer, odd).numpy())
