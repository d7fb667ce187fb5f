"""Compiled models read the same factors of dropout and drop path as models that are not compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import paddle
import pytest
from numpy.typing import NDArray
from paddle import nn

from ppcls.arch.build import build_model
from ppcls.arch.layers.drop_path import DropPath, StepMasks, attach_masks
from ppcls.engine.autotune.workload import SyntheticLoader
from ppcls.engine.core.build import build_state
from ppcls.engine.core.compiled import CompiledModel
from ppcls.engine.core.state import TrainState
from ppcls.engine.core.step import train_step
from ppcls.engine.cuda_graph.graphed_step import GraphedStep
from ppcls.engine.execution import choose_step
from ppcls.recipe.schema import Config
from ppcls.runtime.start import Runtime

BATCH = 4
DEIT = {"img_size": 32, "drop_rate": 0.2, "drop_path_rate": 0.3}


class FullyConnected(nn.Layer):  # type: ignore[misc]
    """A convolution and hidden layers with dropout, as in AlexNet and VGG."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2D(3, 4, 3)
        self.drop = nn.Dropout(0.5, mode="downscale_in_infer")
        self.hidden = nn.Linear(16, 8)
        self.classifier = nn.Linear(8, BATCH)

    def forward(self, image: paddle.Tensor) -> paddle.Tensor:
        x = nn.functional.adaptive_avg_pool2d(self.conv(image), 2).flatten(1)
        x = nn.functional.relu(self.hidden(self.drop(x)))
        return self.classifier(self.drop(x))


def build(name: str) -> tuple[nn.Layer, str]:
    """Returns a model with random layers and the layout of its images."""
    paddle.seed(1)
    if name == "fully connected":
        return FullyConnected(), "NCHW"
    name, _, layout = name.partition(" ")
    options: dict[str, Any] = DEIT if name.startswith("DeiT") else {}
    return build_model(name, BATCH, layout or "NCHW", 3, **options), layout or "NCHW"


def prepare(model: nn.Layer, *, compiled: bool) -> tuple[nn.Layer, StepMasks]:
    """Attaches masks to a model in training mode, and returns the network to call."""
    model.train()
    masks = StepMasks(seed=3, rank=0)
    assert attach_masks(model, masks)
    network = paddle.jit.to_static(CompiledModel(model, masks), full_graph=True) if compiled else model
    return network, masks


def images(layout: str, side: int, number: int = 0) -> paddle.Tensor:
    batch = np.random.default_rng(number).standard_normal((BATCH, 3, side, side)).astype(np.float32)
    return paddle.to_tensor(batch if layout == "NCHW" else np.ascontiguousarray(batch.transpose(0, 2, 3, 1)))


def steps(
    network: nn.Layer, masks: StepMasks, batches: Iterator[paddle.Tensor], update: int, count: int = 2
) -> list[float]:
    """Adds the gradients of the steps of one update, and returns their losses."""
    losses = []
    for _ in range(count):
        masks.begin_step(update)
        masks.begin_forward()
        logits = network(next(batches))
        loss = nn.functional.cross_entropy(logits, paddle.arange(BATCH))
        loss.backward()
        losses.append(float(loss))
    return losses


def train(model: nn.Layer, layout: str, sides: list[int], *, compiled: bool) -> NDArray[Any]:
    """Trains two steps per update, one update per side of the images. Returns the losses."""
    network, masks = prepare(model, compiled=compiled)
    optimizer = paddle.optimizer.Momentum(0.01, parameters=model.parameters())
    losses = []
    for update, side in enumerate(sides):
        batches = (images(layout, side, 10 * update + number) for number in range(2))
        losses += steps(network, masks, batches, update)
        optimizer.step()
        optimizer.clear_grad()
    return np.array(losses)


@pytest.mark.parametrize(
    ("name", "sides"),
    [
        pytest.param("DeiT_tiny_patch16_224", [32, 32, 32], marks=pytest.mark.slow),
        pytest.param("EfficientNetB0_small NHWC", [32, 48, 32, 48], marks=pytest.mark.slow),
        ("MobileNetV3_small_x0_35 NCHW", [32, 48, 32, 48]),
        ("SqueezeNet1_1 NHWC", [40, 56, 40]),
        ("fully connected", [16, 24, 16, 24]),
    ],
)
def test_compiled_model_trains_like_the_model_itself(name: str, sides: list[int]) -> None:
    found = []
    for compiled in (False, True):
        model, layout = build(name)
        losses = train(model, layout, sides, compiled=compiled)
        found.append((losses, {key: value.numpy() for key, value in model.state_dict().items()}))
    (losses, tensors), (others, other_tensors) = found
    np.testing.assert_allclose(others, losses, rtol=1e-5)
    assert other_tensors.keys() == tensors.keys()
    for key, value in tensors.items():  # BatchNorm's statistics, too, which the model updates once per step
        np.testing.assert_allclose(other_tensors[key], value, rtol=1e-4, atol=1e-5, err_msg=key)


@pytest.mark.parametrize("compiled", [False, True])
def test_each_step_draws_other_factors(compiled: bool) -> None:
    network, masks = prepare(build("fully connected")[0], compiled=compiled)
    same = iter([images("NCHW", 16)] * 6)
    losses = [loss for update in range(3) for loss in steps(network, masks, same, update)]
    assert len({round(loss, 5) for loss in losses}) == 6


@pytest.mark.parametrize("sides", [[16, 16, 16], [16, 24, 16]])
def test_resumed_compiled_model_draws_the_factors_of_its_update(sides: list[int]) -> None:
    model, _ = build("fully connected")
    network, masks = prepare(model, compiled=True)
    expected = [steps(network, masks, iter([images("NCHW", side)] * 2), n) for n, side in enumerate(sides)]
    resumed = FullyConnected()
    resumed.set_state_dict(model.state_dict())
    network, masks = prepare(resumed, compiled=True)
    last = len(sides) - 1
    found = steps(network, masks, iter([images("NCHW", sides[last])] * 2), last)
    np.testing.assert_allclose(found, expected[last], rtol=1e-6)


def test_compiled_model_adds_nothing_to_checkpoints() -> None:
    model, layout = build("MobileNetV3_small_x0_35 NHWC")
    names = list(model.state_dict())
    network, masks = prepare(model, compiled=True)
    steps(network, masks, iter([images(layout, 32)]), 0, count=1)
    assert list(model.state_dict()) == names
    assert list(network.state_dict()) == [f"model.{name}" for name in names]


def test_first_call_of_a_compiled_model_leaves_paddles_generator() -> None:
    """`Dropout2D` draws from Paddle's generator, so the pass that records the factors must not use it up."""
    found = []
    for compiled in (False, True):
        model = nn.Sequential(nn.Dropout2D(0.5), DropPath(0.5))
        network, masks = prepare(model, compiled=compiled)
        masks.begin_step(0)
        paddle.seed(4)
        found.append(network(paddle.ones([64, 8, 2, 2])).numpy())
    np.testing.assert_array_equal(found[1], found[0])


def test_evaluation_of_a_compiled_model_drops_nothing() -> None:
    model, layout = build("MobileNetV3_small_x0_35 NCHW")
    network, masks = prepare(model, compiled=True)
    batch = images(layout, 32)
    steps(network, masks, iter([batch]), 0, count=1)
    network.eval()
    expected = model(batch).numpy()
    np.testing.assert_allclose(network(batch).numpy(), expected, rtol=1e-5, atol=1e-6)
    network.train()
    masks.begin_step(1)
    assert not np.allclose(network(batch).numpy(), expected)


def test_compiled_model_without_random_layers_needs_no_recording() -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    assert not attach_masks(model, StepMasks(seed=3, rank=0))
    calls = []
    model.register_forward_post_hook(lambda *_: calls.append(paddle.in_dynamic_mode()))
    paddle.jit.to_static(CompiledModel(model), full_graph=True)(paddle.ones([1, 3]))
    assert calls == [False]  # traced once


def build_for_gpu(config: Config) -> TrainState:
    """Builds the state of a run on a GPU, whose tensors are in the memory of the CPU."""
    runtime = Runtime(device="gpu", device_id=0)
    loader = SyntheticLoader(config.DataLoader.need_train(), config.Arch, runtime, accumulate=2)
    return build_state(config, runtime, lambda *_: None, loader)


def test_compiled_run_on_a_gpu_reads_masks(make_config: Callable[..., Config]) -> None:
    """So its steps can be captured: a CUDA graph would repeat the numbers of Paddle's generator."""
    found = []
    for compiled in (False, True):
        config = make_config(Global__to_static=compiled, Global__update_freq=2, Global__cuda_graph=True)
        state = build_for_gpu(config)
        assert isinstance(state.network, CompiledModel) is compiled
        step, _ = choose_step(state, config.Global, config.Arch, config.DataLoader.need_train())
        assert isinstance(step, GraphedStep)
        state.network.train()
        batches = iter(state.loader)
        found.append([train_step(state, next(batches)).numpy() for _ in range(6)])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)
    assert build_for_gpu(make_config(Arch__name="ResNet18")).masks is None


def test_sharpness_aware_passes_of_a_compiled_model_draw_the_same_factors(
    make_config: Callable[..., Config],
) -> None:
    found = []
    for compiled in (False, True):
        config = make_config(Global__to_static=compiled, Global__update_freq=2, Optimizer__sam_rho=0.1)
        state = build_for_gpu(config)
        state.network.train()
        batches = iter(state.loader)
        found.append([train_step(state, next(batches)).numpy() for _ in range(4)])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4)


@pytest.mark.gpu
def test_compiled_layers_without_masks_draw_the_same_numbers_on_a_gpu() -> None:
    """So `autotune` can compare the losses of models with such layers."""
    model = nn.Sequential(nn.Dropout2D(0.5), nn.AlphaDropout(0.5), nn.Dropout(0.5, axis=0))
    model.train()
    compiled = paddle.jit.to_static(CompiledModel(model), full_graph=True)
    found = []
    for network in (model, compiled):
        paddle.seed(4)
        found.append([network(paddle.ones([64, 8, 2, 2])).numpy() for _ in range(2)])
    np.testing.assert_array_equal(found[1], found[0])
