"""The keys and values of PaddleClas's files for ImageNet load as they are."""

from __future__ import annotations

from collections.abc import Callable

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

from ppcls.config.compat import config_warnings
from ppcls.config.load import dump_config, load_config, validate
from ppcls.errors import UserError

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
def test_a_family_loads_as_it_is_and_says_itself_again(family: str) -> None:
    config = load_config(FAMILIES[family]())
    again = validate(yaml.safe_load(dump_config(config)), "the dump")
    assert dump_config(again) == dump_config(config)


def test_what_is_not_compiled_is_told() -> None:
    lines = config_warnings(load_config(compiled()))
    assert lines == ["warning: Global.to_static has no effect; a DistillationModel is not compiled"]


@pytest.mark.parametrize(
    ("tree", "says"),
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
            r"Arch.layer_type: ResNet50 has no such option, only ResNet of basic blocks; remove it",
        ),
        (lambda: plain("ResNet50") | {"Slim": {"quant": {"name": "pact"}}}, "Slim: unknown key; .* quantiz"),
    ],
)
def test_what_is_not_there_is_refused_by_its_place(tree: Callable[[], Tree], says: str) -> None:
    with pytest.raises(UserError, match=says):
        load_config(tree())
