"""ReduceOnPlateau: Paddle's rule, resuming, and evaluations during the warm-up."""

from __future__ import annotations

import json
import math

import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppcls.optimizer.plateau import Plateau
from ppcls.optimizer.schedules import ReduceOnPlateau

quick = settings(deadline=None, max_examples=60)
SPECS = st.builds(
    ReduceOnPlateau,
    learning_rate=st.just(0.5),
    mode=st.sampled_from(["min", "max"]),
    factor=st.sampled_from([0.1, 0.5, 0.9]),
    patience=st.integers(0, 3),
    threshold=st.sampled_from([0.0, 0.1]),
    threshold_mode=st.sampled_from(["rel", "abs"]),
    cooldown=st.integers(0, 2),
    min_lr=st.sampled_from([0.0, 0.01, 0.3]),
    epsilon=st.sampled_from([0.0, 1e-8, 0.1]),
)
VALUES = st.lists(st.integers(0, 6).map(lambda n: n / 4), min_size=1, max_size=30)


def rates(plateau: Plateau, spec: ReduceOnPlateau, values: list[float]) -> list[float]:
    schedule = plateau.applied(spec.build(100, 1))
    found = []
    for value in values:
        # the value that is not compared has no effect
        loss, metric = (value, math.nan) if spec.mode == "min" else (math.nan, value)
        plateau.see(loss, metric, epoch=1)
        found.append(schedule(7))
    return found


@quick
@given(SPECS, VALUES)
def test_plateau_equals_paddle(spec: ReduceOnPlateau, values: list[float]) -> None:
    keys = ("mode", "factor", "patience", "threshold", "threshold_mode", "cooldown", "min_lr", "epsilon")
    theirs = paddle.optimizer.lr.ReduceOnPlateau(0.5, **{key: getattr(spec, key) for key in keys})
    want = []
    for value in values:
        theirs.step(value)
        want.append(theirs())
    assert rates(Plateau(spec, 0), spec, values) == pytest.approx(want)


@quick
@given(SPECS, VALUES, VALUES)
def test_plateau_resumes_from_its_state(
    spec: ReduceOnPlateau, before: list[float], after: list[float]
) -> None:
    first, second = Plateau(spec, 0), Plateau(spec, 0)
    rates(first, spec, before)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert rates(second, spec, after) == rates(first, spec, after)
    assert second.state_dict() == first.state_dict()


def test_plateau_waits_as_long_after_each_change() -> None:
    spec = ReduceOnPlateau(learning_rate=0.5, factor=0.5, patience=1, cooldown=0)
    assert rates(Plateau(spec, 0), spec, [1.0] * 7) == [0.5, 0.5, 0.25, 0.25, 0.125, 0.125, 0.0625]


def test_plateau_ignores_evaluations_of_warmup() -> None:
    plateau = ReduceOnPlateau(learning_rate=0.5, warmup_epoch=2, patience=0).build_plateau(9, "top1")
    assert [plateau.see(1.0, 0.0, epoch) for epoch in (1, 1, 1)] == [None] * 3
    assert plateau.see(1.0, 0.0, epoch=2) is None
    assert plateau.see(1.0, 0.0, epoch=3) == (
        "ReduceOnPlateau: 1 evaluation without a better loss than 1.0: learning rate x 0.1, now 0.1 x the "
        "config's value"
    )


@pytest.mark.parametrize("epochs", [1, 2, 3, 4, 5])
def test_plateau_lowers_the_rate_in_a_run_as_short_as_the_warmup(epochs: int) -> None:
    """The warm-up is then half of the run, so evaluations in its second half must count."""
    spec = ReduceOnPlateau(learning_rate=0.5, factor=0.5, warmup_epoch=5, patience=0)
    plateau = spec.build_plateau(epochs, "top1")
    notes = [plateau.see(1.0, 0.0, epoch) for epoch in range(1, epochs + 1) for _ in range(2)]
    ignored = 2 * (math.ceil(epochs / 2) - 1)
    assert notes[: ignored + 1] == [None] * (ignored + 1)
    assert all(note is not None for note in notes[ignored + 1 :])


def test_plateau_non_finite_value_is_no_improvement() -> None:
    plateau = Plateau(ReduceOnPlateau(learning_rate=0.5, patience=1, mode="max"), 0)
    assert plateau.see(0.0, math.nan, 1) is None
    assert plateau.see(0.0, 0.25, 1) is None
    assert plateau.see(0.0, math.inf, 1) is None
    note = plateau.see(0.0, math.nan, 1)
    assert note is not None
    assert "better metric than 0.25" in note


@pytest.mark.parametrize(
    "change",
    [{"share": 2.0}, {"share": "a"}, {"best": math.nan}, {"best": []}, {"bad": -1}, {"cooldown": None}],
)
def test_plateau_rejects_damaged_state(change: dict[str, object]) -> None:
    plateau = Plateau(ReduceOnPlateau(learning_rate=0.5), 0)
    with pytest.raises((KeyError, TypeError, ValueError)):
        plateau.load_state_dict({**plateau.state_dict(), **change})
    with pytest.raises(ValueError, match=r"expected share from 0 to 1, .*, got 3\.0, 0, 0 and None"):
        plateau.load_state_dict({**plateau.state_dict(), "share": 3.0})
    with pytest.raises(KeyError):
        plateau.load_state_dict({})
