"""The loss scale against Paddle's GradScaler, and that it never waits."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import nn, optimizer
from small_net import Net, assert_equal, content, update

from ppcls.engine.core import gradients, loss_scale
from ppcls.engine.core.loss_scale import LossScale
from ppcls.optimizer.state import optimizer_state

INF, NAN = float("inf"), float("nan")
EVERY = 3  # updates before the scale doubles
FACTORS = [1, 1, INF, 1, 1, 1, NAN, INF, 1, 1, 1, 1, -INF, 1]
OVERFLOWS = [not np.isfinite(factor) for factor in FACTORS]


@pytest.fixture(autouse=True)
def grow_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_scale, "GROWTH_INTERVAL", EVERY)


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes Paddle's GradScaler, which on a CPU is switched off."""

    state = importlib.import_module("paddle.amp.auto_cast").amp_global_state()

    def make(scale: float, dynamic: bool) -> Any:
        tracer = SimpleNamespace(_expected_place=SimpleNamespace(is_gpu_place=lambda: True))
        monkeypatch.setattr(state, "amp_dtype", "float16")
        with monkeypatch.context() as patch:
            patch.setattr(paddle.amp.grad_scaler, "_dygraph_tracer", lambda: tracer)
            made = paddle.amp.GradScaler(
                init_loss_scaling=scale, use_dynamic_loss_scaling=dynamic, incr_every_n_steps=EVERY
            )
        made._scale = paddle.to_tensor(scale)  # of no dimension, or numpy 2.4 fails where Paddle prints it
        return made

    return make


KINDS: list[tuple[Any, dict[str, Any]]] = [
    (optimizer.SGD, {}),
    (optimizer.Momentum, {"weight_decay": 1e-3}),
    (optimizer.Momentum, {"use_multi_tensor": True, "use_nesterov": True}),
    (optimizer.Adam, {}),
    (optimizer.AdamW, {"weight_decay": 0.1, "grad_clip": nn.ClipGradByGlobalNorm(0.5)}),
    (optimizer.RMSProp, {"momentum": 0.9}),
]


def begin(kind: Any, settings: dict[str, Any]) -> tuple[Net, Any]:
    paddle.seed(3)
    net = Net()
    return net, kind(0.05, parameters=net.parameters(), **settings)


def losses(net: nn.Layer) -> Any:
    rng = np.random.default_rng(0)
    for factor in FACTORS:
        image = paddle.to_tensor(rng.normal(size=(2, 3, 4, 4)).astype(np.float32))
        yield net(image).square().mean() * float(factor)


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize(("kind", "settings"), KINDS, ids=lambda each: getattr(each, "__name__", None))
def test_loss_scale_weights_and_state_equal_paddles_scaler_bit_for_bit(
    reference: Callable[..., Any], kind: Any, settings: dict[str, Any], dynamic: bool
) -> None:
    theirs, their_optimizer = begin(kind, settings)
    scaler = reference(64.0, dynamic)
    for loss in losses(theirs):
        scaler.scale(loss).backward()
        scaler.step(their_optimizer)
        scaler.update()
        their_optimizer.clear_grad()

    ours, our_optimizer = begin(kind, settings)
    scale = LossScale(64.0, dynamic=dynamic)
    for loss in losses(ours):
        scale.scaled(loss).backward()
        update(scale, our_optimizer)
        our_optimizer.clear_grad()

    assert_equal(content(ours), content(theirs))
    assert all(np.isfinite(array).all() for array in content(ours).values())
    assert_equal(optimizer_state(our_optimizer, ours), optimizer_state(their_optimizer, theirs))
    kept = scaler.state_dict()
    found = scale.state_dict()
    assert found["scale"] == float(kept["scale"].item()) == (16.0 if dynamic else 64.0)
    if dynamic:
        assert found["incr_count"] == kept["incr_count"] == 1


def test_loss_scale_read_returns_all_updates_since_the_last_call() -> None:
    net, sgd = begin(optimizer.SGD, {})
    scale = LossScale(64.0, dynamic=True)
    read = []
    for number, loss in enumerate(losses(net)):
        scale.scaled(loss).backward()
        update(scale, sgd)
        sgd.clear_grad()
        if number in (4, 5):
            read.append(scale.read())
    read.append(scale.read())
    assert [len(each.nonfinite) for each in read] == [5, 1, 8]
    assert np.concatenate([each.nonfinite for each in read]).tolist() == OVERFLOWS
    scales = np.concatenate([each.loss_scales for each in read]).tolist()
    assert scales == [64, 64, 32, 32, 32, 64, 32, 16, 16, 16, 32, 32, 16, 16]
    assert scales[-1] == scale.state_dict()["scale"]
    assert scale.read().nonfinite.size == 0


@pytest.mark.parametrize("floor", [1.0, 4.0])
def test_loss_scale_below_its_minimum_is_reported(floor: float) -> None:
    net, sgd = begin(optimizer.SGD, {})
    scale = LossScale(4.0, dynamic=True, minimum=floor)
    for _ in range(4):
        scale.scaled(net(paddle.ones([1, 3, 4, 4])).sum() * INF).backward()
        update(scale, sgd)
        sgd.clear_grad()
    read = scale.read()
    assert read.loss_scales.tolist() == [2, 1, 0.5, 0.25]
    assert read.min_loss_scale == floor


def test_fixed_loss_scale_has_no_minimum() -> None:
    assert LossScale(0.5, dynamic=False, minimum=8.0).read().min_loss_scale == 0.0


def test_loss_scale_update_does_not_wait_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    net, momentum = begin(optimizer.Momentum, {})
    scale = LossScale(64.0, dynamic=True)

    def refuse(*_arguments: object) -> None:
        raise AssertionError("the host read the device")

    made = 0
    for loss in losses(net):
        scale.scaled(loss).backward()
        with monkeypatch.context() as patch:
            for name in ("numpy", "item", "__bool__", "__float__", "__int__", "tolist", "__array__"):
                patch.setattr(paddle.Tensor, name, refuse)
            update(scale, momentum)
        momentum.clear_grad()
        made += 1
    assert made == len(FACTORS)


def test_loss_scale_many_unread_updates_keep_few_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "_MOST_FLAGS", 4)
    net, sgd = begin(optimizer.SGD, {})
    scale = LossScale(64.0, dynamic=True)
    for loss in losses(net):
        scale.scaled(loss).backward()
        update(scale, sgd)
        sgd.clear_grad()
        assert len(scale._flags._flags) < 4
    assert scale.read().nonfinite.tolist() == OVERFLOWS


def test_loss_scale_state_dict_continues_another_scale() -> None:
    net, sgd = begin(optimizer.SGD, {})
    whole = LossScale(64.0, dynamic=True)
    for number, loss in enumerate(losses(net)):
        if number == 4:
            kept = json.loads(json.dumps(whole.state_dict()))
        whole.scaled(loss).backward()
        update(whole, sgd)
        sgd.clear_grad()
    assert kept == {"scale": 32.0, "incr_count": 1, "decr_count": 0}
    rest = LossScale(2.0, dynamic=True)
    rest.load_state_dict(kept)
    for number, loss in enumerate(losses(net)):
        if number >= 4:
            rest.scaled(loss).backward()
            update(rest, sgd)
            sgd.clear_grad()
    assert rest.state_dict() == whole.state_dict()
    assert rest.read().loss_scales.tolist() == whole.read().loss_scales.tolist()[4:]


@pytest.mark.parametrize(
    ("name", "value"),
    [("scale", math.nan), ("scale", math.inf), ("scale", 0.0), ("scale", -8.0), ("incr_count", 10**18)],
)
def test_loss_scale_load_state_dict_with_invalid_value_raises_value_error(name: str, value: float) -> None:
    scale = LossScale(64.0, dynamic=True)
    before = scale.state_dict()
    with pytest.raises(ValueError, match=f"expected a finite scale .* got .*{value}"):
        scale.load_state_dict({**before, name: value})
    assert scale.state_dict() == before


def test_loss_scale_update_without_gradients_changes_nothing() -> None:
    net, sgd = begin(optimizer.SGD, {})
    before = content(net)
    scale = LossScale(64.0, dynamic=True)
    update(scale, sgd)
    assert_equal(content(net), before)
    assert scale.read().nonfinite.tolist() == [False]


@pytest.mark.gpu
@pytest.mark.parametrize(("kind", "settings"), KINDS, ids=lambda each: getattr(each, "__name__", None))
@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16 with masters"])
def test_update_with_overflow_on_a_gpu_equals_no_update(
    kind: Any, settings: dict[str, Any], half: bool
) -> None:
    states = []
    for skip_overflows in (False, True):
        net, made = begin(kind, settings)
        if half:
            made._multi_precision = True
            net, made = paddle.amp.decorate(net, made, level="O2", master_weight=True)
        scale = LossScale(64.0, dynamic=True)
        with paddle.amp.auto_cast(enable=half, level="O2"):
            for loss, overflow in zip(losses(net), OVERFLOWS, strict=True):
                scale.scaled(loss).backward()
                if overflow and skip_overflows:
                    scale.end_update(paddle.to_tensor([True]))
                else:
                    update(scale, made)
                made.clear_grad()
        states.append((content(net), optimizer_state(made, net), scale.state_dict()))
        assert scale.read().nonfinite.tolist() == OVERFLOWS
    (one, state, numbers), (other, other_state, other_numbers) = states
    assert_equal(one, other)
    assert_equal(state, other_state)
    assert numbers == other_numbers
