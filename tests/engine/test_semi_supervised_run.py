"""Semi-supervised training from the config to checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from cifar_files import write_cifar
from small_tree import small_tree

from ppcls.cli import train as cli
from ppcls.config.base.errors import ConfigError
from ppcls.recipe.load import load_config
from ppcls.report.jsonlines import read_records
from ppcls.report.record import StepRecord
from ppcls.weights.files import read_weights


def semi_supervised(images: Path, output: Path) -> dict[str, Any]:
    tree = small_tree(images, output)
    train = tree["DataLoader"]["Train"]
    train["sampler"] |= {"drop_last": True}
    strong = [*train["dataset"]["transform_ops"]]
    strong.insert(-1, {"RandAugment": None})
    tree["DataLoader"]["UnLabelTrain"] = {
        **train,
        "transform_ops_strong": strong,
        "sampler": {"batch_size": 4, "shuffle": True, "drop_last": True},
    }
    tree["SSL"] = {"threshold": 0.0}
    return tree


def train(tree: dict[str, Any], *overrides: str) -> Any:
    path = Path(tree["Global"]["output_dir"]).with_suffix(".yaml")
    path.write_text(yaml.safe_dump(tree))
    assert cli.train(["-c", str(path), *(part for override in overrides for part in ("-o", override))]) == 0
    return read_weights(Path(tree["Global"]["output_dir"]) / "latest")


@pytest.mark.slow
def test_resumed_run_ends_with_the_same_weights_and_unlabelled_images_matter(
    images: Path, tmp_path: Path
) -> None:
    whole = train(semi_supervised(images, tmp_path / "whole"))
    read = read_records(tmp_path / "whole" / "metrics.jsonl")
    records = [record for record in read if isinstance(record, StepRecord)]
    assert records
    for record in records:  # with the threshold 0, each prediction is confident
        assert record.metrics["confident"] == 1.0
        assert 0.0 < record.metrics["unlabelled_loss"] < 100.0
        assert "top1" in record.metrics
    parts = semi_supervised(images, tmp_path / "parts")
    parts["Optimizer"]["lr"] = {"name": "Constant", "learning_rate": 0.01}
    constant = semi_supervised(images, tmp_path / "constant")
    constant["Optimizer"]["lr"] = parts["Optimizer"]["lr"]
    uninterrupted = train(constant)
    train(parts, "Global.epochs=1")
    resumed = train(parts, "Global.checkpoints=auto")
    assert all((resumed[name] == uninterrupted[name]).all() for name in uninterrupted)
    ignored = semi_supervised(images, tmp_path / "ignored")
    ignored["SSL"]["weight"] = 0.0
    differences = [np.abs(value - whole[name]).max() for name, value in train(ignored).items()]
    assert max(differences) > 0


@pytest.mark.parametrize("dali", [True, False])
def test_wide_resnet_trains_on_few_images_of_cifar(images: Path, tmp_path: Path, dali: bool) -> None:
    tree = json.loads(json.dumps(semi_supervised(images, tmp_path / "run")))  # nothing is shared
    cifar = {"name": "Cifar10", "data_file": str(write_cifar(tmp_path)), "download": True}
    flip, normal = {"RandFlipImage": {"flip_code": 1}}, {"NormalizeImage": {"order": "hwc"}}
    pad = {"Pad_paddle_vision": {"padding": 4, "padding_mode": "reflect"}}
    weak = [flip, pad, {"RandCropImageV2": {"size": [32, 32]}}, normal]
    loader = tree["DataLoader"]
    loader["Train"]["dataset"] = {**cifar, "mode": "train", "sample_per_label": 1, "expand_labels": 2}
    loader["Train"]["dataset"]["transform_ops"] = weak
    del loader["UnLabelTrain"]["transform_ops_strong"]
    loader["UnLabelTrain"]["dataset"] = {**cifar, "mode": "train", "transform_ops_weak": weak}
    loader["UnLabelTrain"]["dataset"]["transform_ops_strong"] = [*weak[:-1], {"RandAugment": None}, normal]
    loader["Eval"]["dataset"] = {**cifar, "mode": "test", "transform_ops": [normal]}
    tree["Arch"] = {"name": "WideResNet", "depth": 10, "widen_factor": 1, "dropout": 0, "num_classes": 10}
    tree["Global"] |= {"use_dali": dali, "epochs": 1, "train_mode": "fixmatch"}
    tree["Global"]["image_shape"] = [3, 224, 224]  # as in the files, which have no section Infer
    weights = train(json.loads(json.dumps(tree)))
    assert weights["fc.weight"].shape == (64, 10)
    assert (tmp_path / "run" / "best_model").is_dir()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda tree: tree.pop("SSL"), r"UnLabelTrain: .*the section SSL is missing"),
        (lambda tree: tree["DataLoader"].pop("UnLabelTrain"), r"DataLoader\.UnLabelTrain: missing"),
        (
            lambda tree: tree["DataLoader"]["Train"]["sampler"].pop("drop_last"),
            r"DataLoader\.Train\.sampler\.drop_last: expected True",
        ),
        (
            lambda tree: tree["DataLoader"]["UnLabelTrain"]["sampler"].pop("drop_last"),
            r"DataLoader\.UnLabelTrain\.sampler\.drop_last: expected True",
        ),
        (
            lambda tree: tree["DataLoader"]["UnLabelTrain"]["transform_ops_strong"][1].update(
                RandCropImage={"size": 24}
            ),
            r"transform_ops_strong: expected images of the size from dataset\.transform_ops, \(16, 16\), got",
        ),
    ],
)
def test_incomplete_semi_supervised_config_is_an_error(
    images: Path, tmp_path: Path, change: Any, text: str
) -> None:
    tree = json.loads(json.dumps(semi_supervised(images, tmp_path / "run")))  # nothing is shared
    change(tree)
    with pytest.raises(ConfigError, match=text):
        load_config(tree)


def test_fixmatch_file_of_paddleclas_keeps_its_meaning(images: Path, tmp_path: Path) -> None:
    tree = json.loads(json.dumps(semi_supervised(images, tmp_path / "run")))
    unlabelled = tree["DataLoader"]["UnLabelTrain"]
    dataset = unlabelled["dataset"]
    dataset["transform_ops_weak"] = dataset.pop("transform_ops")
    dataset["transform_ops_strong"] = unlabelled.pop("transform_ops_strong")
    tree["Global"] |= {"train_mode": "fixmatch", "iter_per_epoch": 1024}
    tree["SSL"] = {"tempture": 1, "threshold": 0.95}
    tree["UnLabelLoss"] = {"Train": [{"CELoss": {"weight": 1.0, "reduction": "none"}}]}
    tree["Loss"] = {"Train": [{"CELoss": {"weight": 1.0, "reduction": "mean"}}]}
    tree["Optimizer"]["lr"] = {
        **{"name": "CosineFixmatch", "learning_rate": 0.03, "num_warmup_steps": 0},
        "num_cycles": 0.4375,
    }
    config = load_config(tree)
    assert config.SSL is not None
    assert config.SSL.threshold == 0.95
    split = config.DataLoader.UnLabelTrain
    assert split is not None
    assert [spec.kind for spec in split.strong.dataset.transform_ops][3] == "RandAugment"
    tree["UnLabelLoss"] = {"Train": [{"CCSSLCELoss": {"weight": 1.0}}]}
    with pytest.raises(ConfigError, match="UnLabelLoss: unknown key; write SSL"):
        load_config(tree)
