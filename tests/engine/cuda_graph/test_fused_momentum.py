"""Against Paddle's Momentum on the same weights, one at a time."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paddle import nn, optimizer
from paddle.regularizer import L2Decay

from ppcls.engine.core.flat_buffers import FlatBuffers
from ppcls.engine.cuda_graph.flat_gradients import FusedMomentum
from ppcls.optimizer.state import changed_by_step, trained

# Shape, rate, and decay of its own.
WEIGHTS = st.lists(
    st.tuples(
        st.lists(st.integers(1, 12), min_size=1, max_size=4),
        st.sampled_from([1.0, 0.5]),
        st.sampled_from([None, 0.0, 0.1]),
    ),
    min_size=1,
    max_size=6,
)
Weights = list[tuple[list[int], float, float | None]]


class Some(nn.Layer):
    def __init__(self, weights: Weights) -> None:
        super().__init__()
        rng = np.random.default_rng(2)
        for number, (shape, rate, decay) in enumerate(weights):
            own = None if decay is None else L2Decay(decay)
            values = nn.initializer.Assign(rng.normal(size=shape).astype("float32"))
            each = paddle.ParamAttr(initializer=values, learning_rate=rate, regularizer=own)
            self.add_parameter(str(number), self.create_parameter(shape, each))


def hold_the_same(together: optimizer.Momentum, each: optimizer.Momentum, updates: int) -> int:
    """Returns the number of operators of an update."""
    state, order = FlatBuffers(changed_by_step(together)), trained(together)
    state.adopt()
    gradients = FlatBuffers(order)
    update = FusedMomentum(together, state.window, gradients.window)
    rng = np.random.default_rng(5)
    for number in range(updates):
        for made in (together, each):
            made.set_lr(0.1 / (1 + number))
        values = [paddle.to_tensor(rng.normal(size=one.shape)).astype(one.dtype) for one in order]
        gradients.fill(values)
        with paddle.no_grad():
            update()
            each._apply_optimize(None, None, list(zip(trained(each), values, strict=True)))
    for ours, theirs in zip(changed_by_step(together), changed_by_step(each), strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    return len(update._groups)


@given(WEIGHTS, st.booleans(), st.sampled_from([None, 0.01]), st.integers(1, 3))
def test_fused_momentum_equals_paddles(
    weights: Weights, nesterov: bool, decay: float | None, updates: int
) -> None:
    together, each = (
        optimizer.Momentum(0.1, 0.9, Some(weights).parameters(), nesterov, decay) for _ in range(2)
    )
    assert hold_the_same(together, each, updates) == len({(rate, own) for _, rate, own in weights})


@pytest.mark.gpu
def test_fused_momentum_on_a_gpu_equals_paddles_in_half_precision() -> None:
    made = []
    for _ in range(2):
        paddle.seed(3)
        flat = paddle.ParamAttr(regularizer=L2Decay(0.0))
        model = nn.Sequential(
            nn.Conv2D(3, 7, 3), nn.BatchNorm2D(7), nn.Conv2D(7, 5, 1, bias_attr=flat), nn.Linear(5, 9)
        )
        made.append(optimizer.Momentum(0.1, 0.9, model.parameters(), weight_decay=0.01))
        paddle.amp.decorate(model, made[-1], level="O2", dtype="float16", master_weight=True)
    assert hold_the_same(*made, updates=4) == 3, "with and without decay in float16, and BatchNorm's"
