"""What the sections ask of each other, and the defaults."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from paths import ROOT
from pydantic import BaseModel

from ppcls.config.base.errors import ConfigError
from ppcls.config.load import apply_override, read_tree, validate
from ppcls.config.schema import Config

TREE = read_tree(ROOT / "configs/quickstart.yaml")


def outcome(*overrides: str) -> list[str]:
    """Returns the problems of the quickstart with these overrides; none where it is right."""
    tree = copy.deepcopy(TREE)
    for each in overrides:
        apply_override(tree, each)
    try:
        validate(tree, "tree")
    except ConfigError as error:
        return list(error.problems)
    return []


def test_the_quickstart_is_right() -> None:
    assert outcome() == []


@pytest.mark.parametrize("dtype", ["", "AMP.dtype=float16"])
def test_float16_needs_a_gpu(dtype: str) -> None:
    amp = [dtype] if dtype else ["AMP={}"]
    text = "AMP.dtype: float16 needs a GPU, and Global.device is cpu; use bfloat16, or train on a GPU"
    assert outcome(*amp, "Global.device=cpu") == [text]
    for device in ("gpu", "auto"):
        assert outcome(*amp, f"Global.device={device}") == []
    assert outcome("AMP.dtype=bfloat16", "Global.device=cpu") == []
    assert outcome(*amp, "AMP.use_amp=False", "Global.device=cpu") == []


def test_topk_beyond_the_classes() -> None:
    assert outcome("Metric.Eval[0].TopkAcc.topk=10", "Infer.PostProcess.topk=10") == []
    assert outcome("Metric.Eval[0].TopkAcc.topk=[1, 11]", "Infer.PostProcess.topk=12") == [
        "Metric.Eval[0].TopkAcc.topk: top-11 of 10 classes; expected at most Arch.class_num, set topk",
        "Infer.PostProcess.topk: expected at most Arch.class_num (10), got 12",
    ]
    assert outcome("Metric.Train=[TopkAcc]", "Arch.class_num=4") == [
        "Metric.Train[0].TopkAcc.topk: top-5 of 4 classes; expected at most Arch.class_num, set topk",
    ]


def test_a_default_metric_beyond_the_classes() -> None:
    assert outcome("Metric={}", "Arch.class_num=3") == [
        "Metric.Eval[0].TopkAcc.topk: top-5 of 3 classes; expected at most Arch.class_num, set topk",
    ]


def test_inference_makes_the_exported_models_images() -> None:
    assert outcome("Global.image_shape=[3, 32, 48]") == [
        "Infer.transforms: makes images of [3, 32, 32], but Global.image_shape is [3, 32, 48]; "
        "make them agree"
    ]
    assert outcome("Global.image_shape=[3, 32, 48]", "Infer.transforms[1].ResizeImage.size=[48, 32]") == []
    assert outcome("Global.image_shape=[3, 32, 48]", "Infer=null") == []


def test_channels_agree() -> None:
    (*loaders, infer) = outcome("Arch.input_image_channel=1")
    assert loaders == [
        f"DataLoader.{split}.dataset.transform_ops: makes images of 3 channels, but "
        "Arch.input_image_channel is 1"
        for split in ("Train", "Eval")
    ]
    assert infer == "Infer.transforms: makes images of 3 channels, but Arch.input_image_channel is 1"


def test_a_warm_up_longer_than_the_run() -> None:
    assert outcome("Optimizer.lr.warmup_epoch=7.5") == []
    assert outcome("Optimizer.lr.warmup_epoch=8") == [
        "Optimizer.lr: warmup_epoch (8) must be less than the number of epochs of the run (8)"
    ]
    assert outcome("Global.epochs=1") != []


def test_problems_across_sections_come_together() -> None:
    assert (
        len(
            outcome(
                "Optimizer.lr.warmup_epoch=8", "Infer.PostProcess.topk=11", "Global.image_shape=[3, 1, 1]"
            )
        )
        == 3
    )


def test_what_a_config_may_leave_out() -> None:
    config = validate(
        {
            "Arch": {"name": "ResNet50"},
            "Optimizer": {"name": "SGD", "lr": {"name": "Constant", "learning_rate": 1}},
        },
        "tree",
    )
    assert (config.AMP, config.EMA, config.Infer) == (None, None, None)
    assert (config.DataLoader.Train, config.DataLoader.Eval) == (None, None)
    assert config.Loss.Train[0].kind == "CELoss"
    with pytest.raises(ConfigError) as caught:
        validate({}, "tree")
    assert caught.value.problems == (
        "Arch: missing; it has no default",
        "Optimizer: missing; it has no default",
    )


def models(annotation: Any) -> set[type[BaseModel]]:
    """All sections below a type."""
    parts = getattr(annotation, "__args__", ())
    if not parts and isinstance(annotation, type) and issubclass(annotation, BaseModel):
        inner = (models(field.annotation) for field in annotation.model_fields.values())
        return {annotation}.union(*inner)
    return set().union(*(models(part) for part in parts))


def test_every_section_is_frozen_and_strict() -> None:
    found = models(Config)
    assert len(found) > 12
    for each in found:
        assert each.model_config.get("frozen"), each
        assert each.model_config.get("extra") == "forbid", each


def test_a_model_of_paddle_takes_its_own_images_only():
    assert outcome("Arch.name=resnet50", "Arch.data_format=NHWC")[0] == (
        "Arch.data_format: paddle.vision.models' resnet50 accepts NCHW only, got NHWC; "
        "Arch.name=ResNet50 accepts others"
    )
    assert outcome("Arch.name=LeNet")[0] == (
        "Arch.input_image_channel: paddle.vision.models' LeNet accepts 1 only, got 3"
    )
