"""PaddleClas's files load unchanged, older keys are translated, and keys without effect are reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from paddleclas_trees import (
    BOTH,
    LABELS,
    MGD,
    PAIRS,
    PEFD,
    POOLED,
    RKD,
    STAGES,
    Tree,
    attentive,
    attributes,
    automatic,
    averaged,
    by_steps,
    compiled,
    distilled,
    diverse,
    half,
    in_bfloat16,
    mixed_up,
    modern,
    older_half,
    patterned,
    piecewise,
    plain,
    published,
    retrieving,
    several_sizes,
    strikes_back,
    transformer,
)
from paths import ROOT
from quickstart import problems

from ppcls.errors import UserError
from ppcls.recipe.compat import config_warnings
from ppcls.recipe.load import dump_config, load_config, validate

FAMILIES: dict[str, Callable[[], Tree]] = {
    **{
        name: lambda name=name: plain(name)
        for name in ("GhostNet_x1_0", "RepVGG_A0", "PPLCNet_x1_0", "VGG16")
    },
    **{name: lambda name=name: plain(name) for name in ("MobileNetV3_small_x1_0", "ShuffleNetV2_x0_25")},
    **{name: lambda name=name: plain(name) for name in ("MobileNetV2", "RegNetX_4GF", "PPLCNet_x1_0")},
    **{name: lambda name=name: mixed_up(name) for name in ("ResNet50_vd", "Res2Net50_26w_4s")},
    **{name: lambda name=name: piecewise(name) for name in ("ResNet50", "ResNeXt50_32x4d", "DenseNet121")},
    **{
        name: lambda name=name: piecewise(name)
        for name in ("MobileNetV1", "ViT_base_patch16_224", "SE_ResNet18_vd")
    },
    "EfficientNetB0": lambda: automatic("EfficientNetB0"),
    "DeiT": lambda: transformer("DeiT_tiny_patch16_224", drop_path_rate=0.1, drop_rate=0.0),
    "Swin": lambda: transformer(
        "SwinTransformer_tiny_patch4_window7_224", use_fused_attn=False, use_fused_linear=False
    ),
    "ConvNeXt_tiny": lambda: averaged("ConvNeXt_tiny"),
    "PPHGNet_small": lambda: modern("PPHGNet_small"),
    "PPHGNetV2_B4": lambda: published("PPHGNetV2_B4"),
    "ResNet50 in float16": lambda: half("ResNet50"),
    "SE_ResNeXt101_32x4d in float16": lambda: half("SE_ResNeXt101_32x4d"),
    "SE_ResNeXt101_32x4d in float16, by older names": lambda: older_half("SE_ResNeXt101_32x4d"),
    "ResNet50 in bfloat16": in_bfloat16,
    "ResNet50 strikes back": strikes_back,
    "PPLCNetV2_base": several_sizes,
    "SSLD": lambda: distilled("ResNet50_vd", "PPLCNet_x2_5", {"DistillationDMLLoss": PAIRS}),
    "a large one's softmax": lambda: distilled(
        "MobileNetV3_large_x1_0", "MobileNetV3_small_x1_0", {"DistillationCELoss": PAIRS}, dropout_prob=None
    ),
    "one another": lambda: distilled(
        "PPLCNet_x0_25",
        "PPLCNet_x0_25",
        BOTH,
        {"DistillationDMLLoss": PAIRS | {"key": "logits"}},
        frozen=False,
    ),
    "DKD": by_steps,
    "a layer of both": lambda: distilled(
        "PPLCNet_x2_5",
        "PPLCNet_x2_5",
        BOTH,
        {"DistillationDistanceLoss": PAIRS | {"key": "blocks5"}},
        frozen=False,
        return_patterns=["blocks3", "blocks4", "blocks5", "blocks6"],
    ),
    "relations": lambda: patterned(STAGES, LABELS, {"DistillationRKDLoss": PAIRS | RKD}),
    "MGD": lambda: patterned(
        STAGES,
        LABELS,
        {"DistillationPairLoss": PAIRS | MGD | {"student_channels": 512, "teacher_channels": 512}},
    ),
    "PEFD": lambda: patterned(
        POOLED,
        LABELS,
        {"DistillationPairLoss": PAIRS | PEFD | {"student_channel": 512, "teacher_channel": 512}},
    ),
    "WSL": lambda: distilled(
        "ResNet34", "ResNet18", LABELS, {"DistillationWSLLoss": PAIRS | {"temperature": 2}}
    ),
    "SKD": lambda: distilled(
        "ResNet34",
        "ResNet18",
        {"DistillationSKDLoss": PAIRS | {"temperature": 1.0, "multiplier": 2.0, "alpha": 0.9}},
    ),
    "DIST": lambda: distilled("ResNet34", "ResNet18", LABELS, {"DistillationDISTLoss": PAIRS}),
    "AFD": attentive,
    "SSLD, compiled": compiled,
    "ResNet18 of diverse branches": diverse,
    "retrieval": retrieving,
    "attributes": attributes,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_paddleclas_config_survives_a_dump(family: str) -> None:
    config = load_config(FAMILIES[family]())
    again = validate(yaml.safe_load(dump_config(config)), "dump")
    assert dump_config(again) == dump_config(config)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (
            lambda: patterned(STAGES, LABELS, {"DistillationPairLoss": {"base_loss_name": "ReviewKDLoss"}}),
            r"Loss.Train\[1\].DistillationPairLoss.base_loss_name: expected 'MGDLoss' or 'PEFDLoss', got",
        ),
        (
            lambda: distilled("ResNet34", "ResNet18", {"DistillationGuidedDMLLoss": PAIRS}),
            r"DistillationGuidedDMLLoss: unknown loss; did you mean 'DistillationDMLLoss'",
        ),
        (
            lambda: plain("ResNet50") | {"Arch": {"name": "ResNet50", "layer_type": "DiverseBranchBlock"}},
            r"Arch.layer_type: ResNet50 has no such option; it exists only for ResNet with basic blocks",
        ),
        (
            lambda: plain("ResNet50") | {"Slim": {"quant": {"name": "pact"}}},
            "Slim: unknown key; quantization .* ppcls export --precision int8 --format onnx",
        ),
    ],
)
def test_paddleclas_config_unsupported_feature_is_named(tree: Callable[[], Tree], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_config(tree())


def small(**sections: Any) -> Tree:
    schedule = {"name": "Constant", "learning_rate": 0.1}
    optimizer = {"name": "Momentum", "lr": schedule, **sections.pop("optimizer", {})}
    return {"Arch": {"name": "ResNet18"}, "Optimizer": optimizer, **sections}


@pytest.mark.parametrize(
    ("sections", "level", "dtype"),
    [
        ({"AMP": {"scale_loss": 128.0, "use_pure_fp16": True}}, "O2", "float16"),
        ({"AMP": {"use_pure_fp16": False}}, "O1", "float16"),
        ({"AMP": {"use_pure_fp16": True, "amp_level": "O2"}}, "O2", "float16"),
        ({"AMP": {"use_pure_fp16": True, "amp_level": "O1"}}, "O1", "float16"),
        ({"AMP_BF16": {"use_pure_bf16": False}}, "O1", "bfloat16"),
        ({"AMP_BF16": {"use_pure_bf16": True}}, "O2", "bfloat16"),
        ({"AMP": {"level": "O2"}}, "O2", "float16"),
    ],
)
def test_translate_amp_keys_returns_level_and_dtype(sections: dict[str, Any], level: str, dtype: str) -> None:
    amp = load_config(small(**sections)).AMP
    assert amp is not None
    assert (amp.use_amp, amp.level, amp.dtype) == (True, level, dtype)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"AMP": {"level": "O1", "use_pure_fp16": True}}, "AMP.use_pure_fp16: unknown key; write level: O2"),
        ({"AMP": {"use_pure_fp16": "yes"}}, "AMP.use_pure_fp16: unknown key; write level: O2"),
        ({"AMP": {"amp_level": "O3"}}, "AMP.amp_level: unknown key; did you mean 'level'"),
        ({"AMP": {"level": "O1"}, "AMP_BF16": {}}, "AMP_BF16: unknown key; write AMP with dtype"),
        ({"AMP_BF16": True}, "AMP_BF16: unknown key; write AMP with dtype"),
        ({"Metric": {"Eval": [{"Topk": {"k": [1, 5]}}]}}, "Topk: unknown metric; write TopkAcc, with topk"),
    ],
)
def test_translate_ambiguous_or_wrong_keys_are_reported(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_config(small(**sections))


@pytest.mark.parametrize(("scale", "name"), [(1.0, "PPLCNet_x1_0"), (0.25, "PPLCNet_x0_25")])
def test_translate_architecture_with_scale_returns_the_name_with_its_scale(scale: float, name: str) -> None:
    arch = {"name": "PPLCNet", "scale": scale, "act": "hardswish", "class_num": 7}
    found = load_config(small(Arch=arch)).Arch
    assert (found.name, found.class_num) == (name, 7)
    for other in ({"scale": 3.0}, {"act": "relu"}, {"name": "ResNet18"}):
        with pytest.raises(UserError, match=r"Arch.(name|scale): unknown"):
            load_config(small(Arch=arch | other))


def test_translate_global_class_num_sets_the_classes_of_the_architecture() -> None:
    config = load_config(small(Global={"class_num": 10}))
    assert config.Arch.class_num == 10
    assert config_warnings(config) == []
    with pytest.raises(
        UserError, match=r"Arch.class_num: expected an integer > 0 and <= 10000000 or auto, got"
    ):
        load_config(small(Global={"class_num": -1}))


def test_metric_train_null_is_empty() -> None:
    config = load_config(small(Metric={"Train": None}))
    assert config.Metric.Train == ()
    assert len(config.Metric.Eval) == 1


@pytest.mark.parametrize(
    ("tree", "warnings"),
    [
        (small(optimizer={"clip_norm": 5.0}), []),
        (small(optimizer={"clip_grad": 5.0}), ["Optimizer.clip_grad has no effect; clip_norm or clip_value"]),
        (
            small(optimizer={"lr": {"name": "Constant", "learning_rate": 1, "step_each_epoch": 1}}),
            ["Optimizer.lr.step_each_epoch has no effect; "],
        ),
        (
            small(optimizer={"weight_decay": 1e-4, "regularizer": {"name": "L2", "coeff": 1e-5}}),
            ["Optimizer.weight_decay has no effect; Optimizer.regularizer"],
        ),
        (
            small(Global={"class_num": 10}, Arch={"name": "ResNet18", "class_num": 7}),
            ["Global.class_num has no effect; set Arch.class_num instead"],
        ),
        (compiled(), ["Global.to_static has no effect; DistillationModel is never compiled"]),
    ],
)
def test_config_warnings_name_keys_without_effect(tree: Tree, warnings: list[str]) -> None:
    found = [line for line in config_warnings(load_config(tree)) if "has no effect" in line]
    assert len(found) == len(warnings)
    for line, expected in zip(found, warnings, strict=True):
        assert line.startswith(f"warning: {expected}")


def test_weight_decay_is_replaced_by_a_regularizer() -> None:
    assert load_config(small(optimizer={"weight_decay": 1e-4})).Optimizer.decay == 1e-4
    both = {"weight_decay": 1e-4, "regularizer": {"name": "L2", "coeff": 1e-5}}
    assert load_config(small(optimizer=both)).Optimizer.decay == 1e-5


def test_dropout_prob_is_accepted_for_some_architectures_only() -> None:
    config = load_config(small(Arch={"name": "MobileNetV3_small_x0_35", "dropout_prob": None}))
    assert config.Arch.options == {"dropout_prob": 0.0}
    assert validate(yaml.safe_load(dump_config(config)), "dump") == config
    (problem,) = problems("Arch.dropout_prob=0.5")
    assert problem.startswith(
        "Arch.dropout_prob: ResNet18 has no such option; it exists only for MobileNetV3"
    )


def test_config_warnings_report_a_shortened_warmup() -> None:
    overrides = {"Global.epochs": 1, "Optimizer.lr.warmup_epoch": 5}
    (warning,) = config_warnings(load_config(ROOT / "configs/quickstart.yaml", overrides))
    assert warning.startswith(
        "warning: Optimizer.lr.warmup_epoch (5) is not less than Global.epochs (1), so "
    )
    assert warning.endswith("the warm-up is shortened to 0.5 epochs")


@pytest.mark.parametrize(
    ("folder", "expected"),
    [("./output/", "./output/ResNet50"), ("output", "output"), ("./output/mine", "./output/mine")],
)
def test_default_output_folder_gets_the_name_of_the_architecture(folder: str, expected: str) -> None:
    tree = plain("ResNet50")
    tree["Global"]["output_dir"] = folder
    assert load_config(tree).Global.output_dir == expected


@pytest.mark.parametrize(
    ("folder", "expected"), [("./inference", "./output/ResNet50/inference"), ("inference", "inference")]
)
def test_default_folder_of_exported_models_is_in_the_output_folder(folder: str, expected: str) -> None:
    tree = plain("ResNet50")
    tree["Global"]["save_inference_dir"] = folder
    assert Path(load_config(tree).Global.save_inference_dir) == Path(expected)
