from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ppcls.report.record import EvalRecord, StepRecord
from ppcls.report.series import MOST, charts, describe_gaps, thin

from .conftest import EVALUATION, STEP

Run = Callable[[int], list[StepRecord | EvalRecord]]


@given(st.lists(st.floats(-1e6, 1e6), max_size=200), st.integers(3, 50))
def test_thinned_curves_keep_their_order_and_their_spikes(values: list[float], most: int) -> None:
    points = [(float(place), value) for place, value in enumerate(values)]
    x, y = thin(points, most)
    assert len(x) == len(y) <= max(most, 0)
    assert x == sorted(set(x))
    assert all(values[int(place)] == value for place, value in zip(x, y, strict=True))
    if values:
        assert (min(y), max(y)) == (min(values), max(values))
    if len(values) <= most:
        assert y == values


@given(st.lists(st.floats(-1e6, 1e6) | st.just(math.nan), min_size=1, max_size=200), st.integers(3, 50))
def test_thinned_curves_keep_gaps_too(values: list[float], most: int) -> None:
    x, y = thin([(float(place), value) for place, value in enumerate(values)], most)
    assert len(x) == len(y) <= most
    np.testing.assert_array_equal([values[int(place)] for place in x], y)
    assert np.isnan(y).any() == np.isnan(values).any()
    if not np.isnan(values).all():
        assert (np.nanmin(y), np.nanmax(y)) == (np.nanmin(values), np.nanmax(values))


def test_every_measure_has_its_chart(run: Run) -> None:
    made = {each.title: {curve.label: curve for curve in each.curves} for each in charts(run(2))}
    assert list(made) == ["Loss", "top1", "top5", "Learning rate", "Throughput", "Waiting for data"]
    assert made["Loss"]["train"].x == [0.5, 1.0, 1.5, 2.0]
    assert made["Loss"]["train"].y == [1 / 45, 1 / 90, 1 / 135, 1 / 180]
    assert made["Loss"]["eval"].x == [1.0, 2.0]
    assert made["Loss"]["eval"].dots
    assert list(made["top5"]) == ["eval"], "training counts no top5"
    assert made["Waiting for data"]["% of the time"].y == [3.0, 3.0, 3.0, 3.0]


def test_what_is_not_finite_has_no_point() -> None:
    nan = replace(STEP, loss=math.nan, metrics={"top1": math.inf})
    made = charts([nan, replace(EVALUATION, loss=math.inf, metrics={})])
    assert [each.title for each in made] == ["Learning rate", "Throughput", "Waiting for data"]
    assert charts([]) == []


def test_a_loss_that_is_not_finite_is_a_gap() -> None:
    nan = replace(STEP, loss=math.nan)
    at = [replace(each, step=step) for step, each in ((9, STEP), (18, nan), (27, STEP), (36, nan))]
    loss = charts(at)[0].curves[0]
    assert (loss.x, loss.y) == ([2.1, 2.2, 2.3, 2.4], [STEP.loss, None, STEP.loss, None])
    assert describe_gaps(at) == "Gaps: no finite loss in 2 of 4 training records."
    infinite = [*at, EVALUATION, replace(EVALUATION, loss=math.inf)]
    assert describe_gaps(infinite).endswith(" in 2 of 4 training records and 1 of 2 evaluations.")
    assert describe_gaps([STEP, EVALUATION]) == describe_gaps([]) == ""


def test_a_long_run_has_no_larger_charts() -> None:
    records = [
        replace(STEP, epoch=1 + place // 90, step=1 + place % 90, loss=100.0 if place == 777 else 1.0)
        for place in range(3 * MOST)
    ]
    loss = charts(records)[0].curves[0]
    assert len(loss.x) <= MOST
    assert max(loss.y) == 100.0
