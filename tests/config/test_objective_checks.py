"""What losses, metrics and prediction ask of the labels, word for word."""

from __future__ import annotations

import copy

import pytest
import yaml
from paths import ROOT

from ppcls.config.base.errors import ConfigError
from ppcls.config.load import apply_override, dump_config, read_tree, validate

TREE = read_tree(ROOT / "configs/quickstart.yaml")
SEVERAL = [
    "DataLoader.Train.dataset.name=MultiLabelDataset",
    "DataLoader.Eval.dataset.name=MultiLabelDataset",
    "Loss={Train: [MultiLabelLoss], Eval: [MultiLabelLoss]}",
    "Metric={Train: [AccuracyScore], Eval: [MultiLabelMAP, HammingDistance]}",
    "Infer.PostProcess={name: MultiLabelThreshOutput, threshold: 0.4}",
]


def outcome(*overrides: str) -> list[str]:
    """Returns the problems of the quickstart with these overrides; none where it is right."""
    tree = copy.deepcopy(TREE)
    for each in overrides:
        apply_override(tree, each)
    try:
        config = validate(tree, "tree")
    except ConfigError as error:
        return list(error.problems)
    assert validate(yaml.safe_load(dump_config(config)), "dumped") == config
    return []


def test_several_labels() -> None:
    assert outcome(*SEVERAL) == []
    assert outcome(*SEVERAL, "Global.use_multilabel=True") == []


def test_losses_and_metrics_of_one_label_are_refused_for_several() -> None:
    data = "is MultiLabelDataset; expected"
    found = outcome(
        *SEVERAL,
        "Loss={Train: [CELoss, MultiLabelLoss]}",
        "Metric={Train: [TopkAcc: {topk: 1}], Eval: [TopkAcc: {topk: 1}]}",
    )
    losses, metrics = "MultiLabelLoss or MultiLabelAsymmetricLoss", "AccuracyScore"
    for place, kind, expected in (
        ("Loss.Train[0]", "CELoss", losses),
        ("Loss.Eval[0]", "CELoss", losses),
        ("Metric.Train[0]", "TopkAcc", metrics),
        ("Metric.Eval[0]", "TopkAcc", metrics),
    ):
        split = place.split(".")[1][: -len("[0]")]
        begin = f"{place}.{kind}: is for images of one class, and DataLoader.{split}.dataset {data} "
        assert any(each.startswith(begin) and expected in each for each in found), (begin, found)
    assert len(found) == 4


def test_metrics_of_several_labels_are_refused_for_one() -> None:
    (found,) = outcome("Metric={Eval: [AccuracyScore]}")
    assert found.startswith(
        "Metric.Eval[0].AccuracyScore: is for images of several classes, and DataLoader.Eval.dataset is "
        "ImageNetDataset; expected TopkAcc"
    )
    assert outcome("Loss={Train: [MultiLabelLoss: {epsilon: 0.1}]}") == [], "one class is one-hot"


@pytest.mark.parametrize("sampler", ["ClassBalancedSampler", "PKSampler", "WeightedSampler"])
def test_samplers_that_go_by_the_class(sampler: str) -> None:
    more = {"PKSampler": ", sample_per_id: 2", "WeightedSampler": f", class_weights: {[1] * 10}"}
    sampling = f"DataLoader.Train.sampler={{name: {sampler}, batch_size: 32{more.get(sampler, '')}}}"
    assert outcome(sampling) == []
    assert outcome(*SEVERAL, sampling) == [
        f"DataLoader.Train.sampler.name: {sampler} goes by the class of an image, and MultiLabelDataset's "
        "have several; expected DistributedBatchSampler, or WeightedSampler with a weights_file"
    ]


def test_weights_need_the_positives_shares() -> None:
    weighted = "Loss.Train=[MultiLabelLoss: {weight_ratio: True}]"
    text = (
        "Loss.Train[0].MultiLabelLoss.weight_ratio: needs each class's share of positives; set "
        "DataLoader.Train.dataset.label_ratio: True of a MultiLabelDataset"
    )
    assert outcome(*SEVERAL, weighted) == [text]
    assert outcome(weighted) == [text]
    assert outcome(*SEVERAL, weighted, "DataLoader.Train.dataset.label_ratio=True") == []


def test_a_metric_of_all_samples_is_not_for_training() -> None:
    assert outcome(*SEVERAL, "Metric.Train=[MultiLabelMAP]") == [
        "Metric.Train[0].MultiLabelMAP: is of all samples at once, not of batches; expected it in Metric.Eval"
    ]


def test_false_alarms_are_of_two_classes() -> None:
    two, top = "Metric.Eval=[TprAtFpr: {max_fpr: 0.01}]", "Arch.class_num=2"
    assert outcome(two) == ["Metric.Eval[0].TprAtFpr: is of two classes, and Arch.class_num is 10"]
    assert outcome(two, top, "Metric.Train=[]", "Infer.PostProcess.topk=1") == []


def test_prediction_goes_by_the_labels() -> None:
    assert outcome("Infer.PostProcess={name: MultiLabelThreshOutput}") == [
        "Infer.PostProcess.name: expected Topk, got MultiLabelThreshOutput: the model learns from "
        "ImageNetDataset"
    ]
    assert outcome(*SEVERAL, "Infer.PostProcess={topk: 3}") == [
        "Infer.PostProcess.name: expected MultiLabelThreshOutput, got Topk: the model learns from "
        "MultiLabelDataset"
    ]
    assert outcome(*SEVERAL, "Infer.PostProcess.threshold=2") == [
        "Infer.PostProcess.threshold: expected a number >= 0 and <= 1, got 2"
    ]
    (found,) = outcome("Infer.PostProcess.name=Top")
    assert found.startswith("Infer.PostProcess.name: unknown postprocessing 'Top'; did you mean 'Topk'?")


def test_use_multilabel_must_be_true() -> None:
    found = outcome("Global.use_multilabel=True")
    assert found == [
        f"DataLoader.{split}.dataset.name: ImageNetDataset has one class an image; expected "
        "MultiLabelDataset, or Global.use_multilabel: False"
        for split in ("Train", "Eval")
    ]
