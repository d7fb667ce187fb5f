"""Keys of PaddleClas's files that do nothing there: read, and named with the key that has the effect."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from ppcls.config.compat import config_warnings
from ppcls.config.load import dump_config, load_config, validate
from ppcls.errors import UserError


def tree(**optimizer: Any) -> dict[str, Any]:
    rate = {"name": "MultiStepDecay", "learning_rate": 0.1, "milestones": [30, 60], "step_each_epoch": 1}
    return {"Arch": {"name": "ResNet18"}, "Optimizer": {"name": "Momentum", "lr": rate, **optimizer}}


def test_each_has_a_line_with_its_place_and_the_key_that_counts() -> None:
    assert config_warnings(load_config(tree(clip_grad=5.0))) == [
        "warning: Optimizer.clip_grad has no effect; clip_norm, or clip_value, is the key that clips "
        "gradients",
        "warning: Optimizer.lr.step_each_epoch has no effect; the data set and its batch size say how many "
        "updates an epoch has",
    ]


def test_what_counts_has_no_line_and_is_told_from_what_is_unknown() -> None:
    given = tree(clip_norm=5.0)
    del given["Optimizer"]["lr"]["step_each_epoch"]
    assert config_warnings(load_config(given)) == []
    with pytest.raises(UserError, match=r"Optimizer.clip_gard: unknown key"):
        load_config(tree(clip_gard=5.0))


def test_a_weight_decay_is_coupled_as_a_regularizer() -> None:
    assert load_config(tree(weight_decay=1e-4)).Optimizer.decay == 1e-4
    both = load_config(tree(weight_decay=1e-4, regularizer={"name": "L2", "coeff": 1e-5}))
    assert both.Optimizer.decay == 1e-5
    assert config_warnings(both)[-1].startswith(
        "warning: Optimizer.weight_decay has no effect; regularizer is"
    )


def test_metrics_of_training_may_be_left_empty() -> None:
    config = load_config({**tree(), "Metric": {"Train": None}})
    assert config.Metric.Train == ()
    assert len(config.Metric.Eval) == 1


def test_only_mobilenet_v3_has_a_dropout_of_its_own() -> None:
    small = load_config({**tree(), "Arch": {"name": "MobileNetV3_small_x0_35", "dropout_prob": None}})
    assert small.Arch.options == {"dropout_prob": 0.0}
    assert validate(yaml.safe_load(dump_config(small)), "dumped") == load_config(
        small.model_dump(mode="json")
    )
    with pytest.raises(UserError, match="ResNet18 has no such option, only MobileNetV3, PPLCNet"):
        load_config({**tree(), "Arch": {"name": "ResNet18", "dropout_prob": 0.5}})
