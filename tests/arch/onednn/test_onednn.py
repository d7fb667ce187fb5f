"""The layers of oneDNN against Paddle's operators in float64, and models that use them."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.build import build_model
from ppcls.arch.kernels.geometry import Geometry
from ppcls.arch.layers.drop_path import DropPath
from ppcls.arch.layers.tokens import ChannelNorm
from ppcls.arch.layers.transformer import MatrixProduct, Permutation, Softmax
from ppcls.arch.onednn.activation import find_activation
from ppcls.arch.onednn.batch_norm import batch_norm
from ppcls.arch.onednn.convolution import convolve
from ppcls.arch.onednn.layer_norm import layer_norm
from ppcls.arch.onednn.layers import fuse
from ppcls.arch.onednn.library import OneDnnUnavailableError, library
from ppcls.arch.onednn.linear import multiply, multiply_matrices
from ppcls.arch.onednn.max_pool import max_pool
from ppcls.arch.onednn.permutation import permute
from ppcls.arch.onednn.softmax import softmax

TOLERANCE = 1e-5  # of float32 sums in another order
NCHW = [0, 3, 1, 2]
NHWC = [0, 2, 3, 1]


def _random(shape: tuple[int, ...], seed: int, shift: float = 0.0) -> Tensor:
    values = np.random.default_rng(seed).standard_normal(shape) + shift
    tensor = paddle.to_tensor(values.astype("float32"))
    tensor.stop_gradient = False
    return tensor


def _double(tensor: Tensor) -> Tensor:
    """Returns a leaf with the values of ``tensor`` in float64."""
    double = tensor.detach().astype("float64")
    double.stop_gradient = tensor.stop_gradient
    return double


def _assert_close(value: Tensor, expected: Tensor) -> None:
    exact: NDArray[Any] = expected.numpy()
    assert list(value.shape) == list(expected.shape)
    assert np.linalg.norm(value.numpy() - exact) <= TOLERANCE * np.linalg.norm(exact)


@pytest.mark.parametrize("biased", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize(
    ("side", "channels", "outputs", "kernel", "stride", "dilation", "groups"),
    [
        (14, 16, 32, 1, 1, 1, 1),
        (14, 16, 32, 1, 2, 1, 1),
        (15, 24, 40, 3, 2, 1, 1),
        (1, 32, 32, 3, 1, 1, 1),
        (28, 3, 64, 7, 2, 1, 1),
        (14, 32, 32, 3, 1, 1, 8),
        (14, 24, 24, 5, 2, 1, 24),
        (9, 12, 20, 3, 1, 2, 1),
    ],
)
def test_convolve_matches_float64(
    side: int,
    channels: int,
    outputs: int,
    kernel: int,
    stride: int,
    dilation: int,
    groups: int,
    biased: bool,
) -> None:
    x = _random((3, side, side, channels), 1)
    weight = _random((outputs, channels // groups, kernel, kernel), 2)
    bias = _random((outputs,), 3) if biased else None
    padding = dilation * (kernel // 2)
    y = convolve(x, weight, bias, Geometry((padding,) * 4, (stride,) * 2, (dilation,) * 2, groups))
    y.backward(_random(tuple(y.shape), 4))

    exact = [_double(tensor) for tensor in (x, weight)]
    exact_bias = None if bias is None else _double(bias)
    shape = (stride, padding, dilation, groups)
    expected = F.conv2d(exact[0].transpose(NCHW), exact[1], exact_bias, *shape).transpose(NHWC)
    expected.backward(_random(tuple(y.shape), 4).astype("float64"))
    _assert_close(y, expected)
    for tensor, reference in zip((x, weight), exact, strict=True):
        _assert_close(tensor.grad, reference.grad)
    if bias is not None and exact_bias is not None:
        _assert_close(bias.grad, exact_bias.grad)


@pytest.mark.parametrize("biased", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize(("channels", "stride"), [(1, (2, 2)), (3, (2, 2)), (12, (2, 2)), (3, (2, 1))])
def test_convolve_writes_only_to_its_own_memory(
    channels: int, stride: tuple[int, int], biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the first block of RepVGG, with images of three channels."""
    empty = paddle.empty
    guarded: list[Tensor] = []
    guard = 1 << 20

    def guarded_empty(shape: list[int], dtype: str = "float32") -> Tensor:
        if dtype != "uint8":  # of all tensors, only the memory for intermediate results is of bytes
            return empty(shape, dtype)
        memory = paddle.full([shape[0] + guard], 171, "uint8")
        guarded.append(memory[shape[0] :])
        return memory[: shape[0]]

    x, weight = _random((2, 64, 62, channels), 1), _random((16, channels, 1, 1), 2)
    bias = _random((16,), 3) if biased else None
    y = convolve(x, weight, bias, Geometry((0,) * 4, stride, (1, 1), 1))
    monkeypatch.setattr(paddle, "empty", guarded_empty)
    y.backward(_random(tuple(y.shape), 4))
    assert all(bool((memory == 171).all()) for memory in guarded)

    exact_x, exact = _double(x), _double(weight)
    exact_bias = None if bias is None else _double(bias)
    expected = F.conv2d(exact_x.transpose(NCHW), exact, exact_bias, stride).transpose(NHWC)
    expected.backward(_random(tuple(y.shape), 4).astype("float64"))
    _assert_close(x.grad, exact_x.grad)
    _assert_close(weight.grad, exact.grad)
    if bias is not None and exact_bias is not None:
        _assert_close(bias.grad, exact_bias.grad)


def test_convolve_uneven_geometry_matches_float64() -> None:
    x, weight = _random((2, 11, 9, 8), 1), _random((16, 8, 3, 5), 2)
    y = convolve(x, weight, None, Geometry((1, 1, 2, 2), (1, 2), (1, 1), 1))
    expected = F.conv2d(_double(x).transpose(NCHW), _double(weight), None, (1, 2), (1, 2))
    _assert_close(y, expected.transpose(NHWC))


@pytest.mark.parametrize("groups", [1, 8])
def test_convolve_pads_each_side_as_given(groups: int) -> None:
    """As networks with the padding of TensorFlow do, such as EfficientNet."""
    x = _random((2, 10, 12, 8), 1)
    weight = _random((16, 8 // groups, 3, 3), 2)
    y = convolve(x, weight, None, Geometry((0, 1, 2, 1), (2, 2), (1, 1), groups))
    y.backward(_random(tuple(y.shape), 3))
    exact, exact_weight = map(_double, (x, weight))
    padded = F.pad(exact.transpose(NCHW), [2, 1, 0, 1])
    expected = F.conv2d(padded, exact_weight, None, 2, 0, 1, groups).transpose(NHWC)
    expected.backward(_random(tuple(y.shape), 3).astype("float64"))
    _assert_close(y, expected)
    _assert_close(x.grad, exact.grad)
    _assert_close(weight.grad, exact_weight.grad)


@pytest.mark.parametrize("biased", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("leading", [(5,), (2, 7), (2, 3, 4), (1,)])
@pytest.mark.parametrize(("inputs", "outputs"), [(16, 48), (7, 1), (1, 5)])
def test_multiply_matches_float64(leading: tuple[int, ...], inputs: int, outputs: int, biased: bool) -> None:
    x, weight = _random((*leading, inputs), 1), _random((inputs, outputs), 2)
    bias = _random((outputs,), 3) if biased else None
    y = multiply(x, weight, bias)
    y.backward(_random(tuple(y.shape), 4))
    operands = [x, weight, *([bias] if bias is not None else [])]
    exact = [_double(operand) for operand in operands]
    expected = F.linear(*exact)
    expected.backward(_random(tuple(y.shape), 4).astype("float64"))
    _assert_close(y, expected)
    for operand, reference in zip(operands, exact, strict=True):
        _assert_close(operand.grad, reference.grad)


def test_multiply_reads_weights_that_change_and_views_of_tensors() -> None:
    x, weight = _random((8, 4, 6), 1).transpose([1, 0, 2]), _random((5, 6), 2)
    view = weight.transpose([1, 0])
    first = multiply(x, view, None)
    _assert_close(first, F.linear(_double(x), _double(view)))
    with paddle.no_grad():
        weight.scale_(2.0)
    np.testing.assert_array_equal(multiply(x, weight.transpose([1, 0]), None).numpy(), 2 * first.numpy())


def test_multiply_computes_only_needed_gradients() -> None:
    x, weight, bias = _random((3, 6), 1), _random((6, 5), 2), _random((5,), 3)
    weight.stop_gradient = True
    multiply(x, weight, bias).sum().backward()
    assert weight.grad is None
    assert x.grad is not None
    np.testing.assert_array_equal(bias.grad.numpy(), np.full(5, 3, "float32"))


SIDES = st.one_of(st.integers(1, 4), st.integers(1, 70))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 3), max_size=2), SIDES, SIDES, SIDES, st.booleans())
def test_multiply_matrices_matches_float64(
    leading: list[int], rows: int, inner: int, columns: int, transposed: bool
) -> None:
    """Of all shapes, because oneDNN has other implementations for small and for odd ones."""
    x = _random((*leading, rows, inner), 1)
    y = _random((*leading, columns, inner) if transposed else (*leading, inner, columns), 2)
    product = multiply_matrices(x, y, transposed=transposed)
    product.backward(_random(tuple(product.shape), 3))
    exact = [_double(x), _double(y)]
    expected = paddle.matmul(*exact, transpose_y=transposed)
    expected.backward(_random(tuple(product.shape), 3).astype("float64"))
    for value, reference in ((product, expected), (x.grad, exact[0].grad), (y.grad, exact[1].grad)):
        np.testing.assert_allclose(value.numpy(), reference.numpy(), rtol=1e-4, atol=1e-4)


SHAPES = st.lists(st.one_of(st.integers(1, 4), st.integers(1, 40)), min_size=1, max_size=3)


@settings(max_examples=40, deadline=None)
@given(SHAPES, st.sampled_from([1e-6, 1e-5, 1e-3]), st.booleans())
def test_layer_norm_matches_float64(shape: list[int], epsilon: float, sliced: bool) -> None:
    """Of all shapes and epsilons, also of a part of a tensor, whose memory starts elsewhere."""
    shape = [3, *shape]  # Paddle's layer norm needs two axes
    width = shape[-1]
    whole = _random((2, *shape) if sliced else tuple(shape), 1, shift=3.0)
    x = whole[1] if sliced else whole
    gamma, beta = _random((width,), 2, shift=1.0), _random((width,), 3)
    y = layer_norm(x, gamma, beta, epsilon)
    gradient = _random(tuple(x.shape), 4)
    y.backward(gradient)
    operands = [whole, gamma, beta]
    exact = [_double(operand) for operand in operands]
    expected = F.layer_norm(exact[0][1] if sliced else exact[0], [width], *exact[1:], epsilon)
    expected.backward(gradient.astype("float64"))
    scale = 1 / np.sqrt(epsilon)  # of the gradient where all values of a row are equal, as in rows of one
    np.testing.assert_allclose(y.numpy(), expected.numpy(), rtol=1e-4, atol=1e-4)
    for operand, reference in zip(operands, exact, strict=True):
        np.testing.assert_allclose(
            operand.grad.numpy(), reference.grad.numpy(), rtol=1e-4, atol=1e-5 * max(scale, 10.0)
        )


def test_fuse_replaces_only_layer_norms_of_the_last_axis_with_factors() -> None:
    x = _random((2, 5, 6, 8), 1)
    replaced = [nn.LayerNorm(8, 1e-3), ChannelNorm(8, 1e-3, "NHWC")]
    kept = [
        nn.LayerNorm([6, 8]),
        nn.LayerNorm(8, weight_attr=False),
        nn.LayerNorm(8, bias_attr=False),
        ChannelNorm(5, 1e-5, "NCHW"),
    ]
    for layer in replaced + kept:
        expected = layer(x).numpy()
        fuse(layer)
        assert ("forward" in vars(layer)) == (layer in replaced)
        np.testing.assert_allclose(layer(x).numpy(), expected, rtol=1e-5, atol=1e-5)


def test_layer_norm_computes_only_needed_gradients() -> None:
    x, gamma, beta = _random((3, 6), 1), _random((6,), 2), _random((6,), 3)
    gamma.stop_gradient = True
    layer_norm(x, gamma, beta, 1e-5).sum().backward()
    assert gamma.grad is None
    assert x.grad is not None
    np.testing.assert_array_equal(beta.grad.numpy(), np.full(6, 3, "float32"))


@settings(max_examples=40, deadline=None)
@given(SHAPES, st.sampled_from([1.0, 30.0, 1000.0]))
def test_softmax_matches_float64(shape: list[int], scale: float) -> None:
    x = _random(tuple(shape), 1)
    y = softmax(x * scale)
    y.backward(_random(tuple(shape), 2))
    exact = _double(x)
    expected = F.softmax(exact * scale)
    expected.backward(_random(tuple(shape), 2).astype("float64"))
    np.testing.assert_allclose(y.numpy(), expected.numpy(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(x.grad.numpy(), exact.grad.numpy(), rtol=1e-4, atol=1e-6 * scale)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.lists(st.integers(1, 5), min_size=1, max_size=6), st.booleans())
def test_permute_copies_all_values_and_gradients(data: st.DataObject, shape: list[int], sliced: bool) -> None:
    axes = data.draw(st.permutations(range(len(shape))))
    # Paddle slices tensors of at most six axes.
    whole = _random((2, *shape) if sliced and len(shape) < 6 else tuple(shape), 1)
    sliced = whole.ndim > len(shape)
    x = whole[1] if sliced else whole
    y = permute(x, axes)
    gradient = _random(tuple(y.shape), 2)
    y.backward(gradient)
    np.testing.assert_array_equal(y.numpy(), x.numpy().transpose(axes))
    dx = whole.grad[1] if sliced else whole.grad
    np.testing.assert_array_equal(dx.numpy(), gradient.numpy().transpose(np.argsort(axes)))
    before = x.numpy()
    with paddle.no_grad():
        y.scale_(2.0)
    np.testing.assert_array_equal(x.numpy(), before)  # the result has its own memory


@pytest.mark.parametrize("act", [F.gelu, F.swish, F.silu, F.hardswish])
def test_activation_matches_float64(act: Callable[[Tensor], Tensor]) -> None:
    function = find_activation(act)
    assert function is not None
    x = paddle.linspace(-12.05, 12.05, 2400).reshape([4, 6, 100])
    x.stop_gradient = False
    y = function(x)
    y.backward(_random(tuple(y.shape), 1))
    exact = _double(x)
    expected = act(exact)
    expected.backward(_random(tuple(y.shape), 1).astype("float64"))
    _assert_close(y, expected)
    _assert_close(x.grad, exact.grad)


@pytest.mark.parametrize("arguments", [((True,), {}), ((), {"approximate": True})])
def test_activation_with_options_is_left_to_paddle(arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
    options, named = arguments
    x = _random((3, 5), 1)
    function = find_activation(F.gelu)
    assert function is not None
    expected = F.gelu(x, approximate=True).numpy()
    np.testing.assert_array_equal(function(x, *options, **named).numpy(), expected)
    assert np.abs(function(x).numpy() - expected).max() > 1e-5


@pytest.mark.parametrize("act", [None, F.relu, F.sigmoid, nn.GELU()])
def test_other_activations_are_left_to_paddle(act: Any) -> None:
    assert find_activation(act) is None


def test_convolve_weights_that_change_are_read_again() -> None:
    x, geometry = _random((1, 4, 4, 16), 1), Geometry((1,) * 4, (1, 1), (1, 1), 1)
    weight = _random((16, 16, 3, 3), 2)
    first = convolve(x, weight, None, geometry)
    with paddle.no_grad():
        weight.scale_(2.0)
    np.testing.assert_array_equal(convolve(x, weight, None, geometry).numpy(), 2 * first.numpy())


def test_convolve_computes_only_needed_gradients() -> None:
    x, weight = _random((2, 8, 8, 16), 1), _random((32, 16, 1, 1), 2)
    x.stop_gradient = True
    convolve(x, weight, None, Geometry((0,) * 4, (1, 1), (1, 1), 1)).sum().backward()
    assert x.grad is None
    assert weight.grad is not None


def test_convolve_reads_a_transposed_view_in_its_own_order() -> None:
    view = _random((2, 16, 8, 8), 1).transpose(NHWC)
    weight, geometry = _random((32, 16, 3, 3), 2), Geometry((1,) * 4, (1, 1), (1, 1), 1)
    copied = paddle.to_tensor(view.numpy())
    np.testing.assert_array_equal(
        convolve(view, weight, None, geometry).numpy(), convolve(copied, weight, None, geometry).numpy()
    )


@pytest.mark.parametrize("relu", [False, True], ids=["plain", "relu"])
@pytest.mark.parametrize("shape", [(8, 14, 14, 16), (4, 1, 1, 64), (3, 5, 7, 24)])
def test_batch_norm_matches_float64(shape: tuple[int, ...], relu: bool) -> None:
    channels = shape[-1]
    norm = nn.BatchNorm2D(channels, data_format="NHWC")
    norm.weight.set_value(_random((channels,), 1, shift=2.0))
    norm.bias.set_value(_random((channels,), 2))
    x, gradient = _random(shape, 3, shift=3.0), _random(shape, 4)
    y = batch_norm(norm, x, relu=relu)
    y.backward(gradient)

    exact, gamma, beta = map(_double, (x, norm.weight, norm.bias))
    mean = exact.mean([0, 1, 2])
    variance = (exact - mean).square().mean([0, 1, 2])
    expected = (exact - mean) / (variance + norm._epsilon).sqrt() * gamma + beta
    expected = F.relu(expected) if relu else expected
    expected.backward(gradient.astype("float64"))
    _assert_close(y, expected)
    for tensor, reference in ((x, exact), (norm.weight, gamma), (norm.bias, beta)):
        _assert_close(tensor.grad, reference.grad)
    _assert_close(norm._mean, 0.1 * mean)
    _assert_close(norm._variance, 0.9 + 0.1 * variance)


@pytest.mark.parametrize(
    ("side", "channels", "kernel", "stride", "padding"),
    [(16, 64, 3, 2, 1), (15, 24, 3, 2, 1), (9, 16, 2, 2, 0), (14, 8, 5, 3, 2)],
)
def test_max_pool_matches_float64(side: int, channels: int, kernel: int, stride: int, padding: int) -> None:
    x = _random((4, side, side, channels), 1)
    exact = _double(x)
    y = max_pool(x, kernel, stride, padding)
    expected = F.max_pool2d(exact.transpose(NCHW), kernel, stride, padding).transpose(NHWC)
    gradient = _random(tuple(y.shape), 2)
    y.backward(gradient)
    expected.backward(gradient.astype("float64"))
    np.testing.assert_array_equal(y.numpy(), expected.numpy().astype("float32"))
    _assert_close(x.grad, exact.grad)


def _build_twins(name: str, count: int = 2) -> list[nn.Layer]:
    """Returns models with the same weights, without dropout and stochastic depth."""
    models = [build_model(name, 10, "NHWC", 3) for _ in range(count)]
    for model in models:
        model.set_state_dict(models[0].state_dict())
        for layer in model.sublayers():
            if isinstance(layer, nn.Dropout):
                layer.p = 0.0
            if isinstance(layer, DropPath):
                layer.rate = 0.0
    return models


def _logits_and_gradients(model: nn.Layer, image: Tensor) -> tuple[NDArray[Any], NDArray[Any]]:
    model.train()
    logits = model(image)
    logits.square().sum().backward()
    gradients = [weight.grad.numpy().ravel() for weight in model.parameters() if not weight.stop_gradient]
    return logits.numpy(), np.concatenate(gradients)


@pytest.mark.parametrize(
    ("name", "side"),
    [
        ("ResNet18", 64),
        # Their layers are those of ResNet18, and convolutions with groups, which are also tested alone.
        *(pytest.param(name, 64, marks=pytest.mark.slow) for name in ("ResNet50_vd", "ResNeXt50_32x4d")),
        ("MobileNetV3_small_x1_0", 64),
        ("EfficientNetB0_small", 64),
        ("DeiT_tiny_patch16_224", 224),
        pytest.param("SwinTransformer_tiny_patch4_window7_224", 64, marks=pytest.mark.slow),
    ],
)
def test_fused_model_matches_float64(name: str, side: int) -> None:
    exact, fused = _build_twins(name)
    indexes = {name: buffer.clone() for name, buffer in exact.named_buffers() if buffer.dtype == paddle.int64}
    exact.to(dtype="float64")
    for path, index in indexes.items():  # `to` converts indexes too
        *parents, buffer = path.split(".")
        functools.reduce(getattr, parents, exact).register_buffer(buffer, index)
    assert fuse(fused) > 20
    image = _random((64 * 4 // side, side, side, 3), 1)
    expected = _logits_and_gradients(exact, image.astype("float64"))
    # Rounding changes the sign of a few inputs of ReLU, with and without oneDNN. Each changes the gradients
    # of all earlier layers by up to 0.5 %, so this tolerance is much larger than that of a single layer.
    for value, reference, tolerance in zip(
        _logits_and_gradients(fused, image), expected, (1e-3, 0.1), strict=True
    ):
        assert np.linalg.norm(value - reference) < tolerance * np.linalg.norm(reference)


def test_fuse_in_evaluation_uses_running_statistics() -> None:
    model, fused = _build_twins("ResNet18")
    fuse(fused)
    image = _random((2, 32, 32, 3), 1)
    for network in (model, fused):
        network.eval()
    with paddle.no_grad():
        np.testing.assert_allclose(fused(image).numpy(), model(image).numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer", ["convolution", "norm", "pooling", "linear", "tokens", "swap", "softmax"])
def test_fuse_leaves_float64_to_paddle(layer: str) -> None:
    layers: dict[str, Callable[[], nn.Layer]] = {
        "convolution": lambda: nn.Conv2D(4, 8, 3, data_format="NHWC"),
        "norm": lambda: nn.BatchNorm2D(4, data_format="NHWC"),
        "pooling": lambda: nn.MaxPool2D(2, data_format="NHWC"),
        "linear": lambda: nn.Linear(4, 3),
        "tokens": lambda: nn.LayerNorm(4),
        "swap": lambda: Permutation(0, 2, 3, 1),
        "softmax": Softmax,
    }
    model = layers[layer]()
    own = copy.deepcopy(model)
    fuse(model)
    for network in (own, model):
        network.to(dtype="float64")
    image = _random((1, 8, 8, 4), 1).astype("float64")
    np.testing.assert_array_equal(model(image).numpy(), own(image).numpy())


@pytest.mark.parametrize(
    ("channels", "width", "kernel", "stride", "padding"),
    [(1, 40, (3, 40), (1, 4), 1), (1, 2, 3, (1, 2), 1), (1, 2, 3, 2, 1), (2, 2, 3, (1, 2), 1)],
)
@pytest.mark.parametrize("constant", [False, True])
def test_outputs_of_one_pixel_in_width_are_those_of_paddle(
    channels: int,
    width: int,
    kernel: Any,
    stride: Any,
    padding: Any,
    constant: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As of spectrograms. oneDNN leaves some outputs of images with one channel unset."""
    layer = nn.Conv2D(channels, 8, kernel, stride, padding, data_format="NHWC")
    image = _random((2, 7, width, channels), 1)
    expected = layer(image)
    fuse(layer, constant=constant)
    monkeypatch.setattr(paddle, "empty", lambda shape, dtype="float32": paddle.full(shape, 77, dtype))
    with paddle.no_grad():
        output = layer(image)
    assert output.shape[2] == 1
    _assert_close(output, expected.detach())


def test_pooling_of_images_smaller_than_its_window_is_that_of_paddle() -> None:
    """For empty outputs, oneDNN divides by zero, which ends the process. Paddle 2.6 raises an error."""
    pooling = nn.MaxPool2D(3, 2, data_format="NHWC")
    image = _random((1, 4, 1, 8), 1)

    def outcome() -> str:
        try:
            return f"shape {list(pooling(image).shape)}"
        except ValueError as error:
            return str(error)

    expected = outcome()
    assert expected == "shape [1, 1, 0, 8]" or "output_size = 0" in expected
    fuse(pooling)
    assert outcome() == expected


def test_max_pooling_has_the_stride_of_its_window_by_default() -> None:
    pooling = nn.MaxPool2D(3, data_format="NHWC")
    own = copy.deepcopy(pooling)
    fuse(pooling)
    assert "forward" in vars(pooling)
    results = []
    for layer in (own, pooling):
        x = _random((2, 7, 6, 4), 1)
        y = layer(x)
        y.backward(_random((2, 2, 2, 4), 2))
        results.append((y.numpy(), x.grad.numpy()))
    for expected, found in zip(*results, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_norm_of_a_single_pixel_is_left_to_paddle() -> None:
    """Paddle does not normalize it. Its only value is its mean, so oneDNN returns 0."""
    norm = nn.BatchNorm2D(4, data_format="NHWC")
    own = copy.deepcopy(norm)
    assert fuse(norm) == 1
    results = []
    for layer in (own, norm):
        x = _random((1, 1, 1, 4), 1, shift=3.0)
        y = layer(x)
        y.backward(_random((1, 1, 1, 4), 2))
        results.append([y, x.grad, layer._mean, layer._variance])
    for expected, found in zip(*results, strict=True):
        np.testing.assert_array_equal(found.numpy(), expected.numpy())


def test_products_of_other_shapes_and_types_are_left_to_paddle() -> None:
    layer, own = MatrixProduct(), MatrixProduct()
    assert fuse(layer) == 1
    x, y = _random((4, 3, 5), 1), _random((5, 2), 2)
    np.testing.assert_array_equal(layer(x, y).numpy(), own(x, y).numpy())
    exact = _double(x), _double(_random((4, 5, 2), 2))
    np.testing.assert_array_equal(layer(*exact).numpy(), own(*exact).numpy())


def test_call_names_the_function_that_failed() -> None:
    with pytest.raises(OneDnnUnavailableError, match="dnnl_engine_create failed with status 2"):
        library().call("dnnl_engine_create", None, 1, 0)
