"""The warning about evaluations that are much worse than training."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from paddle import nn

from ppcls.engine.evaluation.gap import GapMonitor
from ppcls.recipe.load import load_config
from ppcls.recipe.schema import Config
from ppcls.report.record import EvalRecord, StepRecord


def step(top1: float, epoch: int = 1) -> StepRecord:
    return StepRecord(epoch, 9, 1, 1, 1, 1.0, {"top1": top1}, 0.1, 1.0, 0.0, 0.0)


def evaluation(top1: float, update: int = 100) -> EvalRecord:
    return EvalRecord(1, update, 1.0, {"top1": top1}, 10, 1.0, False)


def test_warning_names_momentum_and_keys_once() -> None:
    monitor = GapMonitor()
    for top1 in (0.8, 0.9):
        monitor.add(step(top1))
    model = nn.Sequential(nn.Conv2D(3, 4, 1), nn.BatchNorm2D(4, momentum=0.999))
    text = monitor.describe(evaluation(0.1), model)
    assert text == (
        "warning: epoch 1: top1 is 0.85 in training, but 0.10 in the evaluation; the statistics of BatchNorm "
        "may lag behind the weights (momentum 0.999: they follow the weights within about 3,000 updates, and "
        "this run has had 100); set Arch.batch_norm_momentum=0.9 or Global.precise_batch_norm=2000; "
        "otherwise check that DataLoader.Eval has the labels and the normalization of DataLoader.Train, or "
        "whether the model overfits"
    )
    assert monitor.describe(evaluation(0.1), model) == ""


@pytest.mark.parametrize(
    "key",
    [
        "Arch.batch_norm_momentum",
        "Arch.Backbone.batch_norm_momentum",
        "Arch.models.1.Student.batch_norm_momentum",
    ],
)
def test_suggested_key_sets_the_momentum(key: str, make_config: Callable[..., Config]) -> None:
    backbone = {"name": "ResNet18", "class_num": 4}
    head = {"name": "FC", "embedding_size": 512, "class_num": 4}
    stop = {"name": "flatten"}
    tree = make_config().model_dump(mode="json")
    if "Backbone" in key:
        tree["Arch"] = {"name": "RecModel", "Backbone": backbone, "BackboneStopLayer": stop, "Head": head}
    elif "models" in key:
        tree["Arch"] = {
            "name": "DistillationModel",
            "class_num": 4,
            "models": [{"Teacher": backbone}, {"Student": backbone}],
        }
        tree["Loss"]["Train"] = [{"DistillationGTCELoss": {"model_names": ["Student", "Teacher"]}}]
        tree["Metric"]["Train"] = None
    else:
        tree["Arch"] = backbone
    config = load_config(tree, {key: 0.5})
    assert config.Arch.momentum_key == key
    assert config.Arch.exported.batch_norm_momentum == 0.5
    monitor = GapMonitor(config.Arch.momentum_key)
    monitor.add(step(0.9))
    model = nn.Sequential(nn.BatchNorm2D(4, momentum=0.999))
    assert f"set {key}=0.9 or" in monitor.describe(evaluation(0.1), model)


@pytest.mark.parametrize(("trained", "evaluated"), [(0.9, 0.45), (0.2, 0.9), (0.3, 0.0)])
def test_usual_results_cause_no_warning(trained: float, evaluated: float) -> None:
    monitor = GapMonitor()
    monitor.add(step(0.99, epoch=1))
    monitor.add(step(trained, epoch=2))
    assert monitor.describe(evaluation(evaluated), nn.BatchNorm2D(4)) == ""


def test_model_without_batch_norm_gets_other_causes() -> None:
    monitor = GapMonitor()
    monitor.add(step(0.9))
    text = monitor.describe(evaluation(0.1), nn.Linear(2, 2))
    assert "BatchNorm" not in text
    assert "check that DataLoader.Eval has the labels" in text


def test_moving_average_of_initial_weights_is_not_blamed_on_batch_norm() -> None:
    monitor = GapMonitor()
    monitor.add(step(0.9))
    assert monitor.describe(evaluation(0.1), nn.BatchNorm2D(4), initial_share=0.9) == ""
    assert "BatchNorm" in monitor.describe(evaluation(0.1), nn.BatchNorm2D(4), initial_share=0.0)
