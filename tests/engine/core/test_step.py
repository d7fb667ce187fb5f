"""The arithmetic of one step: padded rows, accumulation, the weight of a batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import paddle
import pytest
from paddle import nn
from small_tree import small_tree

from ppcls.data.loaders.batch import Batch
from ppcls.data.sampling.epoch_samplers import SequentialSampler
from ppcls.data.sampling.order import Cursor, Order
from ppcls.engine.core.ema import Ema
from ppcls.engine.core.gradients import ParameterGradients
from ppcls.engine.core.precision import FP32
from ppcls.engine.core.state import TrainState
from ppcls.engine.core.step import train_step
from ppcls.loss.build import build_criterion
from ppcls.loss.classification import CELoss
from ppcls.metric.build import build_metrics
from ppcls.metric.single_label import TopkAcc
from ppcls.recipe.load import validate
from ppcls.runtime.start import Runtime

RNG = np.random.default_rng(3)
IMAGES = RNG.normal(size=(10, 3, 4, 4)).astype(np.float32)
LABELS = RNG.integers(0, 5, 10)


class _Positions:
    """A loader's position, for a state that is fed by hand."""

    def state_dict(self) -> dict[str, int]:
        return {"epoch": 0, "step": 0}


def make_state(ema: bool = False) -> TrainState:
    paddle.seed(11)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 5))
    optimizer = paddle.optimizer.SGD(0.0, parameters=model.parameters())
    return TrainState(
        model=model,
        network=model,
        optimizer=optimizer,
        schedule=lambda update: 0.1 / (1 + update),
        precision=FP32(),
        criterion=build_criterion((CELoss(epsilon=0.1),)),
        metrics=build_metrics((TopkAcc(topk=(1, 2)),)),
        loader=_Positions(),  # type: ignore[arg-type]
        ema=Ema(model, 0.5) if ema else None,
        runtime=Runtime(),
        config=validate(small_tree(Path("images"), Path("run")), "small"),
        gradients=ParameterGradients(optimizer),
    )


def feed(state: TrainState, order: Order, epoch: int = 0) -> list[np.ndarray]:
    sums = []
    for s in range(len(order)):
        step = order.at(Cursor(epoch, s))
        batch = Batch(
            paddle.to_tensor(IMAGES[step.indices]),
            paddle.to_tensor(LABELS[step.indices]),
            step.valid,
            step.weight,
            step.update,
        )
        sums.append(train_step(state, batch).numpy())
    return sums


def weights(state: TrainState) -> np.ndarray:
    return state.model.state_dict()["1.weight"].numpy()


@pytest.mark.parametrize(("batch", "accumulate"), [(5, 2), (2, 5), (1, 10), (4, 3), (3, 4), (16, 1)])
def test_train_step_update_does_not_depend_on_batch_size_and_accumulation(
    batch: int, accumulate: int
) -> None:
    whole, cut = make_state(), make_state()
    feed(whole, Order(SequentialSampler(10), batch_size=10))
    feed(cut, Order(SequentialSampler(10), batch_size=batch, accumulate=accumulate))
    assert whole.update == cut.update == 1
    np.testing.assert_allclose(weights(cut), weights(whole), rtol=0, atol=1e-7)


def test_train_step_sums_count_valid_rows_only() -> None:
    state = make_state()
    logits = state.model(paddle.to_tensor(IMAGES))
    expected = [
        10 * float(state.criterion(logits, paddle.to_tensor(LABELS))),
        *state.metrics.counts(logits, paddle.to_tensor(LABELS)).numpy(),  # type: ignore[union-attr]
    ]
    state = replace(state, schedule=lambda update: 0.0)
    sums = np.sum(feed(state, Order(SequentialSampler(10), batch_size=4)), axis=0)
    np.testing.assert_allclose(sums, expected, rtol=1e-6)


def test_train_step_without_valid_rows_changes_nothing() -> None:
    state = make_state()
    before = weights(state)
    batch = Batch(paddle.to_tensor(IMAGES[:4]), paddle.to_tensor(LABELS[:4]), 0, 0.0, True)
    sums = train_step(state, batch).numpy()
    np.testing.assert_array_equal(sums, 0)
    np.testing.assert_array_equal(weights(state), before)
    assert state.update == 1


def test_train_step_schedule_counts_updates() -> None:
    state = make_state()
    feed(state, Order(SequentialSampler(10), batch_size=2, accumulate=2))
    assert state.update == 3
    assert state.optimizer.get_lr() == pytest.approx(0.1 / 3)


def test_train_step_ema_follows_updates() -> None:
    state = make_state(ema=True)
    start = weights(state).copy()
    feed(state, Order(SequentialSampler(10), batch_size=5, accumulate=2))
    average = state.ema.state_dict()["1.weight"].numpy()  # type: ignore[union-attr]
    np.testing.assert_allclose(average, (start + weights(state)) / 2, atol=1e-7)
