"""Attention by the fused kernels against plain operators in float64, on a GPU or an emulated one."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from cuda_emulation import emulate_gpu
from numpy.typing import NDArray
from paddle import Tensor
from paddle.nn import functional as F

from ppcls.arch.fused import attention as module
from ppcls.arch.fused.attention import Sequences, attend, attend_packed, find_problem

TOLERANCE = {"float16": 3e-3, "bfloat16": 2e-2}
DTYPES = list(TOLERANCE)


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


def reference(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, heads: int, scale: float
) -> Tensor:
    """Returns the attention within sequences [S, N, C] from plain operators."""
    query, key, value = (
        x.reshape([x.shape[0], x.shape[1], heads, -1]).transpose([0, 2, 1, 3]) for x in (query, key, value)
    )
    scores = (query * scale) @ key.transpose([0, 1, 3, 2])
    if bias is not None:
        scores = (scores.reshape([-1, *bias.shape]) + bias).reshape(scores.shape)
    mixed = F.softmax(scores, axis=-1) @ value
    return mixed.transpose([0, 2, 1, 3]).flatten(2)


def assert_close(value: Tensor, expected: Tensor, dtype: str) -> None:
    exact = expected.numpy()
    assert list(value.shape) == list(expected.shape)
    assert np.linalg.norm(value.astype("float32").numpy() - exact) <= TOLERANCE[dtype] * np.linalg.norm(exact)


@pytest.mark.parametrize(
    ("tokens", "heads", "width", "dtype"),
    [
        *((*shape, dtype) for shape in ((5, 2, 32), (64, 1, 64), (49, 3, 32)) for dtype in DTYPES),
        (80, 2, 64, "float16"),
        (197, 1, 64, "bfloat16"),  # on the emulated GPU, long sequences take two seconds
        (300, 1, 32, "float16"),
    ],
)
def test_attend_packed_matches_float64(tokens: int, heads: int, width: int, dtype: str) -> None:
    channels, scale = heads * width, width**-0.5
    packed = random((2, tokens, 3 * channels), dtype, 1)
    gradient = random((2, tokens, channels), dtype, 2)
    output = attend_packed(packed, None, Sequences(heads, scale))
    output.backward(gradient)
    exact = double(packed)
    expected = reference(*exact.split(3, axis=-1), None, heads, scale)
    expected.backward(double(gradient))
    assert_close(output, expected, dtype)
    assert_close(packed.grad, exact.grad, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias_windows", [1, 2], ids=["shared-bias", "bias-per-window"])
@pytest.mark.parametrize("frozen", [False, True], ids=["trained", "frozen"])
def test_attend_packed_bias_matches_float64(bias_windows: int, frozen: bool, dtype: str) -> None:
    tokens, heads, width, scale = 49, 2, 32, 32**-0.5
    packed = random((6, tokens, 3 * heads * width), dtype, 1)
    bias = random((bias_windows, heads, tokens, tokens), "float32", 2)
    bias.stop_gradient = frozen
    gradient = random((6, tokens, heads * width), dtype, 3)
    output = attend_packed(packed, bias, Sequences(heads, scale))
    output.backward(gradient)
    exact, exact_bias = double(packed), double(bias)
    expected = reference(*exact.split(3, axis=-1), exact_bias, heads, scale)
    expected.backward(double(gradient))
    assert_close(output, expected, dtype)
    assert_close(packed.grad, exact.grad, dtype)
    if frozen:
        assert bias.grad is None
    else:
        assert_close(bias.grad, exact_bias.grad, dtype)


def window_order(side: int, window: int, shift: int) -> NDArray[np.int32]:
    """Returns the tokens of each shifted window of an image, [windows, tokens per window]."""
    image = np.arange(side**2).reshape(side, side)
    image = np.roll(image, (-shift, -shift), (0, 1))
    count = side // window
    parts = image.reshape(count, window, count, window).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(parts.reshape(count**2, window**2).astype("int32"))


@pytest.mark.parametrize("biased", [False, True], ids=["plain", "bias"])
def test_attend_packed_windows_of_images_match_float64(biased: bool) -> None:
    side, window, heads, width, scale = 12, 6, 2, 32, 0.25
    order = window_order(side, window, 2)
    packed = random((3, side**2, 3 * heads * width), "float16", 1)
    bias = random((len(order), heads, window**2, window**2), "float32", 2) if biased else None
    gradient = random((3, side**2, heads * width), "float16", 3)
    output = attend_packed(packed, bias, Sequences(heads, scale, paddle.to_tensor(order)))
    output.backward(gradient)

    exact, exact_bias = double(packed), None if bias is None else double(bias)
    sequences = exact[:, order.flatten().tolist()].reshape([-1, window**2, packed.shape[-1]])
    mixed = reference(*sequences.split(3, axis=-1), exact_bias, heads, scale)
    inverse = np.argsort(order.flatten()).tolist()
    expected = mixed.reshape([3, side**2, -1])[:, inverse]
    expected.backward(double(gradient))
    assert_close(output, expected, "float16")
    assert_close(packed.grad, exact.grad, "float16")
    if bias is not None and exact_bias is not None:
        assert_close(bias.grad, exact_bias.grad, "float16")


@pytest.mark.parametrize(("queries", "keys"), [(70, 9), (9, 70)])
def test_attend_other_keys_matches_float64(queries: int, keys: int) -> None:
    heads, width, scale = 2, 64, 0.125
    shapes = [(2, count, heads * width) for count in (queries, keys, keys)]
    tensors = [random(shape, "float16", seed) for seed, shape in enumerate(shapes)]
    gradient = random(shapes[0], "float16", 4)
    output = attend(*tensors, None, Sequences(heads, scale))
    output.backward(gradient)
    exact = list(map(double, tensors))
    expected = reference(*exact, None, heads, scale)
    expected.backward(double(gradient))
    assert_close(output, expected, "float16")
    for tensor, double_tensor in zip(tensors, exact, strict=True):
        assert_close(tensor.grad, double_tensor.grad, "float16")


def test_attend_packed_large_scores_do_not_overflow() -> None:
    packed = random((1, 40, 3 * 32), "float16", 1) * 30.0
    output = attend_packed(packed, None, Sequences(1, 1.0))
    expected = reference(*double(packed).split(3, axis=-1), None, 1, 1.0)
    assert_close(output, expected, "float16")


@pytest.mark.parametrize(
    ("width", "dtype", "biased", "keys", "problem"),
    [
        (64, "float16", False, 500, None),
        (32, "bfloat16", True, 64, None),
        (32, "bfloat16", True, 65, "the kernels have gradients of a bias for at most 64 tokens, got 65"),
        (48, "float16", False, 10, "the kernels need heads of width 32 or 64, got 48"),
        (64, "float32", False, 10, "the kernels need float16 or bfloat16, got float32"),
    ],
)
def test_find_problem(width: int, dtype: str, biased: bool, keys: int, problem: str | None) -> None:
    bias = random((1, 1, 2, 2), "float32", 1) if biased else None
    assert find_problem(width, getattr(paddle, dtype), bias, keys) == problem
    if biased:
        assert bias is not None
        bias.stop_gradient = True  # as in an evaluation
        assert find_problem(width, getattr(paddle, dtype), bias, keys) is None
