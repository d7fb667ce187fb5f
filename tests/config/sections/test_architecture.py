"""What a config knows of architectures, and what it says of images that they do not take."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from paths import ROOT

from ppcls.config.base.errors import ConfigError
from ppcls.config.load import apply_override, read_tree, validate
from ppcls.config.schema import Config
from ppcls.config.sections.model import options, published_side, published_weights, wrong_size
from ppcls.registry import ARCHITECTURES

TREE = read_tree(ROOT / "configs/quickstart.yaml")
SWIN = "SwinTransformer_tiny_patch4_window7_224"


def read(*overrides: str) -> Config:
    tree = copy.deepcopy(TREE)
    for each in overrides:
        apply_override(tree, each)
    return validate(tree, "tree")


def problems(*overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        read(*overrides)
    return list(error.value.problems)


def test_paddleclas_options_are_read() -> None:
    convnext = read(
        "Arch.name=ConvNeXt_tiny",
        "Arch.drop_path_rate=0.1",
        "Arch.layer_scale_init_value=1e-6",
        "Arch.head_init_scale=1.0",
    )
    assert convnext.Arch.options == {
        "drop_path_rate": 0.1,
        "layer_scale_init_value": 1e-6,
        "head_init_scale": 1.0,
    }
    deit = read(
        "Arch.name=DeiT_tiny_patch16_224",
        "Arch.img_size=32",
        "Arch.drop_path_rate=0.1",
        "Arch.drop_rate=0.0",
    )
    assert deit.Arch.options == {"img_size": 32, "drop_path_rate": 0.1, "drop_rate": 0.0}
    swin = read(f"Arch.name={SWIN}", "Arch.use_fused_attn=False", "Arch.use_fused_linear=False")
    assert swin.Arch.options == {}


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (
            ["Arch.drop_path_rate=0.1"],
            "Arch.drop_path_rate: ResNet18 has no such option, "
            "only ConvNeXt_*, ViT_*, DeiT_*, SwinTransformer_*; remove it",
        ),
        (
            [f"Arch.name={SWIN}", "Arch.img_size=32"],
            f"Arch.img_size: {SWIN} has no such option, only ViT_*, DeiT_*; remove it",
        ),
        ([f"Arch.name={SWIN}", "Arch.use_fused_attn=True"], "Arch.use_fused_attn: expected False, got True"),
        (
            ["Arch.name=DeiT_tiny_patch16_224", "Arch.img_size=40"],
            "Arch.img_size: expected a multiple of 16, the side of DeiT_tiny_patch16_224's patches, got 40",
        ),
        (
            [f"Arch.name={SWIN}", "Arch.drop_path_rate=1.0"],
            "Arch.drop_path_rate: expected a number >= 0 and < 1, got 1.0",
        ),
    ],
)
def test_a_wrong_option_is_named(overrides: list[str], text: str) -> None:
    assert problems(*overrides) == [text]


def test_images_of_another_size_are_an_error_before_any_is_read() -> None:
    found = "makes images of 32 x 32, but Arch.name=ViT_base_patch16_384 takes 384 x 384; "
    cure = "set Arch.img_size=32, or change the size"
    assert problems("Arch.name=ViT_base_patch16_384") == [
        f"{place}: {found}{cure}"
        for place in (
            "DataLoader.Train.dataset.transform_ops",
            "DataLoader.Eval.dataset.transform_ops",
            "Infer.transforms",
        )
    ]
    assert problems(
        "Arch.name=DeiT_tiny_patch16_224",
        "Arch.img_size=32",
        "DataLoader.Train.input_size.name=MultiScale",
        "DataLoader.Train.input_size.sizes=[32, 48]",
    ) == [
        "DataLoader.Train.input_size.sizes: 48 x 48, but Arch.name=DeiT_tiny_patch16_224 takes 32 x 32; "
        "set Arch.img_size=48, or change the size"
    ]


def test_what_is_wrong_with_a_size_and_what_to_do() -> None:
    base = "ViT_base_patch16_224"
    assert wrong_size(base, None, (224, 224)) == ""
    assert wrong_size(base, None, (384, 384)) == (
        f"384 x 384, but Arch.name={base} takes 224 x 224; "
        "set Arch.name=ViT_base_patch16_384, or change the size"
    )
    assert wrong_size(base, None, (240, 320)).endswith("takes 224 x 224; make them square")
    assert wrong_size(base, None, (250, 250)).endswith("takes 224 x 224; change the size")
    assert wrong_size(base, 64, (64, 64)) == ""
    assert wrong_size("ConvNeXt_tiny", None, (32, 40)) == ""
    assert (
        wrong_size("ConvNeXt_tiny", None, (31, 40))
        == "31 x 40, but Arch.name=ConvNeXt_tiny needs at least 32 x 32"
    )
    assert wrong_size("googlenet", None, (189, 236)) == ""
    assert (
        wrong_size("googlenet", None, (96, 224))
        == "96 x 224, but Arch.name=googlenet takes sides of 189 to 236 pixels; change the size"
    )
    assert wrong_size("LeNet", None, (32, 32)) != ""
    assert wrong_size(SWIN, None, (1, 500)) == ""
    assert wrong_size("ResNet50", None, (1, 1)) == ""


def test_published_sides() -> None:
    sides = {name: published_side(name) for name in ARCHITECTURES if options(name)}
    assert {side for side in sides.values() if side} == {224, 384}
    assert sides["SwinTransformer_base_patch4_window12_384"] == 384
    assert published_side("ConvNeXt_tiny") is None
    assert published_side("ResNeXt101_32x4d") is None


def test_published_weights_of_branches_are_others() -> None:
    plain = read("Arch={name: ResNet18, class_num: 10, pretrained: True}").Arch.weights
    assert plain is not None
    assert plain.endswith("/ResNet18_pretrained.pdparams")
    branched = "Arch={name: ResNet18, class_num: 10, pretrained: True, layer_type: DiverseBranchBlock}"
    assert read(branched).Arch.weights == plain.replace("ResNet18", "ResNet18_dbb")


@pytest.mark.parametrize("ssld", [True, False])
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("PPHGNetV2_B0", "PPHGNetV2_B0_ssld_stage1_pretrained.pdparams"),
        (
            "SwinTransformer_large_patch4_window7_224",
            "SwinTransformer_large_patch4_window7_224_22kto1k_pretrained.pdparams",
        ),
    ],
)
def test_a_family_that_has_one_kind_of_published_weights_takes_it(name: str, file: str, ssld: bool) -> None:
    assert Path(published_weights(name, ssld)).name == file
