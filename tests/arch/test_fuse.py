"""Networks with the layers for inference: the scores of Paddle's layers, for every family and any threads."""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from paddle import Tensor, nn

from ppcls.arch import fuse as fusing
from ppcls.arch.batch_statistics import batch_norms, set_momentum
from ppcls.arch.fuse import InferenceLayers
from ppcls.arch.kernels import fallback
from ppcls.arch.kernels.errors import KernelsUnavailableError
from ppcls.arch.onednn import layers as cpu_layers
from ppcls.arch.onednn.library import OneDnnUnavailableError
from ppcls.arch.section import Arch
from ppcls.engine.core.build import build_state
from ppcls.recipe.schema import Config
from ppcls.registry import ARCHITECTURES
from ppcls.runtime.start import Runtime
from ppcls.zoo import ZOO

SMALL = "MobileNetV3_small_x0_35"
QUICK = ("ResNet18", "EfficientNet_lite0", SMALL, "SqueezeNet1_1")
TOLERANCE = 1e-4  # of the largest logit: the same sums in another order
CLASSES = 7


def smallest_per_family() -> list[str]:
    """Returns the cheapest architecture of each family."""
    found: dict[str, str] = {}
    entries = [entry for entry in ZOO.values() if entry.channels == 3]
    for entry in sorted(entries, key=lambda entry: entry.flops or float("inf")):
        found.setdefault(entry.family, entry.name)
    return sorted(found.values())


NAMES = [
    *QUICK,
    *(pytest.param(name, marks=pytest.mark.slow) for name in smallest_per_family() if name not in QUICK),
]


def random_images(seed: int, count: int, side: int) -> Tensor:
    shape = (count, 3, side, side)
    return paddle.to_tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def arch_of(name: str, **changes: Any) -> Arch:
    return Arch(name=name, class_num=CLASSES, **changes)


def settled(name: str, side: int) -> nn.Layer:
    """Returns a network whose batch norms have the statistics of images, so that no activation vanishes."""
    paddle.seed(3)
    model = arch_of(name).build()
    if list(batch_norms(model)):
        set_momentum(model, 0.0, name)
        model.train()
        with paddle.no_grad():
            model(random_images(0, 2 if side > 100 else 24, side))  # a variance needs several pixels
    model.eval()
    return model


def twin_of(model: nn.Layer, arch: Arch, *, constant: bool = True) -> nn.Layer:
    layers = InferenceLayers.choose(arch, "auto", "cpu", "float32")
    twin = layers.arch.build()
    twin.set_state_dict(model.state_dict())
    twin.eval()
    layers.apply(twin, constant=constant)
    return twin


def logits(model: nn.Layer, images: Tensor) -> NDArray[Any]:
    with paddle.no_grad():
        outputs = model(images)
    while not isinstance(outputs, Tensor):
        outputs = next(iter(outputs.values())) if isinstance(outputs, dict) else outputs[0]
    values: NDArray[Any] = outputs.numpy()
    return values


def in_float64(model: nn.Layer) -> nn.Layer:
    """Returns a copy that computes in float64. `Layer.to` would convert indexes, too."""
    exact = copy.deepcopy(model)
    indexes = {name: buffer.clone() for name, buffer in exact.named_buffers() if buffer.dtype == paddle.int64}
    exact.to(dtype="float64")
    for path, index in indexes.items():
        *parents, buffer = path.split(".")
        functools.reduce(getattr, parents, exact).register_buffer(buffer, index)
    return exact


def assert_same(found: NDArray[Any], expected: NDArray[Any]) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE * np.abs(expected).max())


@pytest.mark.parametrize("name", NAMES)
def test_layers_for_inference_have_the_scores_of_paddle(name: str) -> None:
    """With batches of several sizes, with images in the layout of the config."""
    side = ZOO[name].side if name not in QUICK else 64
    model = settled(name, side)
    twin = twin_of(model, arch_of(name))
    exact = in_float64(model)
    for count in (1, 2, 1):
        images = random_images(count, count, side)
        expected = logits(exact, images.astype("float64"))
        error = np.abs(logits(model, images) - expected).max()
        # Random weights amplify rounding in some networks, by Paddle's layers, too.
        assert np.abs(logits(twin, images) - expected).max() <= 5 * error + TOLERANCE * np.abs(expected).max()
    assert [*twin.state_dict()] == [*model.state_dict()]


@pytest.fixture(scope="module")
def pair() -> tuple[nn.Layer, nn.Layer]:
    model = settled(SMALL, 32)
    return model, twin_of(model, arch_of(SMALL))


@given(seed=st.integers(0, 99), count=st.integers(1, 5), side=st.integers(32, 70))
@settings(max_examples=10)
def test_scores_are_equal_for_any_size_of_images(
    pair: tuple[nn.Layer, nn.Layer], seed: int, count: int, side: int
) -> None:
    images = random_images(seed, count, side)
    assert_same(logits(pair[1], images), logits(pair[0], images))


@pytest.mark.parametrize("constant", [False, True])
def test_weights_that_change_are_used(pair: tuple[nn.Layer, nn.Layer], constant: bool) -> None:
    """Those that do not change do so only before the first forward pass, or in a copy."""
    model = copy.deepcopy(pair[0])
    twin = copy.deepcopy(pair[1]) if constant else twin_of(model, arch_of(SMALL), constant=False)
    images = random_images(1, 2, 32)
    before = logits(pair[1] if constant else twin, images)
    for network in (model, twin):
        state = network.state_dict()
        weights = {name: value * 1.1 for name, value in state.items() if name.endswith("conv.weight")}
        network.set_state_dict({**state, **weights})
    changed = logits(twin, images)
    assert np.abs(changed - before).max() > 10 * TOLERANCE * np.abs(before).max()
    assert_same(changed, logits(model, images))


def test_gradients_match_float64() -> None:
    name = "EfficientNetB0_small"  # its activations have no kink, beside which rounding changes a gradient
    model = settled(name, 32)
    twin = twin_of(model, arch_of(name))
    gradients = []
    for network, dtype in ((in_float64(model), "float64"), (twin, "float32")):
        images = random_images(1, 2, 32).astype(dtype)
        images.stop_gradient = False
        network(images).square().sum().backward()
        gradients.append(images.grad.numpy())
    expected, found = gradients
    assert np.linalg.norm(found - expected) < 1e-3 * np.linalg.norm(expected)


def test_threads_with_models_of_the_same_architecture_do_not_disturb_each_other() -> None:
    name = SMALL
    model = settled(name, 32)
    twins = [twin_of(model, arch_of(name)) for _ in range(4)]
    images = [random_images(seed, 2, 32) for seed in range(4)]
    expected = [logits(model, each) for each in images]
    found: dict[int, list[NDArray[Any]]] = {}

    def predict(number: int) -> None:
        found[number] = [logits(twins[number], images[number]) for _ in range(5)]

    threads = [threading.Thread(target=predict, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, results in sorted(found.items()):
        for result in results:
            assert_same(result, expected[number])
    assert len(found) == 4


@pytest.mark.parametrize(
    ("setting", "device", "number_format"),
    [(False, "cpu", "float32"), ("auto", "gpu", "float32"), ("auto", "cpu", "AMP O1 float16")],
)
def test_other_models_keep_their_layers(
    setting: Literal["auto", False], device: Literal["cpu", "gpu"], number_format: str
) -> None:
    arch = arch_of("ResNet18")
    layers = InferenceLayers.choose(arch, setting, device, number_format)
    assert (layers.arch, layers.fuses, layers.converts) == (arch, False, False)
    model = arch.build()
    layers.apply(model)
    assert not any("forward" in vars(layer) for layer in model.sublayers())


def test_measured_layers_of_paddle_have_their_own_layout() -> None:
    arch = arch_of("ResNet18", data_format="NHWC")
    layers = InferenceLayers.choose(arch, False, "cpu", "float32", "NCHW")
    assert (layers.arch.data_format, layers.fuses, layers.converts) == ("NCHW", False, True)
    model = arch.build()
    twin = layers.arch.build()
    twin.set_state_dict(model.state_dict())
    layers.apply(twin)
    for network in (model, twin):
        network.eval()
    images = random_images(1, 2, 32).transpose([0, 2, 3, 1])
    assert_same(logits(twin, images), logits(model, images))
    assert InferenceLayers.choose(arch, False, "cpu", "float32", "NHWC").arch == arch


class Custom(nn.Layer):  # type: ignore[misc]
    """A user's architecture, which supports only NCHW."""

    def __init__(self, class_num: int, data_format: str, input_image_channel: int) -> None:
        super().__init__()
        assert data_format == "NCHW"
        self.convolution = nn.Conv2D(input_image_channel, 4, 3)
        self.linear = nn.Linear(4, class_num)

    def forward(self, x: Tensor) -> Tensor:
        """Returns logits."""
        return self.linear(self.convolution(x).mean([2, 3]))


def test_own_architectures_keep_their_layout() -> None:
    if "CustomNchw" not in ARCHITECTURES:
        ARCHITECTURES.register("CustomNchw", Custom)
    arch = arch_of("CustomNchw")
    model = arch.build()
    twin = twin_of(model, arch)
    images = random_images(1, 2, 16)
    assert_same(logits(twin, images), logits(model, images))
    assert vars(twin.linear).get("forward") is not None
    assert "forward" not in vars(twin.convolution)


class Unusual(nn.Layer):  # type: ignore[misc]
    """A user's architecture with layers that oneDNN's layers do not replace."""

    def __init__(self, class_num: int, data_format: str, input_image_channel: int) -> None:
        super().__init__()
        nhwc = {"data_format": data_format}
        self.layers = nn.Sequential(
            nn.Conv2D(input_image_channel, 4, 3, **nhwc),
            nn.Conv2D(4, 4, 3, padding="SAME", **nhwc),
            nn.Conv2D(4, 4, 5, padding="SAME", **nhwc),
            nn.BatchNorm2D(4, use_global_stats=True, **nhwc),
            nn.MaxPool2D(2, ceil_mode=True, **nhwc),
            nn.AvgPool2D(3, **nhwc),
            nn.AdaptiveAvgPool2D(1, **nhwc),
            nn.Flatten(),
            nn.Linear(4, class_num),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Returns logits."""
        return self.layers(x)


def test_training_names_the_layers_that_onednn_does_not_replace(
    make_config: Callable[..., Config], capsys: pytest.CaptureFixture[str]
) -> None:
    if "Unusual" not in ARCHITECTURES:
        ARCHITECTURES.register("Unusual", Unusual)
    fallback.report.cache_clear()
    config = make_config(Arch__name="Unusual", Arch__data_format="NHWC", Global__fused_kernels=True)
    for _ in range(2):
        build_state(config, Runtime(), lambda *_: None)
    reasons = {
        "layers.1 (Conv2D) and 1 more": "the kernels need a padding with a given number of zeros",
        "layers.3 (BatchNorm2D)": "the kernels normalize by the statistics of the batch in training",
        "layers.4 (MaxPool2D)": "the kernels have neither return_mask nor ceil_mode",
    }
    assert capsys.readouterr().err.splitlines() == [
        f"fused kernels: {layers}: Paddle's operators, because {reason}" for layers, reason in reasons.items()
    ]


def test_layer_that_onednn_does_not_support_is_computed_by_paddle(
    pair: tuple[nn.Layer, nn.Layer], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    model, twin = pair[0], twin_of(pair[0], arch_of(SMALL))
    assert not capfd.readouterr().err
    whole = cpu_layers.convolve_packed

    def fail(x: Tensor, weight: Tensor, *rest: Any) -> Any:
        if weight.shape[-1] == 5:
            raise OneDnnUnavailableError("it has no such convolution")
        return whole(x, weight, *rest)

    monkeypatch.setattr(cpu_layers, "convolve_packed", fail)
    images = random_images(1, 2, 32)
    for _ in range(2):
        assert_same(logits(twin, images), logits(model, images))
    fives = [
        layer for layer in model.sublayers() if isinstance(layer, nn.Conv2D) and layer.weight.shape[-1] == 5
    ]
    assert len(fives) > 1
    assert capfd.readouterr().err == (
        f"fused kernels: {type(fives[0]).__name__}: Paddle's operators, because it has no such convolution\n"
    )


def test_machine_without_onednn_uses_paddle(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise KernelsUnavailableError("reason")

    monkeypatch.setattr(fusing, "library", fail)
    arch = arch_of("ResNet18")
    assert not InferenceLayers.choose(arch, "auto", "cpu", "float32").fuses
    assert not capsys.readouterr().err
    assert not InferenceLayers.choose(arch, True, "cpu", "float32").fuses
    assert "runs without the fused kernels: reason" in capsys.readouterr().err
