"""Learning rates of PaddleClas's files, update by update, compared with those of PaddleClas's own code."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import yaml
from paddleclas_schedules import METRIC, SPARE_BITS, UPDATES
from paddleclas_trees import plain
from paths import ROOT, SUPPORT

from ppcls.recipe.compat import config_warnings
from ppcls.recipe.load import dump_config, load_config
from ppcls.recipe.schema import Config

# Written by `paddleclas_schedules.py PADDLECLAS FILE.npz` from PaddleClas's code and configs.
RATES = np.load(SUPPORT / "paddleclas_schedules.npz")
CASES = json.loads(str(RATES["cases"]))
PRECISION = 2.0 ** (SPARE_BITS - 24)  # relative error of the stored rates


def load(case: dict[str, Any]) -> Config:
    """Loads a file of PaddleClas with the schedule of a case."""
    tree = plain("ResNet50")
    tree["Global"]["epochs"] = case["epochs"]
    tree["Optimizer"]["lr"] = case["lr"]
    return load_config(tree)


def schedule_warnings(config: Config) -> list[str]:
    """Returns the warnings about the schedule, which mention PaddleClas or the length of the run."""
    lines = [line for line in config_warnings(config) if "Optimizer" in line]
    return [line for line in lines if "PaddleClas" in line or "shortened" in line]


def our_rates(config: Config) -> list[float]:
    """Returns the rates of all updates. Each epoch ends with an evaluation with the same result."""
    epochs = config.Global.epochs
    rate = config.Optimizer.lr.build(epochs, UPDATES)
    plateau = config.Optimizer.lr.build_plateau(epochs, "top1")
    if plateau is not None:
        rate = plateau.applied(rate)
    values = []
    for epoch in range(epochs):
        values += [rate(update) for update in range(epoch * UPDATES, (epoch + 1) * UPDATES)]
        if plateau is not None:
            plateau.see(METRIC, METRIC, epoch + 1)
    return values


def is_equal(config: Config, theirs: Any) -> bool:
    """Returns whether the rates of all updates are equal."""
    ours = our_rates(config)
    return bool(np.allclose(ours, theirs, rtol=2 * PRECISION, atol=1e-7 * max(ours)))


COMPARED = [number for number, case in enumerate(CASES) if not case["error"]]


@pytest.mark.table
@pytest.mark.parametrize("number", COMPARED)
def test_rates_equal_those_of_paddleclas_or_a_warning_names_the_difference(number: int) -> None:
    config = load(CASES[number])
    warned = schedule_warnings(config)
    assert is_equal(config, RATES[str(number)]) or warned, CASES[number]["lr"]
    if CASES[number]["configs"]:
        assert len(warned) <= 1, "a single difference each"


@pytest.mark.table
def test_all_but_few_configs_of_paddleclas_have_its_rates() -> None:
    different = {
        name
        for number in COMPARED
        if schedule_warnings(load(CASES[number]))
        for name in CASES[number]["configs"]
    }
    assert sum(len(CASES[number]["configs"]) for number in COMPARED) == 479
    # Six with a learning_rate that replaces decay_epochs, one with OneCycleLR, three with last_epoch: 0, and
    # five with a step_size that is not a whole number of epochs.
    assert len(different) == 15


WARM = {"learning_rate": 0.8, "warmup_epoch": 5}
STEPS = {"name": "Piecewise", "decay_epochs": [30, 60, 90], "values": [0.8, 0.08, 0.008, 0.0008], **WARM}
MILESTONES = {"name": "MultiStep", "milestones": [30, 60], **WARM}


@pytest.mark.parametrize("lr", [STEPS, MILESTONES])
def test_boundaries_of_a_file_of_paddleclas_count_from_the_end_of_the_warmup(lr: dict[str, Any]) -> None:
    config = load({"lr": lr, "epochs": 120})
    rate = config.Optimizer.lr.build(120, UPDATES)
    assert [rate(epoch * UPDATES - 1) for epoch in (30, 35, 65)] == pytest.approx([0.8, 0.8, 0.08])
    assert [rate(epoch * UPDATES) for epoch in (35, 65)] == pytest.approx([0.08, 0.008])
    assert schedule_warnings(config) == []
    again = load_config(yaml.safe_load(dump_config(config)))
    assert again.Optimizer == config.Optimizer, "a resumed run has the same rates"


@pytest.mark.parametrize(("lr", "key"), [(STEPS, "decay_epochs"), (MILESTONES, "milestones")])
def test_boundaries_of_another_file_count_from_its_start_with_a_warning(lr: dict[str, Any], key: str) -> None:
    tree = plain("ResNet50")
    tree["Global"]["epochs"] = 120
    del tree["Global"]["save_inference_dir"]
    tree["Optimizer"]["lr"] = {**lr, "name": "MultiStepDecay" if key == "milestones" else "Piecewise"}
    config = load_config(tree)
    rate = config.Optimizer.lr.build(120, UPDATES)
    assert [rate(30 * UPDATES - 1), rate(30 * UPDATES)] == pytest.approx([0.8, 0.08])
    assert schedule_warnings(config) == [
        f"warning: Optimizer.lr.{key} count from the start of the run, in PaddleClas from the end of the "
        "warm-up; set count_from to start_of_run or end_of_warmup"
    ]
    tree["Optimizer"]["lr"]["count_from"] = "start_of_run"
    assert schedule_warnings(load_config(tree)) == []


def test_override_does_not_make_a_file_paddleclas() -> None:
    overrides = [
        "Global.save_inference_dir=./inference",
        "Optimizer.lr={name: OneCycleLR, max_learning_rate: 1}",
    ]
    assert schedule_warnings(load_config(ROOT / "configs" / "quickstart.yaml", overrides)) == []
