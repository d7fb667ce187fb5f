import subprocess
import sys

import pytest
from pydantic import ValidationError

from ppcls.config.sections.optimizer import DecoupledSpec
from ppcls.registry import OPTIMIZERS, SCHEDULES

CONSTANT = {"name": "Constant", "learning_rate": 0.1}


def problems(cls, fields):
    with pytest.raises(ValidationError) as caught:
        cls.model_validate(fields)
    return {
        ".".join(map(str, each["loc"])): each["msg"].removeprefix("Value error, ")
        for each in caught.value.errors()
    }


def test_paddleclas_resnet50():
    spec = OPTIMIZERS["Momentum"].model_validate(
        {
            "momentum": 0.9,
            "lr": {
                "name": "Piecewise",
                "learning_rate": 0.1,
                "decay_epochs": [30, 60, 90],
                "values": [0.1, 0.01, 0.001, 0.0001],
            },
            "regularizer": {"name": "L2", "coeff": 0.0001},
        }
    )
    assert spec.lr.values == (0.1, 0.01, 0.001, 0.0001)
    assert spec.lr.peak == 0.1
    assert spec.regularizer.coeff == 0.0001
    dumped = spec.model_dump(mode="json")
    assert OPTIMIZERS["Momentum"].model_validate(dumped) == spec


def test_paddleclas_adamw_clips_only_by_a_key_that_is_read():
    fields = {
        "beta1": 0.9,
        "beta2": 0.999,
        "epsilon": 1e-8,
        "weight_decay": 0.05,
        "no_weight_decay_name": "absolute_pos_embed relative_position_bias_table .bias norm",
        "one_dim_param_no_weight_decay": True,
        "lr": {
            "name": "Cosine",
            "learning_rate": 1e-3,
            "eta_min": 1e-5,
            "warmup_epoch": 20,
            "warmup_start_lr": 1e-6,
        },
    }
    assert OPTIMIZERS["AdamW"].model_validate({**fields, "clip_norm": 5.0}).clip_norm == 5.0
    assert OPTIMIZERS["AdamW"].model_validate({**fields, "clip_norm": None}).clip_norm is None
    ignored = OPTIMIZERS["AdamW"].model_validate({**fields, "clip_grad": 5.0})
    assert ignored.clip_norm is None
    assert ignored.ignored_keys == ("clip_grad",)


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_bounds(name):
    cls = OPTIMIZERS[name]
    assert "lr" in problems(cls, {})
    assert problems(cls, {"lr": CONSTANT, "clip_norm": 0}) == {"clip_norm": "expected a number > 0, got 0"}
    both = problems(cls, {"lr": CONSTANT, "clip_norm": 1, "clip_value": 1})
    assert both == {"": "clip_norm and clip_value exclude each other; give one of them"}
    if issubclass(cls, DecoupledSpec):
        told = problems(cls, {"lr": CONSTANT, "regularizer": {"name": "L2", "coeff": 0.1}})
        assert told == {"regularizer": "unknown key; this optimizer decays by weight_decay"}
        told = problems(cls, {"lr": CONSTANT, "learning_rate": 0.1})
        assert told == {"learning_rate": "unknown key; it is part of the schedule: lr.learning_rate"}
    else:
        bad = problems(cls, {"lr": CONSTANT, "regularizer": {"name": "L1", "coeff": 0.1}})
        assert list(bad) == ["regularizer.name"]
        assert list(problems(cls, {"lr": CONSTANT, "weight_decay": -0.1})) == ["weight_decay"]


RULE = {"pattern": "fc.*", "lr_mult": 10}


@pytest.mark.parametrize(
    ("fields", "where", "text"),
    [
        ({"freeze": []}, "freeze", "expected a pattern such as 'blocks.*', or a list of them, got []"),
        ({"freeze": ["a.*", ""]}, "freeze", "expected a pattern such as 'blocks.*', got ''"),
        ({"train_only": 3}, "train_only", "expected a pattern such as 'blocks.*', or a list of them, got 3"),
        (
            {"freeze": "a.*", "train_only": "b.*"},
            "",
            "freeze and train_only exclude each other; give one of them",
        ),
        (
            {"by_name": [{"pattern": "fc.*"}]},
            "by_name.0",
            "expected lr_mult or decay_mult, for without them the rule changes nothing",
        ),
        ({"by_name": [{"lr_mult": 2}]}, "by_name.0.pattern", "missing; it has no default"),
        ({"by_name": [{**RULE, "lr_mult": 0}]}, "by_name.0.lr_mult", "expected a number > 0, got 0"),
        ({"by_name": [{**RULE, "lr_mul": 1}]}, "by_name.0.lr_mul", "unknown key; did you mean 'lr_mult'?"),
        (
            {"by_name": [RULE, {"pattern": "*.bias", "decay_mult": 0}]},
            "by_name.1.decay_mult",
            "there is no weight decay to multiply; remove it, or give the optimizer one",
        ),
    ],
)
def test_rules_by_name_explain_what_is_wrong(fields, where, text):
    assert problems(OPTIMIZERS["SGD"], {"lr": CONSTANT, **fields}) == {where: text}


def test_rules_by_name_are_read_back_as_written():
    fields = {"freeze": "blocks.[01].*", "by_name": [RULE, {"pattern": ["*.bias"], "decay_mult": 0}]}
    spec = OPTIMIZERS["AdamW"].model_validate({"lr": CONSTANT, "layerwise_decay": 0.75, **fields})
    assert spec.freeze == ("blocks.[01].*",)
    assert OPTIMIZERS["AdamW"].model_validate(spec.model_dump(mode="json")) == spec
    bad = problems(OPTIMIZERS["AdamW"], {"lr": CONSTANT, "layerwise_decay": 1.5})
    assert bad == {"layerwise_decay": "expected a number > 0 and <= 1, got 1.5"}


@pytest.mark.parametrize(
    ("name", "fields", "where", "text"),
    [
        ("Constant", {}, "learning_rate", "missing; it has no default"),
        ("Constant", {"learning_rate": 0}, "learning_rate", "expected a number > 0, got 0"),
        (
            "Constant",
            {"learning_rate": 0.1, "warmup_epoch": 5, "warmup_start_lr": 0.2},
            "",
            "warmup_start_lr (0.2) must not exceed the learning rate that the warm-up leads to (0.1)",
        ),
        (
            "Piecewise",
            {"decay_epochs": [30, 60], "values": [0.1, 0.01]},
            "",
            "values must be one more than decay_epochs, but there are 2 values for 2 decay_epochs",
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
            "learning_rate (0.2) differs from values[0] (0.1), which is what counts; "
            "change both, or leave learning_rate out",
        ),
        (
            "Piecewise",
            {"decay_epochs": [3], "values": [0.1, 0.01], "warmup_epoch": 5},
            "",
            "decay_epochs count from the start of the run, warm-up included, "
            "but 3 lies within the warm-up of 5 epochs",
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
            "exp_gamma is for mode: exp_range, and mode is triangular",
        ),
        (
            "Cyclic",
            {"base_learning_rate": 0.1, "max_learning_rate": 0.2, "step_size_up": 5, "scale_fn": "x"},
            "scale_fn",
            "unknown key; mode says how cycles become lower",
        ),
        (
            "OneCycleLR",
            {"max_learning_rate": 0.1, "warmup_epoch": 5},
            "",
            "OneCycleLR rises by itself, for phase_pct of the run; remove warmup_epoch",
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
def test_schedules_explain_what_is_wrong(name, fields, where, text):
    assert problems(SCHEDULES[name], fields) == {where: text}


def test_a_schedule_longer_than_the_run_is_refused():
    spec = SCHEDULES["Cosine"](learning_rate=0.1, warmup_epoch=5)
    spec.check_epochs(6)
    SCHEDULES["Cosine"](learning_rate=0.1).check_epochs(0)
    with pytest.raises(ValueError, match=r"warmup_epoch \(5\) must be less than"):
        spec.check_epochs(5)


def test_the_config_never_imports_paddle():
    modules = (
        "ppcls.config.sections.optimizer, ppcls.config.sections.schedule, ppcls.config.sections.objective"
    )
    code = f"import sys, {modules}; assert 'paddle' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
