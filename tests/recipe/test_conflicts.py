"""Conflicts between sections: the key that is reported, and how to fix it."""

from __future__ import annotations

import pytest
from quickstart import problems, read

TRAIN, EVAL = "DataLoader.Train", "DataLoader.Eval"
MULTI_LABEL = (
    f"{TRAIN}.dataset.name=MultiLabelDataset",
    f"{EVAL}.dataset.name=MultiLabelDataset",
    "Loss={Train: [MultiLabelLoss], Eval: [MultiLabelLoss]}",
    "Metric={Train: [AccuracyScore], Eval: [MultiLabelMAP, HammingDistance]}",
    "Infer.PostProcess={name: MultiLabelThreshOutput, threshold: 0.4}",
)
ONE_LABEL = "Metric.Train=[TopkAcc: {topk: 1}]"
MIXUP = f"{TRAIN}.dataset.batch_transform_ops=[MixupOperator]"
O2 = "AMP={level: O2, scale_loss: 128.0}"
TWO = ("Arch.class_num=2", "Infer.PostProcess.topk=1", "Metric.Train=[]")


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        MULTI_LABEL,
        (*MULTI_LABEL, "Global.use_multilabel=True"),
        (
            *MULTI_LABEL,
            "Loss.Train=[MultiLabelLoss: {weight_ratio: True}]",
            f"{TRAIN}.dataset.label_ratio=True",
        ),
        ("Loss={Train: [MultiLabelLoss: {epsilon: 0.1}]}",),
        (*MULTI_LABEL, "Loss.Train=[FocalLoss: {activation: sigmoid, alpha: 0.25}]"),
        ("Loss.Train=[CELoss: {class_weight: balanced, logit_adjustment: 1.0}, FocalLoss]",),
        ("Metric.Eval=[CalibrationError, ConfusionMatrix: {each: True}, PerClassRecall: {each: True}]",),
        ("AMP={}", "Global.device=gpu"),
        ("AMP={}", "Global.device=auto"),
        ("AMP={dtype: bfloat16}", "Global.device=cpu"),
        ("AMP={use_amp: False}", "Global.device=cpu"),
        ("Optimizer.lr.warmup_epoch=7.5",),
        ("Global.early_stopping=3",),
        ("Optimizer.lr={name: ReduceOnPlateau, learning_rate: 0.1}",),
        ("Metric.Eval[0].TopkAcc.topk=10", "Infer.PostProcess.topk=10"),
        ("Metric.Eval=[TprAtFpr: {max_fpr: 0.01}]", *TWO),
        ("Global.image_shape=[3, 32, 48]",),
        (MIXUP, f"{TRAIN}.sampler={{name: PKSampler, batch_size: 30, sample_per_id: 6}}"),
        (f"{TRAIN}.sampler={{name: PKSampler, batch_size: 30, sample_per_id: 5}}",),
    ],
)
def test_checks_consistent_sections_have_no_problems(overrides: tuple[str, ...]) -> None:
    assert problems(*overrides) == []


@pytest.mark.parametrize(
    ("overrides", "place", "text"),
    [
        (("AMP={}", "Global.device=cpu"), "AMP.dtype", "use bfloat16, or train on a GPU"),
        ((O2, "AMP.min_loss_scaling=256"), "AMP.scale_loss", "expected at least AMP.min_loss_scaling (256)"),
        ((O2, "Optimizer.multi_precision=False"), "Optimizer.multi_precision", "expected True"),
        (
            ("Global.early_stopping=3", "Global.eval_during_train=False"),
            "Global.early_stopping",
            "set Global.eval_during_train: True",
        ),
        (
            ("Optimizer.lr={name: ReduceOnPlateau, learning_rate: 1}", "Global.eval_during_train=False"),
            "Optimizer.lr.name",
            "set Global.eval_during_train: True",
        ),
        (
            ("Metric.Eval[0].TopkAcc.topk=[1, 11]",),
            "Metric.Eval[0].TopkAcc.topk",
            "expected at most Arch.class_num (10), got 11",
        ),
        (
            ("Metric={}", "Arch.class_num=4", "Infer=null"),
            "Metric.Eval[0].TopkAcc.topk",
            "expected at most Arch.class_num (4), got 5",
        ),
        (
            ("Infer.PostProcess.topk=12",),
            "Infer.PostProcess.topk",
            "expected at most 10, the number of classes, got 12",
        ),
        (("Metric.Eval=[TprAtFpr]",), "Metric.Eval[0].TprAtFpr", "expected two classes"),
        (
            ("Metric={Eval: [ConfusionMatrix]}", "Arch.class_num=1001"),
            "Metric.Eval[0].ConfusionMatrix",
            "at most 1000 classes",
        ),
        (("Metric.Eval=[TopkAcc, TopkAcc]",), "Metric.Eval[1].TopkAcc", "top1, top5 is reported twice"),
        ((*MULTI_LABEL, "Metric.Train=[MultiLabelMAP]"), "Metric.Train[0].MultiLabelMAP", "to Metric.Eval"),
        (("Metric={Eval: [AccuracyScore]}",), "Metric.Eval[0].AccuracyScore", "expected TopkAcc"),
        (
            (*MULTI_LABEL, "Metric.Train=[TopkAcc: {topk: 1}]"),
            "Metric.Train[0].TopkAcc",
            "expected AccuracyScore",
        ),
        (
            ("Infer.PostProcess={name: MultiLabelThreshOutput}",),
            "Infer.PostProcess.name",
            "expected Topk, got MultiLabelThreshOutput",
        ),
        (
            (*MULTI_LABEL, "Infer.PostProcess={topk: 3}"),
            "Infer.PostProcess.name",
            "expected MultiLabelThreshOutput, got Topk",
        ),
        (("Global.image_channel=4",), "Global.image_channel", "expected Arch.input_image_channel (3), got 4"),
        (
            (f"{TRAIN}.sampler={{name: WeightedSampler, batch_size: 4, class_weights: [1, 2]}}",),
            f"{TRAIN}.sampler.class_weights",
            "expected one weight for each of Arch.class_num (10) classes, got 2",
        ),
        (
            (f"{EVAL}.sampler={{name: ClassBalancedSampler, batch_size: 4}}",),
            f"{EVAL}.sampler.name",
            "expected DistributedBatchSampler, got ClassBalancedSampler",
        ),
        (
            (f"{EVAL}.input_size={{name: MultiScale, sizes: [32]}}",),
            f"{EVAL}.input_size",
            "evaluation uses one size; remove this key",
        ),
        (
            (f"{TRAIN}.input_size={{name: Progressive, sizes: [16, 32], epochs: [0, 8]}}",),
            f"{TRAIN}.input_size.epochs",
            "starts at epoch 8, but Global.epochs is 8",
        ),
        (
            (f"{EVAL}.dataset.batch_transform_ops=[MixupOperator]",),
            f"{EVAL}.dataset.batch_transform_ops",
            "evaluation does not mix images; remove this key",
        ),
        ((MIXUP, f"{TRAIN}.sampler.batch_size=33"), f"{TRAIN}.sampler.batch_size", "an even number"),
        (
            (MIXUP, f"{TRAIN}.sampler={{shuffle: True, global_batch_size: 33}}"),
            f"{TRAIN}.sampler.global_batch_size",
            "expected an even number",
        ),
        (
            (MIXUP, f"{TRAIN}.sampler={{name: PKSampler, batch_size: 30, sample_per_id: 5}}"),
            f"{TRAIN}.sampler.sample_per_id",
            "expected an even number",
        ),
        ((MIXUP, f"{TRAIN}.sampler.shuffle=False"), f"{TRAIN}.sampler.shuffle", "expected True"),
    ],
)
def test_checks_conflict_is_reported_at_its_key(overrides: tuple[str, ...], place: str, text: str) -> None:
    (problem,) = problems(*overrides)
    assert problem.startswith(f"{place}: ")
    assert text in problem


@pytest.mark.parametrize("sampler", ["ClassBalancedSampler", "PKSampler", "WeightedSampler"])
def test_checks_sampler_by_class_rejects_multi_label_images(sampler: str) -> None:
    more = {"PKSampler": ", sample_per_id: 2", "WeightedSampler": f", class_weights: {[1] * 10}"}
    override = f"{TRAIN}.sampler={{name: {sampler}, batch_size: 32{more.get(sampler, '')}}}"
    assert problems(override) == []
    (problem,) = problems(*MULTI_LABEL, override)
    assert problem.startswith(f"{TRAIN}.sampler.name: {sampler} needs images with one label")


def test_checks_each_split_is_reported() -> None:
    found = problems("Global.use_multilabel=True")
    assert [each.partition(":")[0] for each in found] == [f"{TRAIN}.dataset.name", f"{EVAL}.dataset.name"]
    found = problems("Arch.input_image_channel=1")
    places = [f"{split}.dataset.transform_ops" for split in (TRAIN, EVAL)]
    assert [each.partition(":")[0] for each in found] == [*places, "Infer.transforms"]
    assert "3 channels, but Arch.input_image_channel is 1" in found[0]


def test_checks_published_weights_need_the_network_of_paddleclas() -> None:
    variant = ("Arch.name=GhostNet_x1_0", "Arch.timm_variant=True")
    assert problems(*variant, "Arch.pretrained=ghostnet_100.safetensors") == []
    (problem,) = problems(*variant, "Arch.pretrained=True")
    assert (
        problem == "Arch.timm_variant: the published weights (Arch.pretrained=True) need False; "
        "change it, or set Arch.pretrained to other weights"
    )


def test_checks_all_conflicts_are_reported_together() -> None:
    early_stopping = ("Global.early_stopping=3", "Global.eval_during_train=False")
    assert len(problems(*early_stopping, "Infer.PostProcess.topk=11", "Global.image_channel=4")) == 3


def test_checks_multi_scale_sampler_rejects_auto_scale_lr() -> None:
    sampler = f"{TRAIN}.sampler={{name: MultiScaleSampler, scales: [32, 64], first_bs: 4}}"
    assert read(sampler).DataLoader.Train.sampler.kind == "MultiScaleSampler"
    (problem,) = problems(sampler, "Global.auto_scale_lr=True")
    assert problem.startswith("Global.auto_scale_lr: expected False")
