"""Learning-rate schedules."""

import pytest
from specs import section_problems

from ppcls.registry import SCHEDULES


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
            "but 3 is within the warm-up of 5 epochs",
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
