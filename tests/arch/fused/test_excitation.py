"""Squeeze-and-excitation against Paddle's operators, on a GPU or an emulated one."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import paddle
import pytest
from cuda_emulation import emulate_gpu
from paddle import Tensor, nn
from paddle.nn import functional as F

from ppcls.arch.build import build_model
from ppcls.arch.fused import mean_pool
from ppcls.arch.fused.blocks import excitation
from ppcls.arch.fused.blocks.excitation import FusedExcitation, fuse_excitations
from ppcls.arch.fused.folded import constant_weights
from ppcls.arch.fused.layers import fuse
from ppcls.arch.layers.squeeze_excitation import LinearSqueezeExcitation, SqueezeExcitation

GATES = [F.sigmoid, F.hardsigmoid, partial(F.hardsigmoid, slope=0.2, offset=0.5)]
TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2}


@pytest.fixture(autouse=True)
def _emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate_gpu(monkeypatch, mean_pool, excitation)


def images(shape: tuple[int, ...], dtype: str) -> Tensor:
    values = np.random.default_rng(0).standard_normal(shape) * 2
    return paddle.to_tensor(values.astype("float32")).astype(dtype)


def build(channels: int, squeezed: int, **options: Any) -> SqueezeExcitation:
    """Returns a layer whose gates differ."""
    layer = SqueezeExcitation(channels, squeezed, data_format="NHWC", **options)
    random = np.random.default_rng(1)
    for parameter in layer.parameters():
        inputs = int(np.prod(parameter.shape[1:]))
        values = random.standard_normal(parameter.shape) * 3 / np.sqrt(inputs)
        parameter.set_value(values.astype("float32"))
    layer.eval()
    return layer


def run(layer: SqueezeExcitation, x: Tensor) -> Tensor:
    with paddle.no_grad(), constant_weights(layer):
        return layer(x)


def fuse_layer(layer: nn.Layer) -> None:
    fuse(layer)
    fuse_excitations(layer)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(
    ("act", "gate"),
    list(zip([F.relu, F.swish, F.relu], GATES, strict=True)),
    ids=["sigmoid", "hard_sigmoid", "slope"],
)
@pytest.mark.parametrize(
    ("shape", "squeezed"),
    [((2, 7, 7, 8), 2), ((3, 5, 9, 264), 11), ((1, 33, 31, 72), 18), ((2, 2, 2, 2176), 40)],
)
def test_kernels_compute_the_layer(
    shape: tuple[int, ...], squeezed: int, act: Any, gate: Any, dtype: str
) -> None:
    layer = build(shape[3], squeezed, act=act, gate=gate)
    x = images(shape, dtype)
    with paddle.no_grad():
        expected = layer(x.astype("float32")).numpy()
    fuse_layer(layer)
    layer.to(dtype=dtype)
    y = run(layer, x)
    assert str(y.dtype).endswith(dtype)
    assert layer.folded._copies, "the kernels were not used"
    size = np.abs(expected).max()
    np.testing.assert_allclose(y.astype("float32").numpy(), expected, rtol=0, atol=TOLERANCE[dtype] * size)


@pytest.mark.parametrize(
    ("name", "count"), [("MobileNetV3_small_x0_35", 9), ("EfficientNetB0", 16), ("PPLCNet_x0_25", 2)]
)
def test_networks_use_the_kernels(name: str, count: int) -> None:
    model = build_model(name, 10, "NHWC", 3)
    fuse(model)
    fuse_excitations(model)
    kernels = [
        layer for layer in model.sublayers() if isinstance(getattr(layer, "folded", None), FusedExcitation)
    ]
    assert len(kernels) == count


def test_kernels_are_used_only_with_constant_weights_and_see_new_ones() -> None:
    layer = build(16, 4)
    x = images((2, 4, 4, 16), "float16")
    fuse_layer(layer)
    layer.to(dtype="float16")
    first = run(layer, x)
    addresses = [tensor.data_ptr() for tensor in layer.folded._copies[paddle.float16]]
    for parameter in layer.parameters():
        parameter.set_value(-parameter)
    assert not layer.folded.supports(x)
    second = run(layer, x)
    assert [tensor.data_ptr() for tensor in layer.folded._copies[paddle.float16]] == addresses
    assert np.abs(first.astype("float32").numpy() - second.astype("float32").numpy()).max() > 0.01
    with constant_weights(layer):
        assert not layer.folded.supports(x), "gradients are enabled"


def test_kernels_keep_nan() -> None:
    layer = build(16, 4, gate=GATES[2])
    fuse_layer(layer)
    layer.to(dtype="float16")
    x = images((2, 4, 4, 16), "float16")
    x[0, 1, 2, 3] = float("nan")
    lost = np.isnan(run(layer, x).astype("float32").numpy())
    assert lost[0, 1, 2, 3]
    assert not lost[1].any()


@pytest.mark.parametrize(
    "options",
    [{"act": F.tanh}, {"gate": F.tanh}, {"gate": partial(F.hardsigmoid, name="gate")}],
    ids=["activation", "gate", "keyword"],
)
def test_layers_with_other_functions_do_not_change(options: Any) -> None:
    layer = build(16, 4, **options)
    fuse_layer(layer)
    assert "folded" not in vars(layer)


class GroupedExcitation(SqueezeExcitation):
    """A user's layer, whose convolutions are not products with one matrix."""

    @staticmethod
    def convolution(in_channels: int, out_channels: int, data_format: Any) -> nn.Layer:
        return nn.Conv2D(in_channels, out_channels, 1, groups=2, data_format=data_format)


class NormalizedExcitation(SqueezeExcitation):
    """A user's layer, whose convolutions are not all that follows the mean."""

    @staticmethod
    def convolution(in_channels: int, out_channels: int, data_format: Any) -> nn.Layer:
        convolution = nn.Conv2D(in_channels, out_channels, 1, data_format=data_format)
        return nn.Sequential(convolution, nn.BatchNorm2D(out_channels, data_format=data_format))


class WeightNormExcitation(SqueezeExcitation):
    """A user's layer, whose weights are computed in each call."""

    @staticmethod
    def convolution(in_channels: int, out_channels: int, data_format: Any) -> nn.Layer:
        convolution = nn.Conv2D(in_channels, out_channels, 1, data_format=data_format)
        return nn.utils.weight_norm(convolution)


class NamedExcitation(nn.Layer):  # type: ignore[misc]
    """A user's layer, which has a name of `SqueezeExcitation` by chance."""

    def __init__(self) -> None:
        super().__init__()
        self.excitation = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x * F.sigmoid(self.excitation(x.mean([1, 2], keepdim=True)))


@pytest.mark.parametrize(
    "layer",
    [
        LinearSqueezeExcitation(16, 4, data_format="NHWC"),
        GroupedExcitation(16, 4, data_format="NHWC"),
        NormalizedExcitation(16, 4, data_format="NHWC"),
        WeightNormExcitation(16, 4, data_format="NHWC"),
        NamedExcitation(),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_other_layers_do_not_change(layer: nn.Layer) -> None:
    fuse_layer(layer)
    assert "folded" not in vars(layer)
