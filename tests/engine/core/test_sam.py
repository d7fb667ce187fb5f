"""Sharpness-aware minimization, beside a plain formula of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import nn, optimizer
from paddle.regularizer import L2Decay
from small_net import CLASSES, Flat, MemoryLoader, Net, assert_equal, content, make_state

from ppcls.arch.layers.drop_path import DropPath, StepMasks
from ppcls.data.loaders.batch import Batch
from ppcls.engine.core.gradients import ParameterGradients
from ppcls.engine.core.precision import FP32, AmpO1, Precision, build_precision
from ppcls.engine.core.sam import SharpnessAware
from ppcls.engine.core.settings import AMP
from ppcls.engine.core.state import TrainState
from ppcls.engine.core.step import train_step
from ppcls.engine.cuda_graph.exchange_groups import ExchangeSettings
from ppcls.engine.cuda_graph.flat_gradients import FlatGradients
from ppcls.engine.cuda_graph.graphed_step import EAGER_UPDATES, GraphedStep
from ppcls.optimizer.build import build_optimizer
from ppcls.optimizer.state import master_weights
from ppcls.registry import OPTIMIZERS

RATE = 0.1
MOMENTUM = 0.9
DECAY = 0.01
CLIP = 0.5
RHO = 0.3


class Again:
    """Does the work at each replay, as a CUDA graph does."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.replay = work


class Scaled(AmpO1):
    """Loss scaling alone, in float32: the part of mixed precision that a CPU can do."""

    def forward(self):  # type: ignore[no-untyped-def]
        return paddle.amp.auto_cast(enable=False)


def scaled() -> Precision:
    return Scaled(AMP(scale_loss=2.0**10))


def with_sam(state: TrainState, rho: float, first_epoch: int = 1) -> TrainState:
    return replace(state, sam=SharpnessAware(rho, state.model, state.frozen, first_epoch))


def use(state: TrainState, made: Any) -> TrainState:
    return replace(state, optimizer=made, gradients=ParameterGradients(made))


def train(state: TrainState, epochs: int, *, captured: bool = False) -> list[np.ndarray]:
    """Trains, and returns the results of all steps."""
    state.network.train()
    step = GraphedStep(state, Again) if captured else train_step
    return [step(state, batch).numpy() for _ in range(epochs) for batch in state.loader]


def reference(
    state: TrainState, batches: list[list[Batch]], rho: float
) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    """Trains the model of a state by the formulas of the paper, with NumPy; float64 but for the gradients.

    Args:
        batches: Batches of each update.
    """
    model = state.model
    tensors = model.state_dict()
    trained = {name: tensor for name, tensor in tensors.items() if not tensor.stop_gradient}
    running = {name: tensor for name, tensor in tensors.items() if name not in trained}
    weights = {name: weight.numpy().astype(np.float64) for name, weight in trained.items()}
    velocity = {name: np.zeros_like(weight) for name, weight in weights.items()}
    losses = []

    def gradients(at: dict[str, np.ndarray], batch: Batch) -> tuple[dict[str, np.ndarray], np.ndarray]:
        for name, weight in trained.items():
            weight.set_value(at[name].astype(np.float32))
            weight.clear_gradient(False)
        outputs = model(batch.image)[: batch.valid]
        loss = nn.functional.cross_entropy(outputs, batch.label[: batch.valid])
        loss.backward()
        found = {name: weight.grad.numpy().astype(np.float64) for name, weight in trained.items()}
        return {name: batch.weight * gradient for name, gradient in found.items()}, loss.numpy() * batch.valid

    for number, of_update in enumerate(batches):
        total = {name: np.zeros_like(weight) for name, weight in weights.items()}
        for batch in of_update:
            first, loss = gradients(weights, batch)
            losses.append(loss)
            statistics = [tensor.numpy() for tensor in running.values()]
            norm = np.sqrt(sum((each**2).sum() for each in first.values()))
            there = {name: weight + rho * first[name] / norm for name, weight in weights.items()}
            second, _ = gradients(there, batch)
            total = {name: total[name] + second[name] for name in total}
            for tensor, before in zip(running.values(), statistics, strict=True):
                tensor.set_value(before)
        norm = np.sqrt(sum((each**2).sum() for each in total.values()))
        for name in weights:
            gradient = total[name] * min(1.0, CLIP / norm) + DECAY * weights[name]
            velocity[name] = MOMENTUM * velocity[name] + gradient
            weights[name] = weights[name] - RATE / (1 + number) * velocity[name]
    return weights | {name: tensor.numpy() for name, tensor in running.items()}, losses


def momentum_state(precision: Precision, loader: MemoryLoader | None = None) -> TrainState:
    state = make_state(precision=precision, loader=loader)
    made = optimizer.Momentum(
        RATE,
        MOMENTUM,
        parameters=state.model.parameters(),
        weight_decay=L2Decay(DECAY),
        grad_clip=nn.ClipGradByGlobalNorm(CLIP),
    )
    return use(state, made)


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("first_epoch", [2, 3])
def test_second_passes_begin_with_an_epoch(first_epoch: int, accumulate: int, captured: bool) -> None:
    """Also in steps whose graphs were captured before."""

    def make() -> TrainState:
        return momentum_state(FP32(), MemoryLoader(size=8 * 5 * accumulate + 4, accumulate=accumulate))

    late = with_sam(make(), RHO, first_epoch)
    train(late, 4, captured=captured)
    two_parts = make()
    train(two_parts, first_epoch - 1)
    two_parts = with_sam(two_parts, RHO)
    train(two_parts, 4 - (first_epoch - 1))
    assert late.update == two_parts.update
    found = content(late.model)
    for name, expected in content(two_parts.model).items():
        # Replayed steps add the squares of the norm in another order.
        np.testing.assert_allclose(
            found[name], expected, rtol=1e-4 * captured, atol=1e-6 * captured, err_msg=name
        )
    without = make()
    train(without, 4)
    assert not np.allclose(content(without.model)["fc.weight"], found["fc.weight"], atol=1e-3)


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("precision", [FP32, scaled])
def test_sam_trains_the_weights_of_the_formula(
    accumulate: int, precision: Callable[[], Precision], captured: bool
) -> None:
    def loader() -> MemoryLoader:
        return MemoryLoader(size=8 * 5 * accumulate + 4, batch_size=8, accumulate=accumulate)

    state = with_sam(momentum_state(precision(), loader()), RHO)
    sums = train(state, 1, captured=captured)
    other = momentum_state(FP32(), loader())
    other.network.train()
    batches: list[list[Batch]] = [[]]
    for batch in other.loader:
        batches[-1].append(batch)
        if batch.update:
            batches.append([])
    assert len(batches[:-1]) == state.update > max(5, EAGER_UPDATES + 1)
    expected, losses = reference(other, batches[:-1], RHO)
    np.testing.assert_allclose([row[0] for row in sums], losses, rtol=1e-5)
    found = content(state.model)
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        np.testing.assert_allclose(found[name], weight, rtol=1e-4, atol=1e-6, err_msg=name)
    without = momentum_state(FP32(), loader())
    train(without, 1)
    assert not np.allclose(content(without.model)["fc.weight"], expected["fc.weight"], atol=1e-3)


SPECS = {
    "SGD": {"name": "SGD"},
    "Momentum": {"name": "Momentum", "regularizer": {"name": "L2", "coeff": 0.1}},
    "clip": {"name": "Momentum", "clip_norm": 0.1, "use_nesterov": True},
    "Adam": {"name": "Adam", "clip_value": 0.1},
    "AdamW": {"name": "AdamW", "weight_decay": 0.1},
    "RMSProp": {"name": "RMSProp"},
    "Lamb": {"name": "Lamb", "weight_decay": 0.1, "clip_norm": 1.0},
    "LARS": {"name": "LARS", "lars_coeff": 0.1},
    "Lion": {"name": "Lion", "weight_decay": 0.1},
    "Muon": {"name": "Muon", "weight_decay": 0.1},
    "ScheduleFreeAdamW": {"name": "ScheduleFreeAdamW", "weight_decay": 0.1},
}


def config_state(kind: str, precision: Precision, accumulate: int = 1, rate: float = 0.01) -> TrainState:
    fields = {**SPECS[kind], "lr": {"name": "Constant", "learning_rate": 0.01}}
    spec = OPTIMIZERS[fields.pop("name")].model_validate(fields)
    loader = MemoryLoader(size=52, batch_size=8, accumulate=accumulate)
    state = make_state(precision=precision, loader=loader, decay=0.9)
    state = replace(state, schedule=lambda _: rate)
    return use(state, build_optimizer(spec, state.model))


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("precision", [FP32, scaled])
def test_sam_captured_steps_equal_eager_ones(
    kind: str, accumulate: int, precision: Callable[[], Precision]
) -> None:
    runs = []
    for captured in (False, True):
        state = with_sam(config_state(kind, precision(), accumulate), RHO)
        runs.append((train(state, 2, captured=captured), state))
    (rows, eager), (others, replayed) = runs
    np.testing.assert_allclose(rows, others, rtol=1e-5)
    assert replayed.ema is not None
    assert eager.ema is not None
    for found, expected in (
        (content(replayed.model), content(eager.model)),
        (replayed.ema.state_dict(), eager.ema.state_dict()),
    ):
        for name in expected:
            # The norm sums in another order. Adam divides by roots of numbers near 0.
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("kind", SPECS)
def test_sam_with_a_radius_near_0_trains_the_weights_without_sam(kind: str) -> None:
    runs = []
    for rho in (None, 1e-12, 0.3):
        state = config_state(kind, FP32())
        rows = train(state if rho is None else with_sam(state, rho), 1)
        runs.append((rows, content(state.model)))
    (rows, without), (near, same), (_, far) = runs
    np.testing.assert_array_equal(rows, near)
    assert_equal(same, without)
    assert not np.array_equal(far["fc.weight"], without["fc.weight"])


@pytest.mark.parametrize("captured", [False, True])
def test_sam_with_a_learning_rate_of_0_restores_the_weights_exactly(captured: bool) -> None:
    runs = []
    for rho in (None, 0.7):
        state = config_state("SGD", FP32(), rate=0.0)
        before = content(state.model)
        train(state if rho is None else with_sam(state, rho), 1, captured=captured)
        runs.append(content(state.model))
        assert_equal({"weight": runs[-1]["conv.weight"]}, {"weight": before["conv.weight"]})
        assert not np.array_equal(runs[-1]["bn._mean"], before["bn._mean"])
    assert_equal(runs[1], runs[0])  # also the statistics of BatchNorm


class Dropped(Net):
    """A `Net` that also draws random numbers."""

    def forward(self, image: paddle.Tensor) -> paddle.Tensor:
        self.masks = nn.functional.dropout(paddle.ones([64]))
        self.drawn.append(self.masks.numpy())
        return super().forward(image)


def test_sam_passes_draw_the_same_numbers_and_leave_the_generator_as_one_pass() -> None:
    drawn = []
    for rho in (None, 0.1):
        model = Dropped()
        model.drawn = []
        state = make_state(model=model)
        train(state if rho is None else with_sam(state, rho), 2)
        drawn.append(model.drawn)
    once, twice = drawn
    assert len(twice) == 2 * len(once)
    np.testing.assert_array_equal(twice[::2], once)
    np.testing.assert_array_equal(twice[1::2], once)


class Masked(Net):
    """A `Net` with stochastic depth, whose factors come from `StepMasks`."""

    def __init__(self, masks: StepMasks) -> None:
        super().__init__()
        self.drop = DropPath(0.4)
        self.drop.masks = masks

    def forward(self, image: paddle.Tensor) -> paddle.Tensor:
        return super().forward(image + self.drop(image))


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_sam_passes_have_the_same_masks_as_one_pass(accumulate: int, captured: bool) -> None:
    runs = []
    for rho in (None, 1e-12):
        masks = StepMasks(1, 0)
        paddle.seed(1)
        loader = MemoryLoader(size=52, batch_size=8, accumulate=accumulate)
        state = replace(make_state(model=Masked(masks), loader=loader), masks=masks)
        rows = train(state if rho is None else with_sam(state, rho), 2, captured=captured)
        runs.append((rows, content(state.model)))
    np.testing.assert_array_equal(runs[1][0], runs[0][0])
    assert_equal(runs[1][1], runs[0][1])


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_sam_overflow_of_the_first_pass_changes_only_the_scale(accumulate: int, captured: bool) -> None:
    loader = MemoryLoader(size=8 * accumulate, batch_size=8, accumulate=accumulate)
    state = with_sam(make_state(precision=scaled(), loader=loader), RHO)
    state.network.train()
    step = GraphedStep(state, Again) if captured else train_step
    batches = [list(state.loader) for _ in range(EAGER_UPDATES + 3)]
    for update in batches[:-2]:
        for batch in update:
            step(state, batch)
    before = content(state.model)
    batches[-2][-1].image.fill_(float("inf"))
    for batch in batches[-2]:
        step(state, batch)
    assert_equal(content(state.model), before)
    assert state.precision.state_dict()["scale"] == 2.0**9
    assert state.precision.outcomes().nonfinite.tolist() == [False] * (EAGER_UPDATES + 1) + [True]
    for batch in batches[-1]:
        step(state, batch)
    after = content(state.model)
    assert not np.array_equal(after["fc.weight"], before["fc.weight"])
    assert all(np.isfinite(each).all() for each in after.values())


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
@pytest.mark.parametrize("captured", [False, True])
def test_sam_without_a_finite_direction_climbs_nowhere(bad: float, captured: bool) -> None:
    """The weights of the second pass are those of the first one; also those whose own gradient is finite."""
    model = Flat()
    seen = []
    model.register_forward_pre_hook(lambda *_: seen.append(model.fc.weight.numpy().copy()))
    state = with_sam(make_state(model=model, loader=MemoryLoader(size=40, batch_size=8)), RHO)
    step = GraphedStep(state, Again) if captured else train_step
    batches = list(state.loader)
    batches[-1].image[0, 0, 0, 0] = bad
    for batch in batches:
        step(state, batch)
    assert len(seen) == 2 * len(batches) > 2 * EAGER_UPDATES + 2
    assert [np.array_equal(*seen[place : place + 2]) for place in range(0, len(seen), 2)] == [
        *[False] * (len(batches) - 1),
        True,
    ]
    assert state.precision.outcomes().nonfinite.tolist() == [*[False] * (len(batches) - 1), True]


def test_sam_of_a_gradient_of_0_changes_nothing() -> None:
    state = with_sam(make_state(), RHO)
    before = content(state.model)
    state.network.train()
    batch = next(iter(state.loader))
    train_step(state, replace(batch, valid=0, weight=0.0))
    after = content(state.model)
    assert_equal({"fc": after["fc.weight"]}, {"fc": before["fc.weight"]})
    assert all(np.isfinite(each).all() for each in after.values())


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_sam_rounds_the_weights_to_which_it_climbs(level: str) -> None:
    """On a CPU, operators round what GPUs store in bfloat16."""
    losses = []
    for rho in (1e-12, 0.05):
        precision = build_precision(AMP(level=level, dtype="bfloat16"), "cpu")
        state = with_sam(make_state(precision=precision, decay=0.9), rho)
        losses.append([row[0] for row in train(state, 20)])
    assert losses[1][-1] < losses[1][0]
    np.testing.assert_allclose(losses[1][-1], losses[0][-1], rtol=0.2)
    assert losses[1][-1] != losses[0][-1]


class Halved(nn.Layer):
    """A model whose weights are in half precision, with float32 master weights; it computes in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(48, CLASSES)
        self.scale = self.create_parameter([CLASSES], default_initializer=nn.initializer.Constant(1.0))

    def forward(self, image: paddle.Tensor) -> paddle.Tensor:
        logits = image.flatten(1) @ self.fc.weight.astype("float32") + self.fc.bias.astype("float32")
        return logits * self.scale


def halved_state(accumulate: int = 1) -> TrainState:
    paddle.seed(1)
    model = Halved()
    model.fc.to(dtype="bfloat16")
    loader = MemoryLoader(size=8 * 6 * accumulate, batch_size=8, accumulate=accumulate)
    spec = OPTIMIZERS["Lion"].model_validate({"lr": {"name": "Constant", "learning_rate": 1e-4}})
    state = use(make_state(model=model, loader=loader), build_optimizer(spec, model, multi_precision=True))
    return with_sam(replace(state, schedule=lambda _: 1e-4), 1e-3)


def rounded(exact: np.ndarray) -> np.ndarray:
    return np.asarray(paddle.to_tensor(exact).astype("bfloat16").astype("float32").numpy())


@pytest.mark.parametrize("accumulate", [1, 2])
def test_sam_climbs_from_the_master_weights(accumulate: int) -> None:
    seen = []
    state = halved_state(accumulate)
    weight = state.model.fc.weight
    master = master_weights(state.optimizer, state.model)["fc.weight"]
    state.model.register_forward_pre_hook(
        lambda *_: seen.append((weight.astype("float32").numpy(), master.numpy().copy()))
    )
    train(state, 1)
    assert len(seen) == 2 * 6 * accumulate
    for (before, exact), (there, same) in zip(seen[::2], seen[1::2], strict=True):
        np.testing.assert_array_equal(exact, same)
        np.testing.assert_array_equal(before, rounded(exact))
        moved = (there != before).sum()
        # The steps are smaller than the spacing of the weights, of which few are between two numbers.
        assert 0 < moved < before.size / 2
    np.testing.assert_array_equal(weight.astype("float32").numpy(), rounded(master.numpy()))


def test_sam_climbs_on_flat_weights_as_on_single_ones() -> None:
    moved = []
    for flat in (False, True):
        state = halved_state()
        store = (
            FlatGradients(state.optimizer, None, 1, ExchangeSettings(), trials=True)
            if flat
            else state.gradients
        )
        store.begin_trial()
        state.model(next(iter(state.loader)).image).square().mean().backward()
        store.collect()
        assert state.sam is not None
        groups = store.trial_groups()
        assert len(groups) == (2 if flat else 3)
        before = content(state.model)
        state.sam.climb(groups)
        moved.append(content(state.model))
        state.sam.descend()
        assert_equal(content(state.model), before)
        assert not np.array_equal(moved[-1]["fc.weight"], before["fc.weight"])
    assert_equal(moved[1], moved[0])


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["Momentum", "clip", "AdamW"])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("amp", [None, AMP(level="O1"), AMP(level="O2")], ids=["float32", "O1", "O2"])
def test_sam_cuda_graph_trains_the_weights_of_eager_steps(
    kind: str, accumulate: int, kernels: bool, amp: AMP | None
) -> None:
    fields = {**SPECS[kind], "lr": {"name": "Constant", "learning_rate": 0.01}}
    spec = OPTIMIZERS[fields.pop("name")].model_validate(fields)
    runs = []
    for captured in (False, True):
        precision = build_precision(amp, "gpu")
        state = make_state(loader=MemoryLoader(size=60 * accumulate, batch_size=8, accumulate=accumulate))
        made = build_optimizer(spec, state.model, precision.master_weights)
        precision.prepare(state.model, made)
        state = use(replace(state, precision=precision, schedule=lambda _: 0.01), made)
        state = with_sam(state, 0.05)
        state.network.train()
        step = GraphedStep(state, kernels=kernels) if captured else train_step
        sums = [step(state, batch) for batch in state.loader]
        runs.append((np.array([float(each[0]) for each in sums]), content(state.model)))
    (losses, eager), (others, replayed) = runs
    tolerance = 1e-4 if amp is None else 5e-2  # float16 sums in another order
    np.testing.assert_allclose(others, losses, rtol=tolerance, atol=tolerance)
    for name, weight in eager.items():
        assert np.isfinite(replayed[name]).all(), name
        np.testing.assert_allclose(replayed[name], weight, rtol=tolerance, atol=tolerance, err_msg=name)
