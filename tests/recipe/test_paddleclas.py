"""Keys of PaddleClas's files, translated into ours."""

from __future__ import annotations

import json
from typing import Any

import paddle
import pytest
import yaml
from paddleclas_trees import attributes, plain, retrieving
from paths import ROOT

from ppcls.arch.rec_model import RecModel
from ppcls.config.base.errors import ConfigError
from ppcls.data.index.image_lists import CustomLabelDataset
from ppcls.data.sampling.samplers import PKSampler, RepeatedAugSampler
from ppcls.data.transforms.specs.blur import BlurImage
from ppcls.engine.core.networks import build_network
from ppcls.loss.learned import CenterLoss
from ppcls.metric.single_label import TopkAcc
from ppcls.optimizer.schedules import Piecewise
from ppcls.postprocess.methods import MultiLabelThreshOutput, ThreshOutput, Topk
from ppcls.recipe.compat import config_warnings
from ppcls.recipe.load import dump_config, load_config

LCNET = "PPLCNet_x1_0"


def pulc(name: str = LCNET) -> dict[str, Any]:
    """A file of PULC: two classes and keys that ImageNet's files do not have."""
    tree = plain(name)
    tree["Global"] |= {"start_eval_epoch": 10, "save_interval": -1}
    tree["Arch"] |= {"class_num": 2, "use_sync_bn": True, "infer_add_softmax": False}
    tree["Metric"] = {"Eval": [{"TprAtFpr": {}}]}
    tree["Infer"]["PostProcess"] = {"name": "ThreshOutput", "threshold": 0.9}
    tree["Infer"]["PostProcess"] |= {"label_0": "nobody", "label_1": "someone"}
    ops = tree["DataLoader"]["Train"]["dataset"]["transform_ops"]
    ops.insert(3, {"TimmAutoAugment": {"prob": 0.3, "config_str": "rand-m9-mstd0.5-inc1"}})
    return tree


def test_file_of_pulc_loads_with_its_meaning() -> None:
    config = load_config(pulc())
    settings = config.Global
    assert (settings.start_eval_epoch, settings.save_interval, settings.sync_bn) == (10, 360, True)
    assert [epoch for epoch in range(1, 13) if settings.evaluates_after(epoch)] == [10, 11, 12]
    assert settings.evaluates_after(360)
    assert config.Infer is not None
    assert config.Infer.PostProcess == ThreshOutput(threshold=0.9, label_0="nobody", label_1="someone")
    assert any("infer_add_softmax has no effect" in line for line in config_warnings(config))


def test_topk_above_a_smaller_number_of_classes_is_reduced_with_a_warning() -> None:
    tree = plain(LCNET)
    tree["Arch"]["class_num"] = 3
    tree["Metric"] = {split: [{"TopkAcc": {"topk": [1, 5]}}] for split in ("Train", "Eval")}
    tree["Infer"]["PostProcess"] = {"name": "Topk", "topk": 5}
    config = load_config(tree)
    assert [metric.topk for metric in config.Metric.Eval] == [(1,)]  # type: ignore[union-attr, attr-defined]
    assert config.Infer is not None
    assert config.Infer.PostProcess == Topk(topk=3)
    assert [note for note in config.notes if "is read as" in note] == [
        "warning: Metric.Train[0].TopkAcc.topk: [1, 5] is read as [1], because the model has 3 classes",
        "warning: Metric.Eval[0].TopkAcc.topk: [1, 5] is read as [1], because the model has 3 classes",
        "warning: Infer.PostProcess.topk: 5 is read as 3, because the model has 3 classes",
    ]


def test_topk_of_the_command_and_of_other_files_is_not_reduced() -> None:
    tree = plain(LCNET)
    tree["Arch"]["class_num"] = 3
    tree["Metric"] = {"Eval": [{"TopkAcc": {"topk": [1, 2]}}]}
    tree["Infer"]["PostProcess"] = {"name": "Topk", "topk": 2}
    with pytest.raises(ConfigError, match=r"topk: expected at most Arch\.class_num \(3\), got 5"):
        load_config(tree, {"Metric.Eval.0.TopkAcc.topk": [1, 5]})
    del tree["Global"]["save_inference_dir"]
    tree["Infer"]["PostProcess"]["topk"] = 5
    with pytest.raises(ConfigError, match="expected at most 3, the number of classes, got 5"):
        load_config(tree)


def test_config_for_an_exported_model_is_explained() -> None:
    tree = {"Global": {"inference_model_dir": "x"}, "PreProcess": {}, "PostProcess": {}}
    with pytest.raises(ConfigError, match=r"PreProcess: this file is for .*; `ppcls infer --model FOLDER"):
        load_config(tree)


def test_threshold_without_two_classes_is_an_error() -> None:
    tree = pulc()
    tree["Arch"]["class_num"] = 3
    tree["Metric"] = {"Eval": [{"TopkAcc": {"topk": 1}}]}
    with pytest.raises(ConfigError, match=r"Infer\.PostProcess\.name: ThreshOutput needs two classes"):
        load_config(tree)


def test_stage_rates_of_pp_lcnet_become_rules() -> None:
    tree = plain(LCNET)
    tree["Arch"] |= {"lr_mult_list": [0.0, 0.4, 0.4, 0.8, 0.8, 1.0]}
    tree["Arch"]["stride_list"] = [2, [2, 1], [2, 1], [2, 1], [2, 1]]
    tree["Arch"]["use_last_conv"] = False
    config = load_config(tree)
    assert config.Optimizer.freeze == ("conv1.*",)
    rules = [(rule.pattern, rule.lr_mult) for rule in config.Optimizer.by_name]
    assert rules == [
        ((f"blocks{stage}.*",), rate) for stage, rate in ((2, 0.4), (3, 0.4), (4, 0.8), (5, 0.8))
    ]
    assert config.Arch.options["stride_list"] == (2, (2, 1), (2, 1), (2, 1), (2, 1))
    assert config.Arch.options["use_last_conv"] is False


def test_stage_rates_of_a_distilled_student_become_rules() -> None:
    tree = plain(LCNET)
    strides = [2, [2, 1], [2, 1], [2, 1], [2, 1]]
    student = {"name": LCNET, "lr_mult_list": [0.0, 0.4, 0.4, 0.8, 0.8, 1.0], "stride_list": strides}
    tree["Arch"] = {"name": "DistillationModel", "class_num": 10, "freeze_params_list": [True, False]}
    tree["Arch"]["models"] = [
        {"Teacher": {"name": "ResNet101_vd", "stride_list": strides, "pretrained": "teacher.pdparams"}},
        {"Student": student},
    ]
    tree["Loss"]["Train"] = [{"DistillationDMLLoss": {"model_name_pairs": [["Student", "Teacher"]]}}]
    config = load_config(tree)
    assert config.Optimizer.freeze == ("conv1.*",)
    assert [rule.lr_mult for rule in config.Optimizer.by_name] == [0.4, 0.4, 0.8, 0.8]
    assert config.Arch.architectures[0].options["stride_list"] == (2, (2, 1), (2, 1), (2, 1), (2, 1))


def test_stages_of_a_distilled_model_yield_to_named_layers() -> None:
    tree = plain(LCNET)
    member = {"name": LCNET, "return_stages": True, "return_patterns": ["blocks4"]}
    tree["Arch"] = {"name": "DistillationModel", "class_num": 2}
    tree["Arch"]["models"] = [{"Teacher": {**member}}, {"Student": {**member}}]
    pairs = {"model_name_pairs": [["Student", "Teacher"]]}
    tree["Loss"]["Train"] = [
        {"DistillationGTCELoss": {"model_names": ["Student", "Teacher"]}},
        {"DistillationDistanceLoss": {"key": "blocks4", **pairs}},
    ]
    tree["Metric"] = {"Eval": [{"TopkAcc": {"topk": 1}}]}
    tree["Infer"]["PostProcess"] = {"name": "Topk", "topk": 1}
    assert load_config(tree).Arch.architectures[1].return_patterns == ("blocks4",)
    tree["Arch"]["models"][1]["Student"]["return_stages"] = True
    del tree["Arch"]["models"][1]["Student"]["return_patterns"]
    with pytest.raises(ConfigError, match=r"Student\.return_stages: unknown key; write return_patterns"):
        load_config(tree)


def distilled() -> dict[str, Any]:
    """A file with two embedding models that learn from each other."""
    tree = retrieving()
    rec = tree["Arch"]
    other = {**rec, "Backbone": {"name": "ResNet18"}, "Neck": {**rec["Neck"], "embedding_size": 512}}
    tree["Arch"] = {"name": "DistillationModel", "is_rec": True, "infer_output_key": "features"}
    tree["Arch"] |= {"models": [{"Teacher": rec}, {"Student": other}], "infer_model_name": "Student"}
    pairs = {"model_name_pairs": [["Student", "Teacher"]]}
    tree["Loss"]["Train"] = [
        {"DistillationGTCELoss": {"model_names": ["Student", "Teacher"], "key": "logits"}},
        {"DistillationDMLLoss": pairs},
        {"DistillationDistanceLoss": {**pairs, "key": "neck"}},
    ]
    return tree


def test_distillation_of_embedding_models_loads() -> None:
    config = load_config(distilled())
    assert isinstance(config.Arch.inferred, RecModel)
    assert (config.Arch.class_num, config.Arch.exported.name) == (3997, "ResNet18")
    assert set(config.Arch.margins) == {"Teacher", "Student", "logits"}
    dumped = json.loads(config.model_dump_json())
    assert json.loads(load_config(dumped).model_dump_json()) == dumped


def test_distillation_of_embedding_models_rejects_other_models_and_layers() -> None:
    tree = distilled()
    tree["Arch"]["models"][0] = {"Teacher": {"name": "ResNet18", "class_num": 3997}}
    with pytest.raises(ConfigError, match="expected only classifiers, or only embedding models"):
        load_config(tree)
    tree = distilled()
    tree["Loss"]["Train"][2]["DistillationDistanceLoss"]["key"] = "head"
    with pytest.raises(ConfigError, match="head"):
        load_config(tree)
    tree = distilled()
    tree["Arch"]["freeze_params_list"] = [True, False]
    with pytest.raises(ConfigError, match=r"Teacher: is frozen, .* -o '?Arch.pretrained_list"):
        load_config(tree)


@pytest.mark.parametrize(
    ("mode", "border"), [(0, (0, 0, 20, 20)), (1, (10, 10, 10, 10)), (2, (20, 20, 0, 0))]
)
def test_padding_to_a_size_becomes_a_border(mode: int, border: tuple[int, ...]) -> None:
    tree = attributes()
    ops = tree["DataLoader"]["Train"]["dataset"]["transform_ops"]
    padded = {"size": [212, 276], "pad_mode": mode, "fill_value": 0}
    ops[1:3] = [
        {"ResizeImage": {"size": [192, 256]}},
        {"Padv2": padded},
        {"RandomCropImage": {"size": [192, 256]}},
    ]
    train = load_config(tree).DataLoader.Train
    assert train is not None
    assert train.dataset.transform_ops[2].model_dump()["padding"] == border
    del ops[1]
    with pytest.raises(ConfigError, match=r"\[1\]\.Padv2: unknown transform"):
        load_config(tree)


@pytest.mark.parametrize(
    ("spec", "classes", "thresholds"),
    [
        ({"name": "PersonAttribute", "threshold": 0.5}, 26, (0.5, 0.3, *[0.5] * 16, 0.6, *[0.5] * 7)),
        ({"name": "VehicleAttribute", "color_threshold": 0.4}, 19, (*[0.4] * 10, *[0.5] * 9)),
        ({"name": "TableAttribute", "angle_threshold": 0.7}, 6, (*[0.5] * 5, 0.7)),
    ],
)
def test_attributes_get_a_threshold_per_class(spec: Any, classes: int, thresholds: tuple[float, ...]) -> None:
    tree = attributes()
    tree["Infer"] = {"transforms": plain(LCNET)["Infer"]["transforms"], "PostProcess": spec}
    tree["Arch"]["class_num"] = classes
    config = load_config(tree)
    assert config.Infer is not None
    assert config.Infer.PostProcess == MultiLabelThreshOutput(threshold=thresholds)
    tree["Arch"]["class_num"] = classes + 1
    tree["Infer"]["PostProcess"] = {"name": "MultiLabelThreshOutput", "threshold": list(thresholds)}
    with pytest.raises(ConfigError, match=rf"threshold: expected {classes + 1} thresholds, one per class"):
        load_config(tree)


def test_tinynet_has_the_settings_of_paddleclas() -> None:
    settings = {"batch_norm_epsilon": 1e-5, "depth_trunc": "round"}
    tree = plain("TinyNet_A")
    tree["Arch"]["override_params"] = settings
    found = load_config(tree).Arch.options["override_params"]
    assert found == {"batch_norm_momentum": 0.99, "drop_connect_rate": 0.2, **settings}
    tree["Arch"]["name"] = "ResNet50"
    with pytest.raises(ConfigError, match="has no such option; it exists only for EfficientNet, TinyNet"):
        load_config(tree)


def test_vehicle_file_loads_with_its_neck_and_loss() -> None:
    tree = retrieving()
    tree["Global"] |= {"feature_normalize": True, "re_ranking": False}
    tree["Arch"] |= {"is_rec": True}
    tree["Arch"]["Backbone"]["name"] = "ResNet50_last_stage_stride1"
    tree["Arch"]["Neck"] = {"name": "VehicleNeck", "in_channels": 2048, "out_channels": 512}
    tree["Loss"]["Train"][1] = {"SupConLoss": {"weight": 1.0, "views": 2}}
    tree["DataLoader"]["Train"]["dataset"]["name"] = "VeriWild"
    config = load_config(tree)
    assert config.Arch.architectures[0].options["last_stage_stride"] == 1
    assert config.Arch.architectures[0].name == "ResNet50"
    tree["Arch"]["Neck"] = {"name": "ArcMargin", "embedding_size": 2048, "class_num": 512}
    tree["Arch"]["Head"]["name"] = "BNNeck"
    with pytest.raises(ConfigError) as caught:
        load_config(tree)
    assert any(
        "expected FC, VehicleNeck, BNNeck or Tanh, got ArcMargin" in line for line in caught.value.problems
    )


def test_sampler_of_identities_becomes_pk_sampler() -> None:
    tree = retrieving()
    tree["DataLoader"]["Train"]["sampler"] = {
        **{"name": "DistributedRandomIdentitySampler", "batch_size": 64, "num_instances": 4},
        **{"drop_last": False, "shuffle": True},
    }
    train = load_config(tree).DataLoader.Train
    assert train is not None
    assert train.sampler == PKSampler(batch_size=64, sample_per_id=4)


def test_person_file_of_paddleclas_keeps_its_meaning() -> None:
    tree = retrieving()
    tree["Global"] |= {"retrieval_feature_from": "backbone", "feature_binarize": False}
    tree["Arch"]["Backbone"] = {"name": "ResNet50_last_stage_stride1", "stem_act": None}
    train = tree["DataLoader"]["Train"]["dataset"]
    train |= {"name": "Market1501", "cls_label_path": "bounding_box_train", "backend": "pil"}
    train["transform_ops"] = [
        {"ResizeImage": {"size": [128, 256], "return_numpy": False, "backend": "pil"}},
        {"ToTensor": None},
        {"Normalize": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}},
    ]
    tree["DataLoader"]["Eval"] = {
        part: {"dataset": {**train, "cls_label_path": folder}, "sampler": {"batch_size": 4}}
        for part, folder in (("Query", "query"), ("Gallery", "bounding_box_test"))
    }
    tree["Global"]["image_shape"] = [3, 256, 128]
    del tree["Infer"]
    config = load_config(tree)
    assert config.Arch.architectures[0].options["stem_act"] == "none"
    assert config.Global.feature_binarize is None
    assert config.DataLoader.Train is not None
    chain = [spec.kind for spec in config.DataLoader.Train.dataset.transform_ops]
    assert chain == ["DecodeImage", "ResizeImage", "NormalizeImage"]


def test_repeated_augmentation_keeps_its_batch_size() -> None:
    tree = plain("ResNet50")
    tree["DataLoader"]["Train"]["sampler"]["name"] = "RASampler"
    train = load_config(tree).DataLoader.Train
    assert train is not None
    assert train.sampler == RepeatedAugSampler(batch_size=64)


def test_piecewise_ignores_an_epoch_without_a_rate() -> None:
    tree = attributes()
    tree["Optimizer"]["lr"] = {
        **{"name": "Piecewise", "decay_epochs": [12, 18, 24, 28]},
        "values": [0.0001, 0.00001, 0.000001, 0.0000001],
    }
    schedule = load_config(tree).Optimizer.lr
    assert isinstance(schedule, Piecewise)
    assert schedule.decay_epochs == (12, 18, 24)


@pytest.mark.parametrize(
    ("settings", "source"),
    [
        ({"RandAugment": {"num_layers": 2, "magnitude": 5}}, "paddleclas"),
        ({"AutoAugment": None}, "paddleclas"),
        ({"RandAugment": {"source": "paper"}}, "paper"),
        ({"RandAugment": {"monotonic_mag": False}}, "paper"),
        ({"AutoAugment": {"policy": "svhn"}}, "paper"),
    ],
)
def test_policies_of_paddleclas_files_are_those_of_paddleclas(settings: dict[str, Any], source: str) -> None:
    for inference, expected in (("./inference", source), ("./mine", "paper")):
        tree = plain(LCNET)
        tree["Global"]["save_inference_dir"] = inference
        tree["DataLoader"]["Train"]["dataset"]["transform_ops"].insert(1, settings)
        train = load_config(tree).DataLoader.Train
        assert train is not None
        assert train.dataset.transform_ops[1].model_dump()["source"] == expected


MIXUP = {"MixupOperator": {"alpha": 0.2}}
CUTMIX = {"CutmixOperator": {"alpha": 0.2}}
TRAIN = "DataLoader.Train.dataset"
DECODE = {"DecodeImage": {"to_rgb": True}}
RESIZE = {"ResizeImage": {"size": 256}}
NORMALIZE = {"NormalizeImage": {"scale": "1.0/255.0"}}
# A key and its value that differ from PaddleClas's meaning, and a part of the warning
DIFFERENCES: dict[str, tuple[dict[str, Any], str]] = {
    "mixup": (
        {"Loss.Train": [{"CELoss": {}}], f"{TRAIN}.batch_transform_ops": [MIXUP]},
        "applies softmax to",
    ),
    "cutmix": (
        {"Loss.Train": [{"CELoss": {}}], f"{TRAIN}.batch_transform_ops": [CUTMIX]},
        "applies softmax to",
    ),
    "weight of one loss": (
        {"Loss.Train": [{"CELoss": {"epsilon": 0.1, "weight": 0.5}}]},
        "CELoss.weight: PaddleClas ignores the weight of a single loss; ppcls multiplies the loss by 0.5",
    ),
    "flat parameters": (
        {"Optimizer": {"one_dim_param_no_weight_decay": True}},
        "PaddleClas's Momentum ignores this key if no_weight_decay_name is not set",
    ),
    "last_epoch": ({"Optimizer.lr": {"last_epoch": 0}}, "0 puts the schedule one update ahead"),
    "warm-up": ({"Global.epochs": 5, "Optimizer.lr": {"warmup_epoch": 5}}, "is shortened to 2.5 epochs"),
    "part of an update": ({"Optimizer.lr": {"warmup_epoch": 0.3}}, "whole updates"),
    "one cycle": (
        {"Optimizer.lr": {"name": "OneCycleLR", "max_learning_rate": 0.1, "learning_rate": None}},
        "reaches end_learning_rate after the last update",
    ),
    "plateau": ({"Optimizer.lr": {"name": "ReduceOnPlateau", "factor": 0.1, "patience": 3}}, "compares"),
    **{
        name: ({f"{TRAIN}.transform_ops": [DECODE, RESIZE, {name: keys}, NORMALIZE]}, f"transform_ops.{name}")
        for name, keys in {
            "RandCropImageV2": {"size": 224},
            "RandomRotation": {"degrees": 10, "interpolation": "bilinear"},
            "Cutout": {"n_holes": 1, "length": 16},
        }.items()
    },
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_differences_of_paddleclas_files_are_announced_if_a_file_uses_them(name: str) -> None:
    changes, expected = DIFFERENCES[name]
    text = {}
    for used in (False, True):
        tree = plain(LCNET)
        tree["Global"]["save_inference_dir"] = "./inference"
        tree["Optimizer"]["lr"] = {"name": "Cosine", "learning_rate": 0.1}
        for path, value in changes.items() if used else ():
            *sections, key = path.split(".")
            section = tree
            for part in sections:
                section = section[part]
            merged = {**section[key], **value} if isinstance(value, dict) else value
            section[key] = (
                {k: v for k, v in merged.items() if v is not None} if isinstance(merged, dict) else merged
            )
        text[used] = "\n".join(config_warnings(load_config(tree)))
    assert expected in text[True]
    assert expected not in text[False]


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("smoothed", [True, False])
def test_differences_of_distillation_are_announced(frozen: bool, smoothed: bool) -> None:
    tree = plain(LCNET)
    tree["Global"]["save_inference_dir"] = "./inference"
    tree["Arch"] = {"name": "DistillationModel", "class_num": 10, "freeze_params_list": [frozen, False]}
    member = {"name": LCNET, "pretrained": "teacher.pdparams"}
    tree["Arch"]["models"] = [{"Teacher": member}, {"Student": member}]
    learners = ["Student"] if frozen else ["Student", "Teacher"]
    epsilon = {"epsilon": 0.1} if smoothed else {}
    tree["Loss"]["Train"] = [{"DistillationGTCELoss": {"model_names": learners, **epsilon}}]
    tree["DataLoader"]["Train"]["dataset"]["batch_transform_ops"] = [MIXUP]
    text = "\n".join(config_warnings(load_config(tree)))
    assert ("PaddleClas runs frozen models (Teacher) in training mode" in text) == frozen
    assert ("PaddleClas applies softmax to the labels that MixupOperator mixes" in text) != smoothed


def asymmetric(**keys: Any) -> dict[str, Any]:
    tree = attributes()
    tree["Global"]["save_inference_dir"] = "./inference"
    tree["Loss"]["Train"] = [{"MultiLabelAsymmetricLoss": keys}]
    return tree


def test_loss_that_paddleclas_sums_over_images_is_announced() -> None:
    summed, averaged = (
        "\n".join(config_warnings(load_config(asymmetric(**keys)))) for keys in ({}, {"reduction": "mean"})
    )
    assert "MultiLabelAsymmetricLoss.reduction: PaddleClas sums over the images of a batch" in summed
    assert "sums over the images" not in averaged


def test_terms_that_paddleclas_ignores_are_announced() -> None:
    tree = plain(LCNET)
    tree["Global"]["save_inference_dir"] = "./inference"
    tree["Arch"] = {"name": "DistillationModel", "class_num": 10, "freeze_params_list": [False, False]}
    tree["Arch"]["models"] = [{"Teacher": {"name": LCNET}}, {"Student": {"name": LCNET}}]
    both = {"DistillationGTCELoss": {"model_names": ["Teacher", "Student"]}}
    mutual = {"DistillationDMLLoss": {"model_name_pairs": [["Student", "Teacher"]]}}
    tree["Loss"]["Train"] = [both]
    expected = "DistillationGTCELoss: PaddleClas uses only the first of its 2 terms"
    assert expected in "\n".join(config_warnings(load_config(tree)))
    tree["Loss"]["Train"] = [both, mutual]
    assert expected not in "\n".join(config_warnings(load_config(tree)))


def as_text(value: Any, form: str) -> Any:
    """The value with all floats as text in another form; with ``int``, whole ones as integers."""
    if isinstance(value, dict):
        return {key: as_text(content, form) for key, content in value.items()}
    if isinstance(value, list):
        return [as_text(content, form) for content in value]
    if not isinstance(value, float):
        return value
    if form == "int":
        return int(value) if value.is_integer() else value
    return form.format(value)


@pytest.mark.parametrize("form", ["{!r}", "{:.17e}", "{:.17E}", "{:+}", "int"])
@pytest.mark.parametrize("name", ["ResNet50_modern", "fashion_mnist_wrn", "cells"])
def test_all_numbers_of_a_config_may_be_text(name: str, form: str) -> None:
    tree = yaml.safe_load(dump_config(load_config(ROOT / "configs" / f"{name}.yaml")))
    assert load_config(as_text(tree, form)).model_dump() == load_config(tree).model_dump()


@pytest.mark.parametrize("text", ["2e-6", "1E-3", "+5e-2", "1.e-1"])
def test_numbers_that_safe_load_returns_as_text_are_numbers(text: str) -> None:
    tree = plain(LCNET)
    tree["Optimizer"]["lr"] = {"name": "Cosine", "learning_rate": yaml.safe_load(text)}
    assert load_config(tree).Optimizer.lr.learning_rate == float(text)


def test_repeated_topk_is_reported_once() -> None:
    tree = plain("ResNet50")
    tree["Metric"]["Eval"] = [{"TopkAcc": {"topk": [1, 1]}}]
    assert load_config(tree).Metric.Eval[0].names == ("top1",)


def test_random_interpolation_and_colour_of_timm_are_accepted() -> None:
    tree = plain("ResNet50")
    ops = tree["DataLoader"]["Train"]["dataset"]["transform_ops"]
    ops[1]["RandCropImage"] |= {"interpolation": "random", "backend": "pil"}
    ops.insert(3, {"TimmAutoAugment": {"mean": [0.5, 0.5, 0.5], "interpolation": "random"}})
    config = load_config(tree)
    assert any("TimmAutoAugment.mean has no effect" in line for line in config_warnings(config))
    assert config.DataLoader.Train is not None
    assert config.DataLoader.Train.dataset.transform_ops[1].draws == 5


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("base_config_file", "ppcls tune"),
        ("ARCHITECTURE", "static engine"),
    ],
)
def test_file_of_another_program_is_rejected_with_one_line(key: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        load_config({key: {}, "other": 1})
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize("loss", ["DCHLoss", "LCDSHLoss"])
def test_file_of_deep_hashing_keeps_the_last_layer(loss: str) -> None:
    tree = retrieving()
    tree["Global"] |= {"feature_normalize": False, "feature_binarize": "sign"}
    tree["Arch"] = {"name": "RecModel", "Backbone": {"name": "AlexNet", "class_num": 48}}
    tree["Loss"] = {"Train": [{loss: {"_lambda": 0.2, "n_class": 10}}], "Eval": [{loss: {"_lambda": 0.2}}]}
    tree["Metric"] = {"Eval": [{"mAP": {}}]}
    config = load_config(tree)
    assert isinstance(config.Arch, RecModel)
    assert config.Arch.BackboneStopLayer.name == "none"
    assert config.Loss.Train[0].model_dump()["quantization"] == 0.2


def test_hash_codes_have_as_many_bits_as_the_backbone_has_classes() -> None:
    tree = {
        **{"name": "RecModel", "Backbone": {"name": "PPLCNet_x0_25", "class_num": 48}},
        **{"BackboneStopLayer": {"name": "none"}, "Neck": {"name": "Tanh"}},
        "Head": {"name": "FC", "embedding_size": 48, "class_num": 5},
    }
    model = build_network(RecModel.model_validate(tree))
    model.eval()
    outputs = model(10 * paddle.randn([2, 3, 64, 64]))
    assert outputs["features"].shape == [2, 48]
    assert float(outputs["features"].abs().max()) <= 1
    assert outputs["logits"].shape == [2, 5]


def center_loss(rates: dict[str, Any]) -> dict[str, Any]:
    """A file of re-identification whose centers have an optimizer of their own."""
    tree = retrieving()
    model = {"scope": "RecModel", "lr": {"name": "Cosine", "learning_rate": 0.1}}
    tree["Optimizer"] = [{"Momentum": model}, {"SGD": {"scope": "CenterLoss", "lr": rates}}]
    center = {"num_classes": tree["Arch"]["Head"]["class_num"], "feat_dim": 2048, "feature_from": "backbone"}
    tree["Loss"]["Train"].append({"CenterLoss": {"weight": 0.0005, **center}})
    return tree


def test_optimizer_of_center_loss_becomes_its_rate() -> None:
    config = load_config(center_loss({"name": "ConstLR", "learning_rate": 1000.0}))
    assert config.Optimizer.kind == "Momentum"
    loss = config.Loss.Train[-1]
    assert isinstance(loss, CenterLoss)
    assert (loss.weight, loss.center_rate) == (0.0005, 1000.0)


def test_other_lists_of_optimizers_are_errors() -> None:
    with pytest.raises(ConfigError, match="expected one optimizer for all parameters, got a list"):
        load_config(center_loss({"name": "Cosine", "learning_rate": 1000.0}))


def test_drawn_label_of_pulc_loads() -> None:
    tree = plain(LCNET)
    tree["Arch"]["class_num"] = 2
    tree["Metric"] = {"Eval": [{"TopkAcc": {"topk": 1}}]}
    tree["Infer"]["PostProcess"] = {"name": "Topk", "topk": 1}
    dataset = tree["DataLoader"]["Train"]["dataset"]
    del dataset["cls_label_path"]
    dataset |= {"name": "CustomLabelDataset", "sample_list_path": "list.txt", "label_key": "blur_image"}
    dataset["transform_ops"].insert(1, {"BlurImage": None})
    config = load_config(tree)
    loaded = config.DataLoader.need_train().dataset
    assert isinstance(loaded, CustomLabelDataset)
    assert loaded.drawn_label is not None
    assert loaded.transform_ops[loaded.drawn_label] == BlurImage()


def test_googlenet_needs_its_loss_and_the_loss_needs_googlenet() -> None:
    tree = plain("GoogLeNet")
    losses = {part: [{"GoogLeNetLoss": {"weight": 1.0}}] for part in ("Train", "Eval")}
    accuracies = {part: [{"GoogLeNetTopkAcc": {"topk": [1, 5]}}] for part in ("Train", "Eval")}
    assert load_config({**tree, "Loss": losses, "Metric": accuracies}).Metric.Eval == (TopkAcc(),)
    with pytest.raises(
        ConfigError, match=r"Loss\.Train: the auxiliary classifiers of GoogLeNet need GoogLeNetLoss"
    ):
        load_config(tree)
    with pytest.raises(ConfigError, match=r"GoogLeNetLoss: needs auxiliary classifiers"):
        load_config({**plain("ResNet18"), "Loss": losses})


def test_policy_without_name_is_no_policy() -> None:
    tree = plain("FasterNet_T0")
    ops = tree["DataLoader"]["Train"]["dataset"]["transform_ops"]
    ops.insert(3, {"TimmAutoAugment": {"config_str": None}})
    kinds = [spec.kind for spec in load_config(tree).DataLoader.need_train().dataset.transform_ops]
    assert kinds == ["DecodeImage", "RandCropImage", "RandFlipImage", "NormalizeImage"]
