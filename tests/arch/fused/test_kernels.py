"""The fused kernels against float64 NumPy and Paddle's own operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import paddle
import pytest
from cuda_emulation import emulate_gpu
from numpy.typing import NDArray
from paddle import Tensor, nn
from paddle.nn import functional as F
from scipy.special import expit

from ppcls.arch.fused import batch_norm as batch_norm_module
from ppcls.arch.fused import cuda
from ppcls.arch.fused.batch_norm import batch_norm, normalize
from ppcls.arch.fused.convolution import convolve, convolve_fork, missing_channels
from ppcls.arch.fused.cuda import (
    CudaUnavailableError,
    compile_source,
    compiler_options,
    fills_vectors,
    read_source,
)
from ppcls.arch.fused.max_pool import max_pool
from ppcls.arch.kernels.geometry import Geometry

SOURCES: dict[str, tuple[str, ...]] = {  # with macros
    "attention.cu": ("HEAD=64", "BIASED=1"),
    "batch_norm.cu": (),
    "depthwise.cu": ("KERNEL=5", "STRIDE=2", "WIDTH=32", "TAIL=SWISH"),
    "excitation.cu": ("ACT=RELU",),
    "gelu.cu": (),
    "max_pool.cu": (),
    "mean_pool.cu": (),
    "pixels.cu": ("CHANNELS=4",),
    "sum_rows.cu": (),
    "tokens.cu": ("LANES=32", "CHUNKS=3", "STREAM=1"),
    "update.cu": (),
}
# Relative tolerance by dtype. Convolutions of float32 compute in TF32, whose products have 11 bits.
TOLERANCE = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
CONVOLUTION = {"float32": 2e-3, "float16": 4e-3, "bfloat16": 3e-2}
DTYPES = ["float32", "float16", "bfloat16"]
Formula = Callable[[NDArray[np.float64]], NDArray[np.float64]]


@pytest.fixture(autouse=True)
def _emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate_gpu(monkeypatch, batch_norm_module)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("file", SOURCES)
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_sources_compile_without_a_gpu(file: str, dtype: str, architecture: str) -> None:
    if file == "attention.cu" and dtype == "float32":
        return  # for half precision only
    defines = SOURCES[file]
    options = [f"--gpu-architecture={architecture}", *compiler_options(getattr(paddle, dtype), *defines)]
    try:
        assert compile_source(read_source(file), options)[:4] == b"\x7fELF"
    except CudaUnavailableError as error:
        if "can be loaded" not in str(error):
            raise
        pytest.skip("NVRTC is not installed")


def test_load_binary_compiles_once_and_again_if_the_cached_file_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []

    def compile_source(source: str, options: Sequence[str]) -> bytes:
        compiled.append(source)
        return f"{source} {options}".encode()

    library = SimpleNamespace(nvrtcVersion=lambda *_: 0)
    monkeypatch.setattr(cuda, "load_library", lambda _: library)
    monkeypatch.setattr(cuda, "compile_source", compile_source)
    monkeypatch.setenv("PPCLS_HOME", str(tmp_path))
    for source, option in [("a", "x"), ("a", "x"), ("a", "y"), ("b", "x")]:
        assert cuda.load_binary(source, [option]) == f"{source} ['{option}']".encode()
    assert compiled == ["a", "a", "b"]
    for file in tmp_path.glob("kernels/*"):
        file.write_bytes(file.read_bytes()[:-1])
    assert cuda.load_binary("b", ["x"]) == b"b ['x']"
    assert compiled == ["a", "a", "b", "b"]


@pytest.mark.parametrize(
    ("channels", "half", "single"), [(64, True, True), (12, False, True), (3, False, False)]
)
def test_fills_vectors_depends_on_the_size_of_a_value(channels: int, half: bool, single: bool) -> None:
    assert fills_vectors(channels, paddle.float16) is half
    assert fills_vectors(channels, paddle.float32) is single
    assert not fills_vectors(channels, paddle.float64)


@pytest.mark.parametrize(
    ("weight", "gradients", "missing"),
    [
        ((16, 3, 3, 3), False, 5),
        ((16, 3, 3, 3), True, 1),
        ((16, 3, 7, 7), False, 1),
        ((16, 1, 5, 5), False, 7),
        ((16, 1, 5, 5), True, 3),
        ((16, 4, 3, 3), False, 0),
        ((16, 12, 3, 3), False, 0),
    ],
)
def test_images_get_the_channels_that_cudnn_needs(
    weight: tuple[int, ...], gradients: bool, missing: int
) -> None:
    assert missing_channels(weight, gradients=gradients) == missing


@pytest.mark.parametrize("wrapped", [False, True])
def test_stream_of_paddle_2_and_3_is_found(wrapped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = SimpleNamespace(cuda_stream=7)
    current = SimpleNamespace(stream_base=stream) if wrapped else stream
    monkeypatch.setattr(paddle.device.cuda, "current_stream", lambda: current)
    assert cuda.current_stream() == 7


@pytest.mark.parametrize("context", [None, 5])
def test_copy_in_a_new_thread_gets_the_context_of_paddle(
    context: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def call_driver(name: str, *arguments: Any) -> None:
        calls.append(name)
        if name == "cuCtxGetCurrent":
            arguments[0]._obj.value = context

    target = paddle.zeros([4])
    monkeypatch.setattr(cuda, "_call_driver", call_driver)
    monkeypatch.setattr(cuda, "current_stream", lambda: 0)
    monkeypatch.setattr(paddle, "zeros", lambda _shape: calls.append("zeros"))
    cuda.copy_to_gpu(target, 4, np.ones(3, np.float32))
    kernel = ["zeros"] if context is None else []
    assert calls == ["cuCtxGetCurrent", *kernel, "cuMemcpyHtoDAsync_v2"]


def _random(shape: tuple[int, ...], dtype: str, seed: int, shift: float = 0.0) -> Tensor:
    values = np.random.default_rng(seed).standard_normal(shape) + shift
    tensor = paddle.to_tensor(values.astype("float32")).astype(dtype)
    tensor.stop_gradient = False
    return tensor


def _exact(tensor: Tensor) -> NDArray[np.float64]:
    values: NDArray[np.float64] = tensor.astype("float32").numpy().astype("float64")
    return values


def _assert_close(value: Tensor, expected: NDArray[Any], tolerance: float) -> None:
    error = np.linalg.norm(_exact(value) - expected)
    assert error <= tolerance * np.linalg.norm(expected)


TAILS: dict[str, tuple[Formula, Formula]] = {  # activations and their derivatives
    "none": (lambda z: z, np.ones_like),
    "relu": (lambda z: np.maximum(z, 0.0), lambda z: (z > 0).astype("float64")),
    "add_relu": (lambda z: np.maximum(z, 0.0), lambda z: (z > 0).astype("float64")),
    "hard_swish": (
        lambda z: z * np.clip(z + 3, 0, 6) / 6,
        lambda z: np.where(z <= -3, 0.0, np.where(z >= 3, 1.0, z / 3 + 0.5)),
    ),
    "swish": (lambda z: z * expit(z), lambda z: expit(z) * (1 + z * (1 - expit(z)))),
}
LARGE = [
    pytest.param(shape, marks=pytest.mark.gpu)
    for shape in [(8, 14, 14, 256), (4, 7, 7, 2048), (16, 28, 28, 64)]
]
SMALL = [(3, 5, 5, 24), (2, 3, 3, 96)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("shape", [*LARGE, *SMALL])
def test_batch_norm_matches_its_formulas(shape: tuple[int, ...], tail: str, dtype: str) -> None:
    channels, tolerance = shape[-1], TOLERANCE[dtype]
    norm = nn.BatchNorm2D(channels, data_format="NHWC")
    norm.weight.set_value(_random((channels,), "float32", 1, shift=2.0))
    norm.bias.set_value(_random((channels,), "float32", 2))
    x, shortcut = _random(shape, dtype, 3, shift=3.0), _random(shape, dtype, 4)
    gradient = _random(shape, dtype, 5)
    y = batch_norm(norm, x, shortcut if tail == "add_relu" else None, tail)
    y.backward(gradient)

    values, gamma = _exact(x).reshape(-1, channels), _exact(norm.weight)
    mean, variance = values.mean(0), values.var(0)
    normal = (_exact(x) - mean) / np.sqrt(variance + 1e-5)
    before = normal * gamma + _exact(norm.bias) + (_exact(shortcut) if tail == "add_relu" else 0.0)
    act, derivative = TAILS[tail]
    passed = _exact(gradient) * derivative(before)
    dbeta, dgamma = passed.sum((0, 1, 2)), (passed * normal).sum((0, 1, 2))
    rows = len(values)
    dx = gamma / np.sqrt(variance + 1e-5) * (passed - dbeta / rows - normal * dgamma / rows)
    _assert_close(y, act(before), tolerance)
    _assert_close(x.grad, dx, tolerance)
    _assert_close(norm.weight.grad, dgamma, tolerance)
    _assert_close(norm.bias.grad, dbeta, tolerance)
    _assert_close(norm._mean, 0.1 * mean, 1e-5)
    _assert_close(norm._variance, 0.9 + 0.1 * variance, 1e-5)
    if tail == "add_relu":
        _assert_close(shortcut.grad, passed, tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("shape", [*LARGE, *SMALL])
def test_normalize_uses_running_statistics_and_keeps_them(
    shape: tuple[int, ...], tail: str, dtype: str
) -> None:
    norm = nn.BatchNorm2D(shape[-1], data_format="NHWC")
    norm.eval()
    parameters = norm.weight, norm.bias, norm._mean, norm._variance
    for seed, parameter in enumerate(parameters):
        parameter.set_value(_random((shape[-1],), "float32", seed, shift=1.0).abs() + 0.1)
    gamma, beta, mean, variance = map(_exact, parameters)
    x, shortcut = _random(shape, dtype, 5, shift=1.0), _random(shape, dtype, 6)
    with paddle.no_grad():
        y = normalize(norm, x, shortcut if tail == "add_relu" else None, tail)
    expected = (_exact(x) - mean) / np.sqrt(variance + 1e-5) * gamma + beta
    expected += _exact(shortcut) if tail == "add_relu" else 0.0
    _assert_close(y, TAILS[tail][0](expected), TOLERANCE[dtype])
    assert (_exact(norm._mean) == mean).all()
    assert (_exact(norm._variance) == variance).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_batch_norm_nonfinite_input_reaches_output_and_statistics(value: float) -> None:
    norm = nn.BatchNorm2D(64, data_format="NHWC")
    images = np.ones((2, 4, 4, 64), "float32")
    images[1, 2, 3, 5] = value
    y = batch_norm(norm, paddle.to_tensor(images), None, "relu")
    finite = np.isfinite(y.numpy()).all((0, 1, 2))
    assert not finite[5]
    assert finite[np.arange(64) != 5].all()
    assert not np.isfinite(norm._variance.numpy()[5])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("side", "channels", "outputs", "kernel", "stride", "groups"),
    [
        (14, 64, 128, 1, 1, 1),
        (14, 64, 128, 1, 2, 1),
        (15, 64, 64, 3, 2, 1),
        (28, 4, 64, 7, 2, 1),
        (14, 64, 64, 3, 1, 32),
    ],
)
def test_convolve_matches_paddle(
    side: int, channels: int, outputs: int, kernel: int, stride: int, groups: int, dtype: str
) -> None:
    x = _random((8, side, side, channels), dtype, 1)
    weight = _random((outputs, channels // groups, kernel, kernel), dtype, 2)
    geometry = Geometry((kernel // 2,) * 4, (stride,) * 2, (1, 1), groups)
    y, same = convolve_fork(x * 1, weight, geometry)
    gradient, other = _random(tuple(y.shape), dtype, 3), _random(tuple(x.shape), dtype, 4)
    ((y * gradient).astype("float32").sum() + (same * other).astype("float32").sum()).backward()
    results = y, x.grad, weight.grad

    x, weight = (tensor.detach().astype("float32") for tensor in (x, weight))
    x.stop_gradient = weight.stop_gradient = False
    y = F.conv2d(x.transpose([0, 3, 1, 2]), weight, None, stride, kernel // 2, 1, groups).transpose(
        [0, 2, 3, 1]
    )
    ((y * gradient.astype("float32")).sum() + (x * other.astype("float32")).sum()).backward()
    for result, expected in zip(results, (y, x.grad, weight.grad), strict=True):
        _assert_close(result, _exact(expected), CONVOLUTION[dtype])


@pytest.mark.gpu
def test_convolve_transposed_view_is_read_in_its_own_order() -> None:
    view = _random((2, 16, 8, 8), "float32", 1).transpose([0, 2, 3, 1])
    weight, geometry = _random((32, 16, 3, 3), "float32", 2), Geometry((1,) * 4, (1, 1), (1, 1), 1)
    copied = paddle.to_tensor(view.numpy())
    np.testing.assert_array_equal(
        convolve(view, weight, geometry).numpy(), convolve(copied, weight, geometry).numpy()
    )


@pytest.mark.gpu
def test_convolve_without_needed_gradients_returns_none_for_them() -> None:
    x, weight = _random((2, 8, 8, 16), "float32", 1), _random((32, 16, 1, 1), "float32", 2)
    x.stop_gradient = True
    convolve(x, weight, Geometry((0,) * 4, (1, 1), (1, 1), 1)).sum().backward()
    assert x.grad is None
    assert weight.grad is not None


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("side", "channels", "kernel", "stride", "padding"),
    [(16, 64, 3, 2, 1), (15, 24, 3, 2, 1), (9, 64, 2, 2, 0), (14, 8, 5, 3, 2)],
)
def test_max_pool_matches_paddle(
    side: int, channels: int, kernel: int, stride: int, padding: int, dtype: str
) -> None:
    x = _random((4, side, side, channels), dtype, 1)
    exact = x.detach().astype("float32")
    exact.stop_gradient = False
    y = max_pool(x, kernel, stride, padding)
    expected = F.max_pool2d(exact.transpose([0, 3, 1, 2]), kernel, stride, padding).transpose([0, 2, 3, 1])
    gradient = _random(tuple(y.shape), dtype, 2)
    y.backward(gradient)
    expected.backward(gradient.astype("float32"))
    np.testing.assert_array_equal(_exact(y), _exact(expected))
    _assert_close(x.grad, _exact(exact.grad), TOLERANCE[dtype])
