"""Optimizers and rules by parameter name."""

import pytest
from specs import section_problems

from ppcls.config.sections.optimizer import DecoupledSpec
from ppcls.registry import OPTIMIZERS

CONSTANT = {"name": "Constant", "learning_rate": 0.1}


def test_momentum_of_paddleclas_survives_a_dump():
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


def test_adamw_clip_grad_is_ignored_and_clip_norm_used():
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
def test_optimizer_invalid_keys_are_reported(name):
    cls = OPTIMIZERS[name]
    assert "lr" in section_problems(cls, {})
    assert section_problems(cls, {"lr": CONSTANT, "clip_norm": 0}) == {
        "clip_norm": "expected a number > 0, got 0"
    }
    both = section_problems(cls, {"lr": CONSTANT, "clip_norm": 1, "clip_value": 1})
    assert both == {"": "clip_norm and clip_value exclude each other; set only one of them"}
    if issubclass(cls, DecoupledSpec):
        found = section_problems(cls, {"lr": CONSTANT, "regularizer": {"name": "L2", "coeff": 0.1}})
        assert found == {"regularizer": "unknown key; write weight_decay"}
        found = section_problems(cls, {"lr": CONSTANT, "learning_rate": 0.1})
        assert found == {"learning_rate": "unknown key; set lr.learning_rate, a key of the schedule"}
    else:
        bad = section_problems(cls, {"lr": CONSTANT, "regularizer": {"name": "L1", "coeff": 0.1}})
        assert list(bad) == ["regularizer.name"]
        assert list(section_problems(cls, {"lr": CONSTANT, "weight_decay": -0.1})) == ["weight_decay"]


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
            "freeze and train_only exclude each other; set only one of them",
        ),
        (
            {"by_name": [{"pattern": "fc.*"}]},
            "by_name.0",
            "expected lr_mult or decay_mult; without them the rule has no effect",
        ),
        ({"by_name": [{"lr_mult": 2}]}, "by_name.0.pattern", "missing; it has no default"),
        ({"by_name": [{**RULE, "lr_mult": 0}]}, "by_name.0.lr_mult", "expected a number > 0, got 0"),
        ({"by_name": [{**RULE, "lr_mul": 1}]}, "by_name.0.lr_mul", "unknown key; did you mean 'lr_mult'?"),
        (
            {"by_name": [RULE, {"pattern": "*.bias", "decay_mult": 0}]},
            "by_name.1.decay_mult",
            "the optimizer has no weight decay; remove this key, or set a weight decay",
        ),
    ],
)
def test_name_rules_error_names_key_and_fix(fields, where, text):
    assert section_problems(OPTIMIZERS["SGD"], {"lr": CONSTANT, **fields}) == {where: text}


def test_name_rules_survive_a_dump():
    fields = {"freeze": "blocks.[01].*", "by_name": [RULE, {"pattern": ["*.bias"], "decay_mult": 0}]}
    spec = OPTIMIZERS["AdamW"].model_validate({"lr": CONSTANT, "layerwise_decay": 0.75, **fields})
    assert spec.freeze == ("blocks.[01].*",)
    assert OPTIMIZERS["AdamW"].model_validate(spec.model_dump(mode="json")) == spec
    bad = section_problems(OPTIMIZERS["AdamW"], {"lr": CONSTANT, "layerwise_decay": 1.5})
    assert bad == {"layerwise_decay": "expected a number > 0 and <= 1, got 1.5"}
