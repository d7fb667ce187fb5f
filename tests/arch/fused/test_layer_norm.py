"""Layer norm, residual sums and GELU against Paddle's operators in float64, on a GPU or an emulated one."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
from cuda_emulation import emulate_gpu
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.fused import gelu as gelu_module
from ppcls.arch.fused import layer_norm as module
from ppcls.arch.fused.gelu import compute_gradients, gelu
from ppcls.arch.fused.layer_norm import Branch, add, add_normalize, find_problem, normalize, normalize_fork

TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
# of the residual stream and of branches
DTYPES = [("float32", "float32"), ("float32", "float16"), ("float16", "float16"), ("float32", "bfloat16")]
CHANNELS = [24, 96, 192, 384, 776]


@pytest.fixture(autouse=True)
def _emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate_gpu(monkeypatch, module, gelu_module)


def random(shape: tuple[int, ...], dtype: str, seed: int, shift: float = 0.0) -> Tensor:
    values = np.random.default_rng(seed).standard_normal(shape) + shift
    tensor = paddle.to_tensor(values.astype("float32")).astype(dtype)
    tensor.stop_gradient = False
    return tensor


def double(tensor: Tensor) -> Tensor:
    exact = paddle.to_tensor(tensor.astype("float32").numpy().astype("float64"))
    exact.stop_gradient = False
    return exact


def assert_close(value: Tensor, expected: Tensor, dtype: str) -> None:
    error = value.astype("float32").numpy() - expected.numpy()
    assert np.linalg.norm(error) <= TOLERANCE[dtype] * np.linalg.norm(expected.numpy())


def make_norm(channels: int) -> tuple[nn.LayerNorm, nn.LayerNorm]:
    norm = nn.LayerNorm(channels, 1e-6)
    norm.weight.set_value(random((channels,), "float32", 11, shift=1.0))
    norm.bias.set_value(random((channels,), "float32", 12))
    exact = nn.LayerNorm(channels, 1e-6)
    exact.to(dtype="float64")
    exact.weight.set_value(norm.weight.astype("float64"))
    exact.bias.set_value(norm.bias.astype("float64"))
    return norm, exact


def assert_gradients_close(values: list[Tensor], exact: list[Tensor], dtypes: list[str]) -> None:
    for value, reference, dtype in zip(values, exact, dtypes, strict=True):
        assert str(value.grad.dtype) == str(value.dtype)
        assert_close(value.grad, reference.grad, dtype)


@pytest.mark.parametrize(("stream", "dtype"), DTYPES)
@pytest.mark.parametrize("channels", CHANNELS)
def test_normalize_fork_matches_float64(channels: int, stream: str, dtype: str) -> None:
    norm, exact = make_norm(channels)
    x = random((3, 13, channels), stream, 1, shift=2.0)
    gradient, other = random((3, 13, channels), dtype, 2), random((3, 13, channels), stream, 3)
    y, same = normalize_fork(norm, x, getattr(paddle, dtype))
    paddle.autograd.backward([y, same * 1], [gradient, other])

    reference = double(x)
    expected = exact(reference)
    paddle.autograd.backward([expected, reference * 1], [double(gradient), double(other)])
    assert_close(y, expected, dtype)
    weights = [norm.weight, norm.bias], [exact.weight, exact.bias]
    assert_gradients_close([x, *weights[0]], [reference, *weights[1]], [dtype] * 3)


def test_normalize_matches_the_fork() -> None:
    norm, _ = make_norm(96)
    x = random((2, 5, 96), "float32", 1)
    alone = normalize(norm, x, paddle.float16)
    alone.backward(random((2, 5, 96), "float16", 2))
    gradient = x.grad.numpy().copy()
    x.clear_gradient()
    y, _ = normalize_fork(norm, x, paddle.float16)
    y.backward(random((2, 5, 96), "float16", 2))
    np.testing.assert_array_equal(alone.numpy(), y.numpy())
    np.testing.assert_array_equal(gradient, x.grad.numpy())


@pytest.mark.parametrize(("stream", "dtype"), DTYPES)
@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scale"])
@pytest.mark.parametrize("dropped", [False, True], ids=["all", "drop-path"])
def test_add_normalize_matches_float64(stream: str, dtype: str, scaled: bool, dropped: bool) -> None:
    channels = 192
    norm, exact = make_norm(channels)
    x, value = random((4, 7, channels), stream, 1), random((4, 7, channels), dtype, 2)
    scale = random((channels,), "float32", 3) if scaled else None
    factors = paddle.to_tensor([0.0, 1.25, 1.25, 0.0]) if dropped else None
    gradient, other = random(tuple(x.shape), dtype, 4), random(tuple(x.shape), stream, 5)
    y, total = add_normalize(norm, x, Branch(value, scale, factors))
    paddle.autograd.backward([y, total * 1], [gradient, other])

    tensors = [x, value, *([] if scale is None else [scale])]
    references = list(map(double, tensors))
    addend = references[1] * (references[2] if scaled else 1.0)
    if factors is not None:
        addend = addend * factors.astype("float64").reshape([4, 1, 1])
    total_expected = references[0] + addend
    expected = exact(total_expected)
    paddle.autograd.backward([expected, total_expected * 1], [double(gradient), double(other)])
    assert_close(y, expected, dtype)
    assert_close(total, total_expected, stream)
    assert_gradients_close([norm.weight, norm.bias], [exact.weight, exact.bias], [dtype] * 2)
    assert_gradients_close(tensors, references, [dtype] * len(tensors))


@pytest.mark.parametrize(("stream", "dtype"), DTYPES)
@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scale"])
@pytest.mark.parametrize("biased", [False, True], ids=["no-bias", "bias"])
@pytest.mark.parametrize("dropped", [False, True], ids=["all", "drop-path"])
def test_add_matches_float64(stream: str, dtype: str, scaled: bool, biased: bool, dropped: bool) -> None:
    x, value = random((3, 2, 5, 96), stream, 1), random((3, 2, 5, 96), dtype, 2)
    scale = random((96,), "float32", 3) if scaled else None
    bias = random((96,), "float32", 5) if biased else None
    factors = paddle.to_tensor([0.0, 1.25, 1.25]) if dropped else None
    gradient = random(tuple(x.shape), stream, 4)
    total = add(x, Branch(value, scale, factors, bias))
    total.backward(gradient)

    tensors = [tensor for tensor in (x, value, scale, bias) if tensor is not None]
    references = list(map(double, tensors))
    addend = references[1] + (references[-1] if biased else 0.0)
    addend = addend * (references[2] if scaled else 1.0)
    if factors is not None:
        addend = addend * factors.astype("float64").reshape([3, 1, 1, 1])
    expected = references[0] + addend
    expected.backward(double(gradient))
    assert_close(total, expected, stream)
    assert_gradients_close(tensors, references, [dtype] * len(tensors))


def test_add_small_scale_keeps_the_gradient_of_the_bias() -> None:
    x, value = random((2, 3, 96), "float32", 1), random((2, 3, 96), "float16", 2)
    scale, bias = paddle.full([96], 1e-6), random((96,), "float32", 5)
    scale.stop_gradient = False
    gradient = random((2, 3, 96), "float32", 4) * 1e-3
    add(x, Branch(value, scale, None, bias)).backward(gradient)
    np.testing.assert_allclose(bias.grad.numpy(), 1e-6 * gradient.sum([0, 1]).numpy(), rtol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_gelu_matches_float64(dtype: str) -> None:
    x = random((3, 17, 24), dtype, 1)
    with paddle.no_grad():
        x.scale_(3.0)
    gradient = random(tuple(x.shape), dtype, 2)
    y = gelu(x)
    y.backward(gradient)
    reference = double(x)
    expected = F.gelu(reference)
    expected.backward(double(gradient))
    assert_close(y, expected, dtype)
    assert_close(x.grad, reference.grad, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_compute_gradients_matches_float64(dtype: str) -> None:
    x, gradient = random((3, 50, 264), dtype, 1), random((3, 50, 264), dtype, 2)
    dx, dbias = compute_gradients(gradient, x)
    reference = double(x)
    F.gelu(reference).backward(double(gradient))
    assert_close(dx, reference.grad, dtype)
    assert dbias.dtype == paddle.float32
    assert_close(dbias, reference.grad.sum([0, 1]), dtype)


@pytest.mark.parametrize(
    ("channels", "dtype", "expected"),
    [(96, "float16", True), (2048, "bfloat16", True), (100, "float16", False), (2056, "float16", False)],
)
def test_kernels_have_whole_vectors_that_fit_in_registers(channels: int, dtype: str, expected: Any) -> None:
    assert (find_problem(channels, getattr(paddle, dtype)) is None) is expected
