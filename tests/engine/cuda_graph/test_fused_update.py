"""The update kernels against Paddle's optimizers, on a GPU or an emulated one."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
from cuda_emulation import emulate_gpu
from paddle import Tensor, nn, optimizer
from paddle.regularizer import L2Decay

from ppcls.engine.core.flat_buffers import FlatBuffers
from ppcls.engine.cuda_graph import fused_update as module
from ppcls.engine.cuda_graph.fused_update import FusedUpdate
from ppcls.engine.cuda_graph.update_rules import find_rule
from ppcls.optimizer.build import build_optimizer
from ppcls.optimizer.state import changed_by_step, optimizer_state, trained
from ppcls.registry import OPTIMIZERS

RATE = {"name": "Constant", "learning_rate": 0.05}
SPECS: dict[str, dict[str, Any]] = {
    "AdamW": {"name": "AdamW", "weight_decay": 0.1},
    "AdamW by name": {
        "name": "AdamW",
        "weight_decay": 0.1,
        "one_dim_param_no_weight_decay": True,
        "by_name": [{"pattern": "1.*", "lr_mult": 3, "decay_mult": 0.5}],
    },
    "AdamW clipped": {"name": "AdamW", "clip_norm": 1.0},
    "Momentum": {"name": "Momentum", "regularizer": {"name": "L2", "coeff": 0.1}},
    "Momentum by name": {
        "name": "Momentum",
        "regularizer": {"name": "L2", "coeff": 0.1},
        "by_name": [{"pattern": "0.*", "lr_mult": 3, "decay_mult": 0.0}],
    },
    "Nesterov clipped": {"name": "Momentum", "use_nesterov": True, "clip_norm": 0.5},
    "SGD": {"name": "SGD", "regularizer": {"name": "L2", "coeff": 0.1}},
    "Adam": {"name": "Adam"},
    "Adam by name": {
        "name": "Adam",
        "regularizer": {"name": "L2", "coeff": 0.1},
        "by_name": [{"pattern": "0.*", "lr_mult": 3, "decay_mult": 0.0}],
    },
    "RMSProp": {"name": "RMSProp", "momentum": 0.9, "regularizer": {"name": "L2", "coeff": 0.1}},
    "RMSProp clipped": {"name": "RMSProp", "clip_norm": 0.5},
    "Lamb": {"name": "Lamb", "weight_decay": 0.1},
    "Lamb by name": {
        "name": "Lamb",
        "weight_decay": 0.1,
        "clip_norm": 1.0,
        "one_dim_param_no_weight_decay": True,
        "by_name": [{"pattern": "1.*", "lr_mult": 3, "decay_mult": 0.5}],
    },
    "LARS": {"name": "LARS", "lars_coeff": 0.1},
    "LARS by name": {
        "name": "LARS",
        "weight_decay": 0.1,
        "lars_coeff": 0.1,
        "epsilon": 0.01,
        "one_dim_param_no_weight_decay": True,
        "by_name": [{"pattern": "1.*", "lr_mult": 3, "decay_mult": 0.5}],
    },
    "Lion": {"name": "Lion", "weight_decay": 0.1},
    "Lion by name": {
        "name": "Lion",
        "weight_decay": 0.1,
        "by_name": [{"pattern": "1.*", "lr_mult": 3, "decay_mult": 0.0}],
    },
    "Muon": {"name": "Muon", "weight_decay": 0.1},
    "Muon by name": {
        "name": "Muon",
        "weight_decay": 0.1,
        "clip_norm": 1.0,
        "one_dim_param_no_weight_decay": True,
        "by_name": [{"pattern": "1.*", "lr_mult": 3, "decay_mult": 0.5}],
    },
    "ScheduleFreeAdamW": {"name": "ScheduleFreeAdamW", "weight_decay": 0.1},
    "ScheduleFreeAdamW by name": {
        "name": "ScheduleFreeAdamW",
        "weight_decay": 0.1,
        "clip_norm": 1.0,
        "by_name": [{"pattern": "1.*", "lr_mult": 3, "decay_mult": 0.0}],
    },
}


@pytest.fixture(autouse=True)
def _emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate_gpu(monkeypatch, module)


def make(kind: str) -> tuple[nn.Layer, optimizer.Optimizer]:
    paddle.seed(1)
    model = nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 300), nn.Linear(3, 1, bias_attr=False))
    fields = {**SPECS[kind], "lr": RATE}
    spec = OPTIMIZERS[fields.pop("name")].model_validate(fields)
    from ppcls.optimizer.name_rules import factors

    return model, build_optimizer(spec, model, factors=factors(spec, model))


def fuse(built: optimizer.Optimizer) -> tuple[FusedUpdate, FlatBuffers]:
    rule = find_rule(built)
    assert rule is not None
    state = FlatBuffers(changed_by_step(built))
    state.adopt()
    gradients = FlatBuffers(trained(built))
    return FusedUpdate(built, rule, state.window, gradients.window, gradients.buffers), gradients


def draw(weights: list[Tensor], seed: int) -> list[Tensor]:
    rng = np.random.default_rng(seed)
    return [paddle.to_tensor(rng.standard_normal(weight.shape).astype("float32")) for weight in weights]


def assert_states_close(value: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert value.keys() == expected.keys()
    for key in expected:
        np.testing.assert_allclose(value[key].numpy(), expected[key].numpy(), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("scale", [None, 1024.0], ids=["plain", "loss-scale"])
@pytest.mark.parametrize("kind", SPECS)
def test_fused_update_matches_paddle(kind: str, scale: float | None) -> None:
    (model, fused), (other, plain) = make(kind), make(kind)
    update, gradients = fuse(fused)
    for number in range(4):
        values = draw(trained(fused), number)
        for built in (fused, plain):
            built.set_lr(0.05 / (1 + number))
        gradients.fill([value * (scale or 1.0) for value in values])
        with paddle.no_grad():
            overflow = update(None if scale is None else paddle.full([1], scale))
            plain._apply_optimize(None, None, list(zip(trained(plain), values, strict=True)))
        assert not overflow.item()
    assert_states_close(dict(model.named_parameters()), dict(other.named_parameters()))
    assert_states_close(optimizer_state(fused, model), optimizer_state(plain, other))


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("kind", SPECS)
def test_fused_update_overflow_changes_nothing(kind: str, value: float) -> None:
    model, built = make(kind)
    update, gradients = fuse(built)
    values = draw(trained(built), 1)
    values[2].flatten()[1] = value
    values[2] = paddle.where(values[2] > 0, paddle.full_like(values[2], value), values[2])
    gradients.fill(values)
    before = {key: tensor.numpy().copy() for key, tensor in optimizer_state(built, model).items()}
    weights = {key: tensor.numpy().copy() for key, tensor in model.named_parameters()}
    assert update(paddle.full([1], 8.0)).item()
    for key, tensor in optimizer_state(built, model).items():
        np.testing.assert_array_equal(tensor.numpy(), before[key])
    for key, tensor in model.named_parameters():
        np.testing.assert_array_equal(tensor.numpy(), weights[key])


def test_fused_update_without_loss_scale_applies_and_reports_nonfinite_gradients() -> None:
    model, built = make("SGD")
    update, gradients = fuse(built)
    values = draw(trained(built), 1)
    values[0] = paddle.full_like(values[0], float("inf"))
    gradients.fill(values)
    assert update(None).item()
    assert not all(np.isfinite(weight.numpy()).all() for weight in model.parameters())


@pytest.mark.gpu
@pytest.mark.parametrize("kind", SPECS)
def test_fused_update_in_half_precision_matches_paddle_in_float32(kind: str) -> None:
    """Paddle in half precision would round the gradients after clipping, and decay by rounded weights."""
    (model, fused), (other, plain) = make(kind), make(kind)
    for network in (model, other):
        for weight in network.parameters():
            weight.set_value(weight.astype("float16").astype("float32"))  # as the master weights begin
    fused._multi_precision = True
    model, fused = paddle.amp.decorate(model, fused, level="O2", master_weight=True)
    update, gradients = fuse(fused)
    for number in range(3):
        values = [value.astype("float16") for value in draw(trained(fused), number)]
        gradients.fill([value * 8.0 for value in values])
        exact = [value.astype("float32") for value in values]
        with paddle.no_grad():
            update(paddle.full([1], 8.0))
            plain._apply_optimize(None, None, list(zip(trained(plain), exact, strict=True)))
    state = optimizer_state(fused, model)
    # A GPU rounds the factors of Muon's products to TF32, so a difference of one bit grows to about 0.001.
    atol = 1e-3 if "Muon" in kind else 1e-6
    for key, tensor in optimizer_state(plain, other).items():
        np.testing.assert_allclose(state[key].numpy(), tensor.numpy(), rtol=1e-5, atol=atol)
    for key, weight in other.named_parameters():
        np.testing.assert_allclose(state[f"{key}/master"].numpy(), weight.numpy(), rtol=1e-5, atol=atol)


@pytest.mark.parametrize("kind", ["Lamb", "LARS", "Lion", "RMSProp", "ScheduleFreeAdamW", "Adam"])
def test_fused_update_matches_paddle_for_zeros(kind: str) -> None:
    """Norms of 0, and the zeros that fill the space between weights."""
    (model, fused), (other, plain) = make(kind), make(kind)
    for network in (model, other):
        network[1].weight.set_value(paddle.zeros_like(network[1].weight))
    update, gradients = fuse(fused)
    values = draw(trained(fused), 1)
    values[0].fill_(0.0)
    gradients.fill(values)
    with paddle.no_grad():
        update(None)
        plain._apply_optimize(None, None, list(zip(trained(plain), values, strict=True)))
    assert_states_close(dict(model.named_parameters()), dict(other.named_parameters()))
    assert_states_close(optimizer_state(fused, model), optimizer_state(plain, other))


def test_all_optimizers_have_a_rule() -> None:
    for name in OPTIMIZERS:
        spec = OPTIMIZERS[name].model_validate({"lr": RATE})
        assert find_rule(build_optimizer(spec, nn.Linear(2, 2))) is not None, name


def test_other_settings_have_no_rule() -> None:
    weights = nn.Linear(2, 2).parameters()
    clip = nn.ClipGradByValue(1.0)
    assert find_rule(optimizer.Momentum(0.1, 0.9, weights)) is not None
    assert find_rule(optimizer.Momentum(0.1, 0.9, weights, grad_clip=clip)) is None
    assert find_rule(optimizer.AdamW(0.1, parameters=weights)) is None  # with one decay for all weights
    assert find_rule(optimizer.Lamb(0.1, parameters=weights)) is None
    assert find_rule(optimizer.RMSProp(0.1, centered=True, parameters=weights)) is None
    assert find_rule(optimizer.SGD(0.1, weights, weight_decay=L2Decay(0.1))) is not None
    assert find_rule(optimizer.SGD(0.1, weights, weight_decay=paddle.regularizer.L1Decay(0.1))) is None


@pytest.mark.parametrize("kind", ["AdamW", "Lamb", "ScheduleFreeAdamW"])
def test_weights_with_different_numbers_of_updates_have_no_rule(kind: str) -> None:
    model, built = make(kind)
    assert find_rule(built) is not None
    numbers = [value for value in optimizer_state(built, model).values() if value.shape == [1]]
    numbers[0].fill_(0.5)
    assert find_rule(built) is None
