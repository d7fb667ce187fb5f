"""A run with a time limit renews its plan after each update, and leaves time for its end."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recording import Notes
from small_net import MemoryLoader, make_state

from ppcls.data.loaders.batch import Batch
from ppcls.engine.core.hooks import StepHooks
from ppcls.engine.core.state import TrainState
from ppcls.engine.core.step import train_step
from ppcls.engine.evaluation.evaluate import EvalResult
from ppcls.engine.health.time_limit import PLANNED, STOP, TimeLimit
from ppcls.engine.loop import Run, fit
from ppcls.recipe.settings import Global


class Clock:
    """A time that only the test changes, and the slowdown by other programs."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slowdown = 1.0

    def advance(self, seconds: float) -> None:
        self.now += seconds


def make_limit(clock: Clock, seconds: float | None, evaluated: int = 0) -> TimeLimit:
    return TimeLimit(seconds, evaluated=evaluated, clock=lambda: clock.now, probe=lambda: clock.slowdown)


class Evaluator:
    """Evaluates in a given time."""

    batches = 1

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.loaders: dict[str, Any] = {}
        self._clock = clock
        self._seconds = seconds

    def __call__(self, *_: Any) -> EvalResult:
        self._clock.advance(self._seconds)
        return EvalResult(1.0, {"top1": 0.5}, 11, self._seconds)


def train(
    limit: TimeLimit, clock: Clock, seconds: Any, *, epochs: int = 10, evaluation: float = 0.0
) -> tuple[TrainState, list[float], list[str], Notes]:
    """Trains with 10 updates per epoch, and returns the positions of the schedule and the log.

    Args:
        seconds: Function that returns the seconds of an update, from its number.
    """
    state = make_state(loader=MemoryLoader(size=80))  # type: ignore[arg-type]
    said: list[str] = []
    positions: list[float] = []

    def step(state: TrainState, batch: Batch, hooks: StepHooks) -> Any:
        positions.append(state.progress.update + state.progress.schedule_shift)
        clock.advance(seconds(state.progress.update))
        return train_step(state, batch, hooks)

    notes = Notes(said)
    evaluator = Evaluator(clock, evaluation)
    fit(
        Run(
            state,
            Global(epochs=epochs, print_batch_step=100),
            notes,
            evaluator,
            notes,
            step=step,
            limit=limit,
        )
    )  # type: ignore[arg-type]
    return state, positions, said, notes


def test_a_run_that_is_in_time_keeps_its_plan() -> None:
    clock = Clock()
    state, positions, said, _ = train(make_limit(clock, 1000), clock, lambda _: 1.0)
    assert state.update == 100
    assert positions == list(range(100))
    assert not [line for line in said if "time_limit" in line]


def test_a_run_that_becomes_slower_renews_its_plan_and_ends_its_schedule() -> None:
    clock = Clock()
    limit = make_limit(clock, 130, evaluated=8)
    state, positions, said, notes = train(limit, clock, lambda update: 1.0 if update < 30 else 4.0)
    assert 45 <= state.update <= 53
    assert clock.now <= 130 - 3  # time for the report
    assert positions[:29] == pytest.approx(range(29))
    assert positions[-1] > 90  # of 100: the learning rate has almost reached its end
    assert sorted(positions) == positions
    assert any("only about" in line and "of 100 updates" in line for line in said)
    assert any(
        line.startswith(f"ended after {state.update} updates, in epoch {state.epoch} of 10") for line in said
    )
    assert notes.evaluations[-1].update == state.update
    assert notes.steps[-1].update == state.update
    assert state.step == 0  # a resumed run starts with the next epoch
    assert notes.saved[-1] == (state.update, ["latest", f"epoch_{state.epoch}"])


def test_the_first_epoch_can_end_too() -> None:
    clock = Clock()
    state, positions, _, notes = train(make_limit(clock, 20.5), clock, lambda _: 3.0, epochs=1)
    assert state.update == 5
    assert clock.now == 15
    assert positions[-1] > 7
    assert len(notes.evaluations) == 1


def test_a_run_that_becomes_faster_again_uses_all_updates() -> None:
    clock = Clock()
    limit = make_limit(clock, 160)
    state, positions, _, _ = train(limit, clock, lambda update: 5.0 if 20 <= update < 24 else 1.0)
    assert state.update == 100
    assert positions[30] > 30
    assert positions[-1] == pytest.approx(99, abs=0.1)


def test_remaining_time_in_the_log_is_at_most_that_of_the_limit() -> None:
    clock = Clock()
    _, _, _, notes = train(make_limit(clock, 1e-3), clock, lambda _: 1e-5)
    assert 0 <= notes.steps[0].eta_seconds <= 1e-3  # without the limit, 9 more epochs of real time


def test_slow_evaluations_count() -> None:
    clock = Clock()
    state, positions, _, notes = train(make_limit(clock, 100), clock, lambda _: 1.0, evaluation=15.0)
    assert clock.now <= 97
    assert state.update >= 30
    assert positions[-1] > 60
    assert notes.evaluations[-1].update == state.update


def test_other_programs_extend_the_reserve_for_the_end() -> None:
    clock = Clock()
    limit = make_limit(clock, 100)
    clock.advance(10)
    limit.begin()
    assert limit.end == pytest.approx(3)
    assert limit.for_report > 30
    clock.slowdown = 10.0
    clock.advance(60)
    limit.begin()
    assert limit.end > 25
    assert limit.for_report < 0  # no audit


def test_a_part_has_its_share_and_at_least_its_floor() -> None:
    clock = Clock()
    limit = make_limit(clock, 100)
    assert limit.begin_part(5.0, 0.1)() == pytest.approx(limit.for_training - 5)
    left = limit.begin_part(1000.0, 0.1)
    assert left() == pytest.approx(0.6 * limit.for_training)
    clock.advance(60)
    assert left() < 0
    clock.advance(35)
    assert limit.for_training < 0
    assert limit.begin_part(5.0, 0.1)() == pytest.approx(10)


def test_no_limit_leaves_infinite_time() -> None:
    limit = make_limit(Clock(), None)
    assert limit.left == limit.for_training == limit.spare == limit.begin_part(5.0, 0.1)() == math.inf
    assert limit.pace(8, 10, 5, 100, 95) == PLANNED
    assert not limit.reached


@given(st.lists(st.floats(0.01, 30), min_size=1, max_size=30), st.floats(1, 500), st.integers(0, 500))
def test_the_pace_is_valid_for_all_durations(durations: list[float], seconds: float, evaluated: int) -> None:
    clock = Clock()
    limit = make_limit(clock, seconds, evaluated)
    for duration in durations:
        clock.advance(duration)
        limit.measure(8)
        pace = limit.pace(8, 10, 10.5, 100, 40)
        assert 1 <= pace <= STOP
        assert (pace == STOP) == (limit.count_updates(8, 10) < 1)
