from __future__ import annotations

from dataclasses import replace

import numpy as np
import paddle
import pytest
from paddle import nn
from small_net import Flat, make_state

from ppcls.engine.core import gradients
from ppcls.engine.core.flat_buffers import ALIGNMENT
from ppcls.engine.core.gradients import NonFiniteFlags, ParameterGradients, any_nonfinite
from ppcls.engine.core.step import train_step


def some(values: list[float]) -> tuple[nn.Layer, paddle.optimizer.Optimizer]:
    layer = nn.Linear(2, 2)
    sgd = paddle.optimizer.SGD(1.0, parameters=layer.parameters())
    (layer(paddle.ones([1, 2])) * paddle.to_tensor([values])).sum().backward()
    return layer, sgd


def test_unscale_finite_gradients_are_divided() -> None:
    layer, sgd = some([8.0, -4.0])
    assert not ParameterGradients(sgd).unscale(paddle.full([1], 4.0)).item()
    np.testing.assert_array_equal(layer.bias.grad.numpy(), [2.0, -1.0])
    np.testing.assert_array_equal(layer.weight.grad.numpy(), [[2.0, -1.0]] * 2)


def test_unscale_gradient_of_a_transposed_weight_keeps_its_order() -> None:
    weight = paddle.create_parameter([3, 4], "float32")
    factors = paddle.arange(12, dtype="float32").reshape([4, 3])
    (weight.transpose([1, 0]) * factors).sum().backward()
    optimizer = paddle.optimizer.SGD(0.1, parameters=[weight])
    assert not ParameterGradients(optimizer).unscale(paddle.full([1], 2.0)).item()
    np.testing.assert_array_equal(weight.grad.numpy(), factors.numpy().T / 2)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_unscale_nonfinite_gradient_is_found(value: float) -> None:
    _, sgd = some([1.0, value])
    assert ParameterGradients(sgd).unscale(paddle.ones([1])).item()
    assert ParameterGradients(sgd).any_nonfinite().item()


def test_any_nonfinite_opposite_infinities_and_large_numbers() -> None:
    assert ParameterGradients(some([float("inf"), float("-inf")])[1]).any_nonfinite().item()
    assert not ParameterGradients(some([3e38, 3e38])[1]).any_nonfinite().item()
    assert not ParameterGradients(some([8.0, -4.0])[1]).any_nonfinite().item()


def hold_that_what_is_not_finite_is_found(kind: str) -> None:
    rng = np.random.default_rng(2)
    large = 65504 if kind == "float16" else 3e38  # TF32 rounds what is much larger to infinity
    buffers = [np.full(ALIGNMENT * count, large, kind) for count in (1, 700, 3)]
    assert not any_nonfinite([paddle.to_tensor(each) for each in buffers]).item()
    for value in (np.nan, np.inf, -np.inf):
        for place in range(3):
            bad = [each.copy() for each in buffers]
            bad[place][rng.integers(bad[place].size)] = value
            assert any_nonfinite([paddle.to_tensor(each) for each in bad]).item()


def test_any_nonfinite_in_buffers_is_found() -> None:
    hold_that_what_is_not_finite_is_found("float32")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["float16", "float32"])
def test_any_nonfinite_in_buffers_on_a_gpu_is_found(kind: str) -> None:
    hold_that_what_is_not_finite_is_found(kind)


def test_any_nonfinite_without_gradients_is_false() -> None:
    layer = nn.Linear(2, 2)
    sgd = paddle.optimizer.SGD(1.0, parameters=layer.parameters())
    assert not ParameterGradients(sgd).unscale(paddle.ones([1])).item()
    assert not ParameterGradients(sgd).any_nonfinite().item()


def test_nonfinite_flags_are_read_once_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "_MOST_FLAGS", 3)
    flags, given = NonFiniteFlags(), [True, False, False, True, True, False, True]
    for each in given:
        flags.append(paddle.to_tensor([each]))
    assert flags.read().tolist() == given
    assert flags.read().tolist() == []


def test_float32_step_equals_the_optimizer_and_reports_nonfinite_gradients() -> None:
    state, plain = make_state(model=Flat()), make_state(model=Flat())
    plain.model.set_state_dict(state.model.state_dict())
    for batch in state.loader:
        train_step(state, batch)
    assert state.precision.outcomes().nonfinite.tolist() == [False] * 3
    for batch in plain.loader:
        plain.criterion(plain.model(batch.image)[: batch.valid], batch.label[: batch.valid]).backward()
        plain.optimizer.set_lr(plain.schedule(plain.update))
        plain.optimizer.step()
        plain.optimizer.clear_grad()
        plain.progress.update += 1
    np.testing.assert_array_equal(state.model.fc.weight.numpy(), plain.model.fc.weight.numpy())
    state = replace(state, schedule=lambda update: float("inf"))
    for _ in range(2):
        for batch in state.loader:
            train_step(state, batch)
    assert state.precision.outcomes().nonfinite.any()
