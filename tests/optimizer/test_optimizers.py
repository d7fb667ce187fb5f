"""Optimizers, their keys, and the rules by parameter name."""

from pathlib import Path

import numpy as np
import paddle
import pytest
from paddle import nn
from paths import ROOT
from quickstart import problems
from specs import section_problems

from ppcls.optimizer.base import CoupledOptimizer, DecoupledOptimizer
from ppcls.optimizer.build import build_optimizer
from ppcls.recipe.compat import config_warnings
from ppcls.recipe.load import load_config
from ppcls.registry import OPTIMIZERS, SCHEDULES

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
    if issubclass(cls, DecoupledOptimizer):
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


MODULE = '''
"""A module of a user, which defines an optimizer and a schedule."""

from ppcls.config.base.fields import Positive
from ppcls.optimizer.base import DecoupledOptimizer
from ppcls.optimizer.schedules import RatedSchedule


class DecayingSGD(DecoupledOptimizer):
    """SGD whose weight decay does not depend on the learning rate."""

    scale: Positive = 1.0

    def build(self, decay, **common):
        from ppcls.optimizer.functional import FormulaOptimizer

        scale = self.scale

        class Formula(FormulaOptimizer):
            kinds = ()

            def change(self, weight, gradient, rate, decay, *stored):
                weight.scale_(1.0 - decay).subtract_(scale * rate * gradient)

        return Formula(decay, **common)


class Hyperbolic(RatedSchedule):
    """Divides the rate by the number of epochs since the warm-up, plus 1."""

    def decayed(self, now):
        return self.learning_rate / (1 + now.warm)
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for registry in (OPTIMIZERS, SCHEDULES):
        monkeypatch.setattr(registry, "_entries", {name: registry[name] for name in registry})
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_optimizer_and_schedule_are_one_class_each(folder: Path) -> None:
    (folder / "decaying_parts.py").write_text(MODULE)
    schedule = "lr: {name: Hyperbolic, learning_rate: 0.5, warmup_epoch: 1}"
    fields = "name: DecayingSGD, scale: 2, weight_decay: 0.25, one_dim_param_no_weight_decay: True"
    overrides = ["Global.import_modules=[decaying_parts]", f"Optimizer={{{fields}, {schedule}}}"]
    spec = load_config(ROOT / "configs" / "quickstart.yaml", overrides).Optimizer
    rate = spec.lr.build(4, 2)
    assert [rate(update) for update in range(8)] == pytest.approx(
        [0, 0.25, *(0.5 / (1 + n / 2) for n in range(6))]
    )
    model = nn.Linear(2, 2)
    before = model.weight.numpy()
    optimizer = build_optimizer(spec, model)
    model(paddle.ones([1, 2])).sum().backward()
    optimizer.step()
    np.testing.assert_allclose(model.weight.numpy(), 0.75 * before - 1, rtol=1e-6)
    np.testing.assert_allclose(model.bias.numpy(), [-1, -1])
    tree = f"Optimizer={{name: DecayingSGD, scale: 0, {schedule}}}"
    assert problems(tree) == ["Optimizer.scale: expected a number > 0, got 0"]
    (problem,) = problems(tree.replace("Hyperbolic", "Hyperbola").replace("scale: 0, ", ""))
    assert (
        problem == "Optimizer.lr.name: unknown learning-rate schedule 'Hyperbola'; did you mean 'Hyperbolic'?"
    )


def test_former_base_class_is_an_alias_with_a_warning(folder: Path) -> None:
    (folder / "former_optimizer.py").write_text(
        "from ppcls.config.custom import CustomOptimizer, register\n\n"
        "@register\n"
        "class FormerOptimizer(CustomOptimizer):\n"
        "    def build(self, **common):\n"
        "        from paddle import optimizer\n\n"
        "        return optimizer.Adamax(**common)\n"
    )
    overrides = [
        "Global.import_modules=[former_optimizer]",
        "Optimizer={name: FormerOptimizer, lr: CONSTANT}",
    ]
    overrides[1] = overrides[1].replace("CONSTANT", "{name: Constant, learning_rate: 1}")
    with pytest.warns(DeprecationWarning, match="CustomOptimizer|FormerOptimizer") as caught:
        spec = load_config(ROOT / "configs" / "quickstart.yaml", overrides).Optimizer
    assert [str(each.message).partition(",")[0] for each in caught] == [
        "ppcls.config.custom.CustomOptimizer is deprecated; use ppcls.optimizer.base.CoupledOptimizer",
        "@register is deprecated for FormerOptimizer",
    ]
    assert isinstance(spec, CoupledOptimizer)
    assert type(build_optimizer(spec, nn.Linear(2, 2))).__name__ == "Adamax"


def test_keys_without_effect_are_warned_about() -> None:
    overrides = [
        "Optimizer.regularizer={name: L2, coeff: 0.1}",
        "Optimizer.weight_decay=0.1",
        "Optimizer.lr.warmup_epoch=5",
        "Global.epochs=3",
    ]
    assert config_warnings(load_config(ROOT / "configs" / "quickstart.yaml", overrides)) == [
        "warning: Optimizer.weight_decay has no effect; Optimizer.regularizer takes precedence",
        "warning: Optimizer.lr.warmup_epoch (5) is not less than Global.epochs (3), so the warm-up is "
        "shortened to 1.5 epochs",
    ]
    overrides = ["LinearHead={}", "Optimizer.lr.warmup_epoch=5", "Global.epochs=1"]  # has no learning rate
    head = load_config(ROOT / "configs" / "quickstart.yaml", overrides)
    assert not any("warmup" in line for line in config_warnings(head))


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_master_weights_of_o2_cannot_be_disabled(name: str) -> None:
    optimizer = (
        f"Optimizer={{name: {name}, multi_precision: False, lr: {{name: Constant, learning_rate: 1}}}}"
    )
    assert problems(optimizer, "AMP={level: O1, dtype: bfloat16}") == []
    (problem,) = problems(optimizer, "AMP={level: O2, dtype: bfloat16}")
    assert problem.startswith(
        "Optimizer.multi_precision: expected True, got False: AMP.level O2 always keeps"
    )
