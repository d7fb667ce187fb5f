"""Batch norms that are folded into convolutions: the same results, only where the weights do not change.

Without a GPU, Paddle computes the convolutions with a bias in float32 instead of cuDNN, and the emulator runs
the depthwise kernels.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import numpy as np
import paddle
import pytest
from cuda_emulation import emulate_gpu
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.build import build_model
from ppcls.arch.families import densenet
from ppcls.arch.families.densenet import DenseBlock, DenseLayer
from ppcls.arch.fuse import fuse as fuse_all
from ppcls.arch.fused import batch_norm as batch_norm_module
from ppcls.arch.fused import (
    convolution,
    depthwise,
    folded,
    layers,
    max_pool,
    mean_pool,
    token_layers,
)
from ppcls.arch.fused.blocks.appending import fuse_appending
from ppcls.arch.fused.convolution import convolve_biased
from ppcls.arch.fused.cuda import CudaUnavailableError
from ppcls.arch.fused.folded import constant_weights, fold
from ppcls.arch.fused.layers import fuse
from ppcls.arch.kernels import fallback
from ppcls.arch.kernels.geometry import Geometry
from ppcls.arch.layers.conv_norm import ConvNorm
from ppcls.arch.layers.mobile import InvertedResidual

MODELS = ["ResNet18", "ResNet50_vd", "ResNeXt50_32x4d", "DenseNet121", "MobileNetV3_small_x0_35"]
TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2}


def convolve_in_float64(
    x: Tensor, kernel: Tensor, bias: Tensor, geometry: Geometry, shortcut: Tensor | None, *, relu: bool
) -> Tensor:
    weight = kernel.astype("float64").transpose([0, 3, 1, 2])
    image = x.astype("float64").transpose([0, 3, 1, 2])
    top, bottom, left, right = geometry.padding
    numbers = list(geometry.stride), [top, bottom, left, right], list(geometry.dilation), geometry.groups
    y = F.conv2d(image, weight, bias.astype("float64"), *numbers).transpose([0, 2, 3, 1])
    y = y if shortcut is None else y + shortcut.astype("float64")
    # Paddle's ReLU replaces NaN by 0 on a CPU.
    return (paddle.where(y <= 0.0, paddle.zeros_like(y), y) if relu else y).astype(x.dtype)


class PaddlePlan:
    """Computes the convolutions of cuDNN without a bias by Paddle."""

    def __init__(self, image: object, weight: object, dtype: object, geometry: Geometry) -> None:
        self._geometry = geometry

    def forward(self, x: Tensor, kernel: Tensor) -> Tensor:
        bias = paddle.zeros([kernel.shape[0]], x.dtype)
        return convolve_in_float64(x, kernel, bias, self._geometry, None, relu=False)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The images of the convolutions with a bias. Such convolutions accept float32, too."""
    images: list[Tensor] = []

    def convolve(x: Tensor, *arguments: Any, **options: Any) -> Tensor:
        images.append(x)
        return convolve_in_float64(x, *arguments, **options)

    emulate_gpu(monkeypatch, batch_norm_module, depthwise, mean_pool)
    fallback.report.cache_clear()
    convolution.find_problem_with_bias.cache_clear()
    monkeypatch.setattr(folded, "_HALF", (paddle.float32,))
    monkeypatch.setattr(folded, "convolve_biased", convolve)
    monkeypatch.setattr(convolution, "convolve_biased", convolve_in_float64)
    monkeypatch.setattr(convolution, "_plan", PaddlePlan)
    # Convolutions without a bias and max pooling are those of Paddle.
    monkeypatch.setattr(convolution, "find_problem", lambda *_: "no cuDNN")
    monkeypatch.setattr(layers, "report", lambda *_: None)  # checked by test_fallback.py
    monkeypatch.setattr(token_layers, "report", lambda *_: None)
    monkeypatch.setattr(max_pool, "max_pool", partial(F.max_pool2d, data_format="NHWC"))
    return images


def network(name: str, seed: int = 0) -> nn.Layer:
    """Returns a network with random statistics, in evaluation mode."""
    paddle.seed(seed)
    model = build_model(name, 10, "NHWC", 3)
    randomize(model, seed)
    model.eval()
    return model


def randomize(model: nn.Layer, seed: int) -> None:
    random = np.random.default_rng(seed)
    for layer in model.sublayers():
        if isinstance(layer, nn.BatchNorm2D):
            shape = layer.weight.shape
            layer.weight.set_value(random.uniform(0.5, 1.5, shape).astype("float32"))
            layer.bias.set_value(random.uniform(-0.5, 0.5, shape).astype("float32"))
            for name, buffer in layer.named_buffers():
                low, high = (-0.1, 0.1) if "mean" in name else (0.5, 2.0)
                buffer.set_value(random.uniform(low, high, shape).astype("float32"))


def pictures(seed: int = 1, side: int = 32) -> Tensor:
    return paddle.to_tensor(np.random.default_rng(seed).standard_normal((2, side, side, 3), np.float32))


@paddle.no_grad()  # type: ignore[untyped-decorator]
def outputs(model: nn.Layer, image: Tensor) -> np.ndarray[Any, Any]:
    values: np.ndarray[Any, Any] = model(image).astype("float32").numpy()
    return values


@pytest.mark.parametrize(
    "name",  # The layers of ResNet50_vd are those of the next network and those of ResNet18.
    [pytest.param(name, marks=[pytest.mark.slow] * (name == "ResNet50_vd")) for name in MODELS],
)
def test_folded_network_computes_the_same(
    name: str, calls: list[Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    model = network(name)
    expected = outputs(model, pictures())
    fuse(model)
    fuse_appending(model)
    with constant_weights(model):
        found = outputs(model, pictures())
    assert calls
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    assert not capsys.readouterr().err


def test_dense_block_appends_channels_in_place(calls: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    model = network("DenseNet121")
    expected = outputs(model, pictures())
    fuse(model)
    fuse_appending(model)
    with_gradients = model(pictures())  # for example for a heat map
    monkeypatch.setattr(paddle, "concat", lambda *_, **__: pytest.fail("copies all channels"))
    np.testing.assert_allclose(outputs(model, pictures()), expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(with_gradients.numpy(), expected, rtol=1e-3, atol=1e-4)
    assert not with_gradients.stop_gradient


class ScaledDenseLayer(DenseLayer):
    """A user's layer, which computes something else."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * super().forward(x)


class ScaledDenseBlock(DenseBlock):
    """A user's block, which computes something else."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * super().forward(x)


def test_dense_blocks_of_a_user_do_not_change(calls: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(densenet, "DenseLayer", ScaledDenseLayer)
        first = DenseBlock(1, 8, 2, 8, "NHWC")
    model = nn.Sequential(first, ScaledDenseBlock(2, 24, 2, 8, "NHWC"))
    randomize(model, 0)
    model.eval()
    image = paddle.randn([2, 5, 5, 8])
    expected = outputs(model, image)
    fuse(model)
    fuse_appending(model)
    np.testing.assert_allclose(outputs(model, image), expected, rtol=1e-3, atol=1e-4)


def test_attributes_of_a_user_are_no_copies_of_weights(calls: list[Tensor]) -> None:
    model = nn.Sequential(ConvNorm(8, 8, 1, data_format="NHWC"))
    model.folded = True
    model.eval()
    image = paddle.randn([2, 5, 5, 8])
    expected = outputs(model, image)
    fuse(model)
    with constant_weights(model):
        np.testing.assert_allclose(outputs(model, image), expected, rtol=1e-3, atol=1e-4)
    assert calls


class DoubledConvNorm(ConvNorm):
    """A user's layer, which computes something else."""

    def forward(self, x: Tensor) -> Tensor:
        return 2.0 * super().forward(x)


class DoubledResidual(InvertedResidual):
    """A block with such layers."""

    conv = DoubledConvNorm


def test_block_with_layers_of_a_user_computes_the_same(calls: list[Tensor]) -> None:
    block = DoubledResidual(8, 16, 8, 3, 1, F.relu, data_format="NHWC")
    sequence = InvertedResidual(8, 16, 8, 3, 1, F.relu, data_format="NHWC")
    sequence.linear_conv = nn.Sequential(sequence.linear_conv, nn.ReLU())
    model = nn.Sequential(block, sequence)
    randomize(model, 0)
    model.eval()
    image = paddle.randn([2, 5, 5, 8])
    expected = outputs(model, image)
    fuse(model)
    with constant_weights(model):
        found = outputs(model, image)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    assert calls


def test_folded_weights_are_used_only_in_the_block(calls: list[Tensor]) -> None:
    model = network("ResNet18")
    fuse(model)
    outputs(model, pictures())
    assert not calls
    with constant_weights(model):
        outputs(model, pictures())
        assert calls
        calls.clear()
        model(pictures())  # with gradients, for example for a heat map
        model.train()
        outputs(model, pictures())
        model.eval()
        assert not calls
    outputs(model, pictures())
    assert not calls


def test_changed_weights_are_folded_again_at_the_same_addresses(calls: list[Tensor]) -> None:
    model = network("ResNet18")
    fuse(model)
    with constant_weights(model):
        outputs(model, pictures())
        addresses = folded_addresses(model)
    other = network("ResNet18", seed=5)
    model.set_state_dict(other.state_dict())
    with constant_weights(model):
        found = outputs(model, pictures())
        assert folded_addresses(model) == addresses
    np.testing.assert_allclose(found, outputs(other, pictures()), rtol=1e-3, atol=1e-4)
    assert calls


def test_weights_are_ordered_and_cast_once(calls: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "find_problem", lambda *_: None)
    layer = nn.Conv2D(8, 16, 3, padding=1, data_format="NHWC")
    plain = copy.deepcopy(layer)
    image = paddle.to_tensor(np.random.default_rng(0).standard_normal((2, 9, 9, 8), np.float32))
    fuse(layer)
    outputs(layer, image)
    copies = layer.folded._copies
    assert not copies, "the weights may change"
    addresses = set()
    for factor in (1.0, -2.0):
        layer.weight.set_value(plain.weight * factor)
        plain_output = plain(image) - plain.bias
        with constant_weights(layer):
            for _ in range(2):
                with monkeypatch.context() as patch:
                    patch.setattr(layers, "_widened_weight", lambda *_: pytest.fail("casts the weights"))
                    found = outputs(layer, image) - layer.bias.numpy()
                np.testing.assert_allclose(found, factor * plain_output.numpy(), rtol=1e-4, atol=1e-4)
                addresses |= {tensor.data_ptr() for tensors in copies.values() for tensor in tensors}
            assert not layer(image).stop_gradient, "a heat map needs gradients"
    assert len(addresses) == 1, "captured graphs contain the address"
    assert not calls


def test_weights_that_hooks_compute_are_not_copied(
    calls: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convolution, "find_problem", lambda *_: None)
    model = nn.Sequential(
        ConvNorm(8, 8, 1, data_format="NHWC"), nn.Conv2D(8, 8, 3, bias_attr=False, data_format="NHWC")
    )
    model.eval()
    for layer in (model[0].conv, model[1]):
        nn.utils.weight_norm(layer)
    plain = copy.deepcopy(model)
    fuse(model)
    image = paddle.randn([2, 5, 5, 8])
    for factor in (1.0, 2.0):
        for network_ in (model, plain):
            for layer in (network_[0].conv, network_[1]):
                layer.weight_g.set_value(layer.weight_g * factor)
        with constant_weights(model):
            found = outputs(model, image)
        np.testing.assert_allclose(found, outputs(plain, image), rtol=1e-3, atol=1e-4)


def folded_addresses(model: nn.Layer) -> list[int]:
    buffers = [pair for layers in folded._attached(model) for pair in layers._copies.values()]
    assert len(buffers) == 21, "20 convolutions, and the stem's"
    return [tensor.data_ptr() for pair in buffers for tensor in pair]


def test_copy_of_a_folded_network_folds_its_own_weights(calls: list[Tensor]) -> None:
    model = network("ResNet18")
    fuse(model)
    fold(model)
    outputs(model, pictures())
    twin = copy.deepcopy(model)
    other = network("ResNet18", seed=5)
    twin.set_state_dict(other.state_dict())
    fold(twin)
    np.testing.assert_allclose(outputs(twin, pictures()), outputs(other, pictures()), rtol=1e-3, atol=1e-4)
    assert calls


def unit(**options: Any) -> ConvNorm:
    paddle.seed(0)
    layer = ConvNorm(8, 16, 3, data_format="NHWC", **options)
    randomize(layer, 0)
    layer.eval()
    assert fuse(layer) == 2
    fold(layer)
    return layer


@pytest.mark.parametrize("act", [None, F.relu])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda y: y * 1.5, "with a bias, cuDNN returns numbers that differ by 50.0%"),
        (lambda y: paddle.nan_to_num(y), "with a bias, cuDNN replaces NaN by numbers"),
        (lambda y: fail(), "cudnnConvolutionBiasActivationForward: NOT_SUPPORTED"),
    ],
)
def test_kernel_that_is_wrong_is_not_used(
    act: Any,
    change: Any,
    message: str,
    calls: list[Tensor],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def wrong(*arguments: Any, **options: Any) -> Tensor:
        return change(convolve_in_float64(*arguments, **options))

    monkeypatch.setattr(convolution, "convolve_biased", wrong)
    layer = unit(act=act)
    image = paddle.randn([2, 5, 5, 8])
    with paddle.no_grad():
        y = nn.BatchNorm2D.forward(layer.bn, nn.Conv2D.forward(layer.conv, image))
    expected = (y if act is None else act(y)).numpy()
    for _ in range(2):
        np.testing.assert_allclose(outputs(layer, image), expected, rtol=1e-5, atol=1e-6)
    assert not calls
    error = capsys.readouterr().err
    assert error.count("\n") == 1, "one line per convolution"
    assert (
        "a convolution of 8 channels with weights [16, 8, 3, 3] and the batch norm after it: two kernels, "
        f"because {message}" in error
    )


def fail() -> None:
    raise CudaUnavailableError("cudnnConvolutionBiasActivationForward: NOT_SUPPORTED")


def test_activation_without_a_kernel_uses_the_layers(
    calls: list[Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    layer = unit(act=F.hardswish)
    assert outputs(layer, paddle.randn([2, 5, 5, 8])).shape == (2, 5, 5, 16)
    assert not calls
    assert not capsys.readouterr().err


def test_overflow_stays_visible(calls: list[Tensor], capsys: pytest.CaptureFixture[str]) -> None:
    layer = unit(act=F.relu)
    image = paddle.full([2, 5, 5, 8], float("inf"))
    assert np.isnan(outputs(layer, image)).any()
    assert calls
    assert not capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("relu", [False, True], ids=["plain", "relu"])
@pytest.mark.parametrize("added", [False, True], ids=["alone", "shortcut"])
@pytest.mark.parametrize(
    ("channels", "outputs_", "kernel", "settings"),
    [
        (64, 64, 3, Geometry((1,) * 4, (1, 1), (1, 1), 1)),
        (64, 256, 1, Geometry((0,) * 4, (1, 1), (1, 1), 1)),
        (256, 128, 1, Geometry((0,) * 4, (2, 2), (1, 1), 1)),
        (128, 128, 3, Geometry((1,) * 4, (2, 2), (1, 1), 32)),
        (4, 64, 7, Geometry((3,) * 4, (2, 2), (1, 1), 1)),
    ],
    ids=["3x3", "1x1", "stride", "groups", "stem"],
)
def test_convolve_biased_matches_float64(
    channels: int, outputs_: int, kernel: int, settings: Geometry, added: bool, relu: bool, dtype: str
) -> None:
    random = np.random.default_rng(0)

    def tensor(*shape: int) -> Tensor:
        return paddle.to_tensor(random.standard_normal(shape).astype("float32")).astype(dtype)

    x = tensor(2, 14, 14, channels)
    weight = tensor(outputs_, kernel, kernel, channels // settings.groups)
    bias = tensor(outputs_)
    rows, columns = settings.output_size((14, 14), (kernel, kernel))
    shortcut = tensor(2, rows, columns, outputs_) if added else None
    y = convolve_biased(x, weight, bias, settings, shortcut, relu=relu)
    expected = convolve_in_float64(x, weight, bias, settings, shortcut, relu=relu)
    difference = (y.astype("float32") - expected.astype("float32")).numpy()
    assert np.linalg.norm(difference) <= TOLERANCE[dtype] * np.linalg.norm(expected.astype("float32").numpy())
    nan = convolve_biased(paddle.full_like(x, float("nan")), weight, bias, settings, shortcut, relu=relu)
    assert bool(paddle.isnan(nan).all()), "an overflow must stay visible"


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*MODELS, "EfficientNetB0"])
def test_folded_network_on_a_gpu_is_as_close_to_float32_as_its_layers(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = network(name)
    image = pictures(side=64)
    exact = outputs(model, image)
    paddle.amp.decorate(models=model, level="O2", dtype="float16")
    fuse_all(model, "gpu")
    half = image.astype("float16")
    separate = np.linalg.norm(outputs(model, half) - exact)
    with constant_weights(model):
        one = np.linalg.norm(outputs(model, half) - exact)
    norms = [layers for layers in folded._attached(model) if isinstance(layers, folded.FoldedNorm)]
    used = [bool(layers._copies) for layers in norms]
    assert all(used) or name in ("MobileNetV3_small_x0_35", "EfficientNetB0"), (
        "hard swish and swish have kernels for depthwise convolutions only"
    )
    assert any(used)
    assert one <= 2 * separate + 1e-3 * np.linalg.norm(exact)
    assert "two kernels" not in capsys.readouterr().err
