from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import paddle
import pytest
from small_net import MemoryLoader, make_state

from ppcls.data.loaders.batch import Batch
from ppcls.engine import meter as module
from ppcls.engine.core.state import TrainState
from ppcls.engine.health.non_finite import NonFiniteMonitor
from ppcls.engine.meter import Meter
from ppcls.engine.profiling import data_wait
from ppcls.errors import UserError


class Clock:
    """A clock that only advances on request."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for each in (module, data_wait):
        monkeypatch.setattr(each, "time", made)
    return made


def batch(valid: int) -> Batch:
    return Batch(paddle.zeros([8, 3, 4, 4]), paddle.zeros([8], "int64"), valid, 1.0, True)


def watch(state: TrainState, limit: int = 20) -> NonFiniteMonitor:
    return NonFiniteMonitor(state, limit, Path("nowhere"), lambda: None)


def step(meter: Meter, state: TrainState, clock: Clock, sums: list[float], valid: int) -> None:
    """One update that waits 1 s for data and computes 3 s."""
    with meter.waiting():
        clock.now += 1.0
    clock.now += 3.0
    state.progress.update += 1
    state.precision._flags.append(paddle.zeros([1], "bool"))
    meter.add(paddle.to_tensor(sums, dtype="float32"), batch(valid))


def test_meter_record_covers_time_since_the_previous_one(clock: Clock) -> None:
    state = make_state()
    state.progress.update = 10
    meter = Meter(state, 3, watch(state))
    step(meter, state, clock, [8.0, 4.0, 6.0], 8)
    step(meter, state, clock, [6.0, 1.0, 2.0], 2)
    record = meter.record(epoch=2, step=2)
    assert (record.epoch, record.epochs, record.step, record.steps_per_epoch) == (2, 3, 2, 3)
    assert record.update == 12
    assert record.loss == pytest.approx(14 / 10)
    assert record.metrics == {"top1": pytest.approx(5 / 10), "top2": pytest.approx(8 / 10)}
    assert record.learning_rate == state.learning_rate(11)
    assert record.images_per_second == pytest.approx(10 / 8)
    assert record.data_wait == pytest.approx(2 / 8)
    assert record.eta_seconds == pytest.approx(4.0 * (1 + 3))  # 4 s per update, 4 updates left

    for seconds_left, expected in ((9.5, 9.5), (-1.0, 0.0), (100.0, 4.0 * 3)):
        step(meter, state, clock, [1.0, 1.0, 1.0], 1)
        record = meter.record(epoch=3, step=0, seconds_left=seconds_left)
        assert record.eta_seconds == pytest.approx(expected)

    step(meter, state, clock, [1.0, 1.0, 1.0], 1)
    record = meter.record(epoch=3, step=3)
    assert record.loss == pytest.approx(1.0)
    assert record.images_per_second == pytest.approx(1 / 4)
    assert record.eta_seconds == 0.0


def test_meter_without_metrics_reports_the_loss(clock: Clock) -> None:
    state = replace(make_state(), metrics=None)
    meter = Meter(state, 1, watch(state))
    step(meter, state, clock, [4.0], 2)
    assert meter.record(1, 1).metrics == {}


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), float("-inf")])
def test_means_skip_batches_with_non_finite_loss(clock: Clock, loss: float) -> None:
    state = make_state()
    meter = Meter(state, 3, watch(state))
    step(meter, state, clock, [8.0, 4.0, 6.0], 8)
    step(meter, state, clock, [loss, 8.0, 8.0], 8)
    step(meter, state, clock, [1.0, 1.0, 2.0], 2)
    record = meter.record(1, 3)
    assert record.loss == pytest.approx(9 / 10)
    assert record.metrics == {"top1": pytest.approx(5 / 10), "top2": pytest.approx(8 / 10)}
    assert record.images_per_second == pytest.approx(18 / 12)


def test_meter_without_finite_loss_has_no_mean(clock: Clock) -> None:
    state = make_state()
    meter = Meter(state, 3, watch(state))
    step(meter, state, clock, [float("nan"), 8.0, 8.0], 8)
    record = meter.record(1, 1)
    assert np.isnan([record.loss, *record.metrics.values()]).all()
    step(meter, state, clock, [4.0, 1.0, 1.0], 4)
    assert meter.record(1, 2).loss == 1.0


def test_meter_preview_changes_no_record(clock: Clock) -> None:
    records = []
    for looks in (False, True):
        state = make_state()
        meter = Meter(state, 3, watch(state))
        for sums in ([8.0, 4.0, 6.0], [float("nan"), 0.0, 0.0], [2.0, 1.0, 2.0]):
            step(meter, state, clock, sums, 8)
            if looks:
                meter.check(1)
        records.append(meter.record(1, 3))
    assert records[0] == records[1]


def test_too_many_bad_updates_end_the_run(clock: Clock) -> None:
    state = make_state()
    meter = Meter(state, 3, watch(state, limit=1))
    step(meter, state, clock, [float("nan"), 0.0, 0.0], 8)
    meter.check(1)
    step(meter, state, clock, [float("nan"), 0.0, 0.0], 8)
    with pytest.raises(
        UserError, match=r"update 2: 2 consecutive updates .* the first was update 1 \(epoch 1, batch 1\)"
    ):
        meter.check(1)


def test_meter_keeps_few_tensors_between_two_records(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK", 4)
    state = make_state()
    meter = Meter(state, 1, watch(state))
    for number in range(11):
        step(meter, state, clock, [float(number), 1.0, 1.0], 1)
        assert len(meter._sums) < 4
    assert meter.record(1, 11).loss == pytest.approx(5.0)


def test_adding_never_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    state = make_state()
    meter = Meter(state, 1, watch(state))

    def refuse(*_arguments: object) -> None:
        raise AssertionError("the host read the device")

    monkeypatch.setattr(paddle.Tensor, "numpy", refuse)
    monkeypatch.setattr(paddle.Tensor, "item", refuse)
    for each in MemoryLoader():
        meter.add(paddle.zeros([3]), each)
