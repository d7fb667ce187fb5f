"""The private attributes of Paddle's optimizers."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
from paddle import nn, optimizer
from paddle.regularizer import L2Decay

from ppcls.optimizer import paddle_optimizers as read


def built(kind: Any, layer: nn.Layer, **options: Any) -> Any:
    return kind(learning_rate=0.5, parameters=layer.parameters(), **options)


def test_settings_are_those_of_the_constructor() -> None:
    layer = nn.Linear(2, 3)
    clip = nn.ClipGradByGlobalNorm(2.0)
    momentum = built(optimizer.Momentum, layer, momentum=0.7, use_nesterov=True, grad_clip=clip)
    assert read.momentum_rule(momentum) == (0.7, True, 1.0)
    assert read.momentum_rule(built(optimizer.SGD, layer)) == (0.0, False, 1.0)
    assert read.clipping_of(momentum) is clip
    assert read.clipping_of(built(optimizer.SGD, layer)) is None
    adamw = built(optimizer.AdamW, layer, beta1=0.8, beta2=0.9, epsilon=1e-3)
    assert read.adam_rule(adamw) == (0.8, 0.9, 1e-3)
    assert read.adam_rule(built(optimizer.Lamb, layer, beta1=0.8, beta2=0.9, epsilon=1e-3)) == (
        0.8,
        0.9,
        1e-3,
    )
    rmsprop = built(optimizer.RMSProp, layer, rho=0.8, momentum=0.7, epsilon=1e-3, centered=True)
    assert read.rmsprop_rule(rmsprop) == (0.8, 0.7, 1e-3, True)
    assert [weight.name for weight in read.parameters_of(adamw)] == [w.name for w in layer.parameters()]
    assert read.coefficient_of(L2Decay(0.25)) == 0.25


@pytest.mark.parametrize("kind", [optimizer.SGD, optimizer.Momentum])
@pytest.mark.parametrize("decay", [0.0, 0.125])
def test_decay_is_that_of_the_update(kind: Any, decay: float) -> None:
    layer = nn.Linear(1, 1, bias_attr=False)
    update = built(kind, layer, weight_decay=decay or None)
    before = layer.weight.numpy()
    (layer(paddle.zeros([1, 1]))).sum().backward()  # the gradient is 0
    update.step()
    np.testing.assert_allclose(
        layer.weight.numpy(), before * (1 - 0.5 * read.optimizer_decay(update)), rtol=1e-6
    )
    assert read.optimizer_decay(update) == decay
    if kind is optimizer.Momentum:
        assert read.momentum_decay(update) == (("l2_decay", decay) if decay else ("", 0.0))


@pytest.mark.parametrize("kind", [optimizer.Momentum, optimizer.AdamW, optimizer.RMSProp])
def test_state_exists_before_the_first_update(kind: Any) -> None:
    layer = nn.Linear(2, 3)
    layer.to(dtype="float16")
    update = built(kind, layer)
    read.set_multi_precision(update, True)
    read.create_state(update)
    names = {weight.name for weight in layer.parameters()}
    masters = read.master_weights_of(update)
    assert masters.keys() == names
    assert {str(master.dtype) for master in masters.values()} == {"paddle.float32"}
    accumulators = read.accumulators_of(update)
    assert accumulators
    assert all(kinds.keys() == {m.name for m in masters.values()} for kinds in accumulators.values())


def test_gradients_from_elsewhere_update_the_parameters() -> None:
    layer = nn.Linear(2, 3)
    update = built(optimizer.SGD, layer)
    rate = read.learning_rate_tensor(update)
    update.set_lr(0.25)
    assert float(rate) == 0.25
    before = [weight.numpy() for weight in layer.parameters()]
    pairs = [(weight, paddle.ones_like(weight)) for weight in layer.parameters()]
    assert float(read.parameter_rate(update, pairs[0])) == 0.25
    read.apply_gradients(update, pairs)
    for weight, value in zip(layer.parameters(), before, strict=True):
        np.testing.assert_allclose(weight.numpy(), value - 0.25, rtol=1e-6)
