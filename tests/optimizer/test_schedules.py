import math
from itertools import pairwise

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from specs import section_problems

from ppcls.optimizer import schedules as specs
from ppcls.registry import SCHEDULES

quick = settings(deadline=None, max_examples=60)
rates = st.floats(1e-4, 10.0)
shares = st.floats(0.0, 1.0)


@st.composite
def runs(draw, kinds=("Constant", "Piecewise", "MultiStepDecay", "Cosine", "Linear", "Polynomial")):
    """A schedule of one of ``kinds`` that never rises after the warm-up, epochs, and updates per epoch."""
    epochs = draw(st.integers(2, 12))
    updates = draw(st.integers(1, 9))
    warmup = draw(st.integers(0, epochs - 1))
    kind, peak = draw(st.sampled_from(kinds)), draw(rates)
    fields = {
        "warmup_epoch": warmup,
        "warmup_start_lr": peak * draw(shares),
        "by_epoch": draw(st.booleans()),
    }
    count_from = draw(st.sampled_from(["start_of_run", "end_of_warmup"]))
    first = 1 if count_from == "end_of_warmup" else max(warmup, 1)
    marks = sorted(draw(st.sets(st.integers(first, epochs + 3), min_size=1, max_size=4)))
    if kind == "Piecewise":
        below = draw(st.lists(shares, min_size=len(marks), max_size=len(marks)))
        fields |= {"count_from": count_from, "decay_epochs": marks}
        fields |= {"values": [peak, *sorted((peak * s for s in below), reverse=True)]}
    else:
        fields["learning_rate"] = peak
    if kind == "MultiStepDecay":
        fields |= {"count_from": count_from, "milestones": marks, "gamma": draw(st.floats(0.01, 1.0))}
    if kind == "Cosine":
        fields["eta_min"] = peak * draw(shares)
    if kind in ("Linear", "Polynomial"):
        fields |= {"end_lr": peak * draw(shares), "power": draw(st.floats(0.5, 3.0))}
    return getattr(specs, kind).model_validate(fields), epochs, updates


def boundaries(spec):
    """Returns the epochs at which the rate changes, counted from the start of the run."""
    marks = getattr(spec, "milestones", getattr(spec, "decay_epochs", ()))
    offset = spec.warmup_epoch if getattr(spec, "count_from", "") == "end_of_warmup" else 0
    return [mark + round(offset) for mark in marks]


def curve(spec, epochs, updates, extra=0):
    rate = spec.build(epochs, updates)
    return [rate(i) for i in range(epochs * updates + extra)]


@quick
@given(runs())
def test_schedule_rises_to_peak_then_never_rises(run):
    spec, _, updates = run
    values = curve(*run, extra=3 * updates)
    warm = round(spec.warmup_epoch) * updates
    slack = 1e-12 * spec.peak
    assert all(a <= b + slack for a, b in pairwise(values[:warm]))
    assert all(a >= b - slack for a, b in pairwise(values[warm:]))
    assert all(0 <= value <= spec.peak + slack for value in values)
    floor = getattr(spec, "eta_min", getattr(spec, "end_lr", 0.0))
    assert all(value >= floor - slack for value in values[warm:])


@quick
@given(runs())
def test_schedule_is_continuous_at_end_of_warmup(run):
    spec, _, updates = run
    values, warm = curve(*run), round(spec.warmup_epoch) * updates
    if spec.warmup_epoch not in boundaries(spec):
        assert values[warm] == pytest.approx(spec.peak)
    if warm:
        assert values[0] == spec.warmup_start_lr
        steps = spec.warmup_epoch if spec.by_epoch else warm
        rise = (spec.peak - spec.warmup_start_lr) / steps
        assert values[warm - 1] + rise == pytest.approx(spec.peak)


@quick
@given(runs())
def test_schedule_by_epoch_is_constant_within_epoch(run):
    spec, epochs, updates = run
    held = curve(spec.model_copy(update={"by_epoch": True}), epochs, updates)
    smooth = curve(spec.model_copy(update={"by_epoch": False}), epochs, updates)
    for epoch in range(epochs):
        assert set(held[epoch * updates : (epoch + 1) * updates]) == {smooth[epoch * updates]}


@quick
@given(runs())
def test_schedule_depends_on_epochs_only(run):
    spec, epochs, updates = run
    assert curve(spec, epochs, 2 * updates)[::2] == curve(spec, epochs, updates)


@quick
@given(runs(kinds=("Cosine", "Linear", "Polynomial")))
def test_schedule_reaches_last_rate_at_end_of_run_and_keeps_it(run):
    spec, _, _ = run
    end = spec.eta_min if spec.kind == "Cosine" else spec.end_lr
    assert curve(*run, extra=2)[-2:] == pytest.approx([end, end])


def paddle_curve(scheduler, length):
    values = []
    for _ in range(length):
        values.append(scheduler())
        scheduler.step()
    return values


@quick
@given(runs())
def test_schedule_equals_paddle(run):
    spec, epochs, updates = run
    spec = spec.model_copy(update={"by_epoch": False})
    warm, lr = round(spec.warmup_epoch) * updates, paddle.optimizer.lr
    length = epochs * updates - warm
    # Paddle's schedulers count from the end of the warm-up, and so do its milestones.
    marks = [m * updates - warm for m in boundaries(spec)]
    after = {
        "Constant": lambda: lr.LambdaDecay(spec.peak, lambda _: 1.0),
        "Piecewise": lambda: lr.PiecewiseDecay(marks, list(spec.values)),
        "MultiStepDecay": lambda: (
            lr.LambdaDecay(spec.peak, lambda i: spec.gamma ** sum(m <= i for m in marks))
            if 0 in marks
            else lr.MultiStepDecay(spec.peak, marks, spec.gamma)
        ),
        "Cosine": lambda: lr.CosineAnnealingDecay(spec.peak, length, spec.eta_min),
        "Linear": lambda: lr.PolynomialDecay(spec.peak, length, spec.end_lr, spec.power),
        "Polynomial": lambda: lr.PolynomialDecay(spec.peak, length, spec.end_lr, spec.power),
    }[spec.kind]()
    if warm and spec.warmup_start_lr < spec.peak:
        after = lr.LinearWarmup(after, warm, spec.warmup_start_lr, spec.peak)
        ours = curve(spec, epochs, updates)
    else:
        ours = curve(spec, epochs, updates)[warm:]
    assert ours == pytest.approx(paddle_curve(after, len(ours)), rel=1e-6, abs=1e-9)


def test_schedule_of_paddleclas_resnet50():
    spec = specs.Piecewise(decay_epochs=(30, 60, 90), values=(0.1, 0.01, 0.001, 0.0001), learning_rate=0.1)
    rate = spec.build(120, 5005)
    at = {
        0: 0.1,
        30 * 5005 - 1: 0.1,
        30 * 5005: 0.01,
        60 * 5005 - 1: 0.01,
        60 * 5005: 0.001,
        90 * 5005: 0.0001,
    }
    assert {update: rate(update) for update in at} == at


def test_milestones_count_from_start_of_run():
    spec = specs.MultiStepDecay(learning_rate=1.0, milestones=(4,), gamma=0.5, warmup_epoch=2)
    assert curve(spec, 6, 2) == pytest.approx([0, 0.25, 0.5, 0.75, 1, 1, 1, 1, 0.5, 0.5, 0.5, 0.5])


@pytest.mark.parametrize("warmup", [0.1, 0.7, 1.5, 2.3, 2.4])
@pytest.mark.parametrize("updates", [5, 10, 49, 5005])
def test_milestones_count_from_the_end_of_any_warmup(warmup, updates):
    fields = {"learning_rate": 1.0, "gamma": 0.5, "warmup_epoch": warmup, "count_from": "end_of_warmup"}
    rate = specs.MultiStepDecay(milestones=(3, 30), **fields).build(60, updates)
    for number, mark in enumerate((3, 30)):
        change = math.ceil((mark + warmup) * updates - 1e-6)
        assert (rate(change - 1), rate(change)) == (0.5**number, 0.5 ** (number + 1))


def test_warmup_ends_within_epoch():
    spec = specs.Constant(learning_rate=1.0, warmup_epoch=0.5)
    assert curve(spec, 2, 4) == [0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]


def test_cosine_at_half_time_has_the_mean_rate():
    rate = specs.Cosine(learning_rate=0.5, eta_min=0.1, warmup_epoch=2).build(10, 7)
    assert rate(6 * 7) == pytest.approx(0.3)
    assert rate(2 * 7 + 14) == pytest.approx(0.1 + 0.2 * (1 + math.cos(math.pi / 4)))


def test_warmup_as_long_as_run_ends_after_half_of_it():
    assert curve(specs.Constant(learning_rate=1.0, warmup_epoch=5), 1, 4) == [0.0, 0.5, 1.0, 1.0]


@pytest.mark.parametrize("by_epoch", [False, True])
def test_step_decay_counts_from_end_of_warmup(by_epoch):
    spec = specs.Step(learning_rate=1.0, step_size=0.8, gamma=0.5, warmup_epoch=1, by_epoch=by_epoch)
    epochs, updates = 6, 5
    time = np.arange(epochs * updates) / updates
    if by_epoch:
        time = np.floor(time)
    want = np.where(time < 1, time, 0.5 ** np.floor(np.round((time - 1) / 0.8, 9)))
    assert curve(spec, epochs, updates) == pytest.approx(want)


cycles = st.builds(
    lambda base, extra, up, down, mode, gamma, warmup, start: specs.Cyclic(
        base_learning_rate=base,
        max_learning_rate=base + extra,
        step_size_up=up,
        step_size_down=down,
        mode=mode,
        exp_gamma=gamma if mode == "exp_range" else 1.0,
        warmup_epoch=warmup,
        warmup_start_lr=base * start,
    ),
    rates,
    rates,
    st.integers(1, 9),
    st.none() | st.integers(1, 9),
    st.sampled_from(["triangular", "triangular2", "exp_range"]),
    st.floats(0.5, 1.0),
    st.integers(0, 2),
    shares,
)


@quick
@given(cycles, st.integers(3, 8), st.integers(1, 9))
def test_cyclic_equals_paddle_and_paper(spec, epochs, updates):
    length, warm = epochs * updates, int(spec.warmup_epoch) * updates
    theirs = paddle.optimizer.lr.CyclicLR(
        spec.base_learning_rate,
        spec.max_learning_rate,
        spec.step_size_up,
        spec.step_size_down,
        mode=spec.mode,
        exp_gamma=spec.exp_gamma,
    )
    ours = curve(spec, epochs, updates)[warm:]
    assert ours == pytest.approx(paddle_curve(theirs, length - warm), rel=1e-6, abs=1e-9)
    at = np.arange(length - warm)
    up, size = spec.step_size_up, spec.step_size_up + (spec.step_size_down or spec.step_size_up)
    place, cycle = at % size, at // size
    height = np.interp(place, [0, up, size], [0, 1, 0])
    height = height * {"triangular": 1, "triangular2": 0.5**cycle, "exp_range": spec.exp_gamma**at}[spec.mode]
    span = spec.max_learning_rate - spec.base_learning_rate
    assert ours == pytest.approx(spec.base_learning_rate + span * height)


def test_cyclic_by_epoch_changes_once_per_epoch():
    fields = {"base_learning_rate": 0.1, "max_learning_rate": 0.5, "step_size_up": 2, "warmup_epoch": 1}
    spec = specs.Cyclic(**fields, by_epoch=True)
    assert curve(spec, 6, 2)[::2] == pytest.approx([0, 0.1, 0.3, 0.5, 0.3, 0.1])


@quick
@given(
    rates,
    st.floats(1.0, 100.0),
    shares,
    st.floats(0.05, 0.45),
    st.sampled_from(["cos", "linear"]),
    st.booleans(),
    st.integers(1, 6),
    st.integers(1, 9),
)
def test_one_cycle_follows_its_formula(top, divide, end, share, how, three, epochs, updates):
    spec = specs.OneCycleLR(
        max_learning_rate=top,
        divide_factor=divide,
        end_learning_rate=end * top / divide,
        phase_pct=share,
        anneal_strategy=how,
        three_phase=three,
    )
    first, last, total = top / divide, end * top / divide, epochs * updates
    marks, values = ([0, share, 1], [first, top, last])
    if three:
        marks, values = [0, share, 2 * share, 1], [first, top, first, last]
    want = []
    for at in np.arange(total + 1) / total:
        piece = min(np.searchsorted(marks, at, side="right"), len(marks) - 1)
        within = (at - marks[piece - 1]) / (marks[piece] - marks[piece - 1])
        if how == "cos":
            within = 0.5 - 0.5 * np.cos(np.pi * within)
        want.append(values[piece - 1] + (values[piece] - values[piece - 1]) * within)
    assert curve(spec, epochs, updates, extra=1) == pytest.approx(want, rel=1e-6, abs=1e-9)


def test_one_cycle_is_close_to_paddle():
    """Paddle's run ends with the last update, ours after it."""
    theirs = paddle.optimizer.lr.OneCycleLR(0.5, 5000, end_learning_rate=1e-4)
    spec = specs.OneCycleLR(max_learning_rate=0.5, end_learning_rate=1e-4)
    assert curve(spec, 10, 500) == pytest.approx(paddle_curve(theirs, 5000), abs=1e-3)


def test_reduce_on_plateau_is_constant_after_warmup():
    spec = specs.ReduceOnPlateau(learning_rate=0.4, warmup_epoch=1)
    assert curve(spec, 3, 2) == pytest.approx([0, 0.2, 0.4, 0.4, 0.4, 0.4])


@pytest.mark.parametrize(
    ("name", "fields", "where", "text"),
    [
        ("Constant", {}, "learning_rate", "missing; it has no default"),
        ("Constant", {"learning_rate": 0}, "learning_rate", "expected a number > 0, got 0"),
        (
            "Constant",
            {"learning_rate": 0.1, "warmup_epoch": 5, "warmup_start_lr": 0.2},
            "",
            "warmup_start_lr (0.2) must not exceed the learning rate at the end of the warm-up (0.1)",
        ),
        (
            "Piecewise",
            {"decay_epochs": [30, 60], "values": [0.1, 0.01]},
            "",
            "expected one more value than decay_epochs, but there are 2 values for 2 decay_epochs",
        ),
        (
            "Piecewise",
            {"decay_epochs": [30, 30], "values": [0.1, 0.01, 0.001]},
            "",
            "decay_epochs must increase, but 30 follows 30",
        ),
        (
            "Piecewise",
            {"decay_epochs": [30], "values": [0.1, 0.01], "learning_rate": 0.2},
            "",
            "learning_rate (0.2) differs from values[0] (0.1), which is used; "
            "change both, or remove learning_rate",
        ),
        (
            "Piecewise",
            {"decay_epochs": [3], "values": [0.1, 0.01], "warmup_epoch": 5},
            "",
            "decay_epochs count from the start of the run, including the warm-up, "
            "but 3 is within the warm-up of 5 epochs; change it, or set count_from: end_of_warmup",
        ),
        (
            "MultiStepDecay",
            {"learning_rate": 0.1, "milestones": [60, 30]},
            "",
            "milestones must increase, but 30 follows 60",
        ),
        (
            "Cosine",
            {"learning_rate": 0.1, "eta_min": 0.2},
            "",
            "eta_min (0.2) must not exceed learning_rate (0.1)",
        ),
        ("Step", {"learning_rate": 0.1}, "step_size", "missing; it has no default"),
        (
            "Cyclic",
            {"base_learning_rate": 0.2, "max_learning_rate": 0.1, "step_size_up": 5},
            "",
            "base_learning_rate (0.2) must not exceed max_learning_rate (0.1)",
        ),
        (
            "Cyclic",
            {"base_learning_rate": 0.1, "max_learning_rate": 0.2, "step_size_up": 5, "exp_gamma": 0.9},
            "",
            "exp_gamma needs mode: exp_range, but mode is triangular",
        ),
        (
            "Cyclic",
            {"base_learning_rate": 0.1, "max_learning_rate": 0.2, "step_size_up": 5, "scale_fn": "x"},
            "scale_fn",
            "unknown key; mode sets how the height of cycles changes",
        ),
        (
            "OneCycleLR",
            {"max_learning_rate": 0.1, "warmup_epoch": 5},
            "",
            "OneCycleLR has its own warm-up, of length phase_pct; remove warmup_epoch",
        ),
        (
            "OneCycleLR",
            {"max_learning_rate": 0.1, "end_learning_rate": 0.01},
            "",
            "end_learning_rate (0.01) must not exceed the first rate, "
            "max_learning_rate / divide_factor (0.004)",
        ),
        (
            "OneCycleLR",
            {"max_learning_rate": 0.1, "three_phase": True, "phase_pct": 0.6},
            "",
            "phase_pct must be less than 0.5 for three phases, got 0.6",
        ),
        (
            "ReduceOnPlateau",
            {"learning_rate": 0.1, "min_lr": 0.2},
            "",
            "min_lr (0.2) must not exceed learning_rate (0.1)",
        ),
        (
            "ReduceOnPlateau",
            {"learning_rate": 0.1, "factor": 1},
            "factor",
            "expected a number > 0 and < 1, got 1",
        ),
        (
            "Linear",
            {"learning_rate": 0.1, "end_lr": 0.2},
            "",
            "end_lr (0.2) must not exceed learning_rate (0.1)",
        ),
    ],
)
def test_schedule_error_names_key_and_fix(name, fields, where, text):
    assert section_problems(SCHEDULES[name], fields) == {where: text}


@pytest.mark.parametrize(("epochs", "warmup"), [(6, 5), (5, 2.5), (1, 0.5)])
def test_schedule_warmup_as_long_as_the_run_is_half_of_it(epochs, warmup):
    assert SCHEDULES["Cosine"](learning_rate=0.1, warmup_epoch=5).warmup_within(epochs) == warmup
    assert SCHEDULES["Cosine"](learning_rate=0.1).warmup_within(epochs) == 0
