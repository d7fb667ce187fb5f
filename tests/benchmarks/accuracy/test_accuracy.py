"""Comparison of the accuracy of ppcls and PyTorch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.accuracy.command import AccuracyCurve, describe
from benchmarks.accuracy.job import describe_run
from ppcls.errors import UserError
from ppcls.recipe.load import load_config

CONFIG = Path(__file__).parents[3] / "configs/fashion_mnist_wrn.yaml"


def test_table_compares_the_difference_with_the_noise_of_the_seeds() -> None:
    ours = {1: AccuracyCurve((0.93, 0.95), (10.0, 20.0)), 2: AccuracyCurve((0.94, 0.96), (10.0, 20.0))}
    theirs = {1: AccuracyCurve((0.90, 0.94), (30.0, 40.0)), 2: AccuracyCurve((0.90, 0.93), (30.0, 40.0))}
    lines = describe({"ppcls": ours, "PyTorch": theirs}, 0.94).splitlines()
    assert lines[1].split() == ["ppcls", "0.9550", "(0.9500", "to", "0.9600),", "seeds:", "2", "15", "20"]
    assert lines[2].split()[-5:] == ["1", "of", "2", "runs", "40"]
    assert lines[3] == "the difference +0.0200 exceeds two standard errors of the seeds, 0.0141"


def test_job_has_the_settings_of_the_config(tmp_path: Path) -> None:
    changes = ["Global.device=cpu", "AMP=null", "Arch.depth=10", "Arch.widen_factor=1", "Infer=null"]
    job = describe_run(load_config(CONFIG, changes), tmp_path / "weights.npz", compiled=True)
    expected = {
        **{"epochs": 200, "batch_size": 256, "learning_rate": 0.2, "warmup_epochs": 2.0, "momentum": 0.9},
        **{
            "nesterov": True,
            "weight_decay": 0.0005,
            "smoothing": 0.1,
            "padding": 4,
            "flip": 0.5,
            "depth": 10,
        },
        **{
            "widen_factor": 1,
            "batch_norm_momentum": 0.9,
            "mean": 0.286,
            "std": 0.353,
            "precision": "float32",
        },
        "ema": {"decay": 0.999, "warmup": True},
        "erase": {"probability": 0.5, "sl": 0.02, "sh": 0.4, "r1": 0.3},
    }
    assert {key: job[key] for key in expected} == expected
    assert json.loads(json.dumps(job)) == job


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("Arch={name: ResNet18, class_num: 10}", "expected WideResNet"),
        ("Optimizer.lr={name: Linear, learning_rate: 0.1}", "expected Cosine"),
        (
            "DataLoader.Train.dataset.transform_ops.3={ColorJitter: {}}",
            "ColorJitter",
        ),
    ],
)
def test_other_configs_are_errors(tmp_path: Path, change: str, text: str) -> None:
    config = load_config(CONFIG, [change])
    with pytest.raises(UserError, match=text):
        describe_run(config, tmp_path / "weights.npz", compiled=True)
