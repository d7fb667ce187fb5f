"""The section Arch: options of architectures, and errors for images that a model does not accept."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from quickstart import problems, read

from ppcls.arch.batch_statistics import batch_norms
from ppcls.errors import UserError
from ppcls.zoo import families_with

SWIN = "SwinTransformer_tiny_patch4_window7_224"


def test_options_of_paddleclas_are_accepted() -> None:
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


@pytest.mark.parametrize("name", ["ResNet18", "DeiT_tiny_patch16_224", "WideResNet"])
def test_momentum_of_batch_norm_is_that_of_the_config(name: str) -> None:
    if name == "DeiT_tiny_patch16_224":
        with pytest.raises(UserError, match="DeiT_tiny_patch16_224 has no BatchNorm layer; remove this key"):
            read(f"Arch.name={name}", "Arch.img_size=32", "Arch.batch_norm_momentum=0.5").Arch.build()
        return
    paddle.seed(0)
    model = read(f"Arch.name={name}", "Arch.batch_norm_momentum=0.5").Arch.build()
    norms = list(batch_norms(model))
    before = [norm._mean.numpy().copy() for norm in norms]
    images = paddle.rand([4, 3, 32, 32])
    model.train()
    first = norms[0]
    seen = []
    first.register_forward_pre_hook(lambda _layer, inputs: seen.append(inputs[0].mean([0, 2, 3]).numpy()))
    model(images)
    np.testing.assert_allclose(first._mean.numpy(), (before[0] + seen[0]) / 2, rtol=1e-4, atol=1e-6)
    assert {norm._momentum for norm in norms} == {0.5}


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (
            ["Arch.drop_path_rate=0.1"],
            "Arch.drop_path_rate: ResNet18 has no such option; "
            f"it exists only for {', '.join(families_with('drop_path_rate'))}; remove it; "
            "options of ResNet18 itself: layer_type, use_first_short_conv, last_stage_stride, stem_act, "
            "stride_list",
        ),
        (
            [f"Arch.name={SWIN}", "Arch.img_size=32"],
            f"Arch.img_size: {SWIN} has no such option; "
            f"it exists only for {', '.join(families_with('img_size'))}; remove it; "
            f"options of {SWIN} itself: drop_path_rate, drop_rate, attn_drop_rate, shift_single_window",
        ),
        (
            ["Arch.name=VGG16", "Arch.depth=4"],
            "Arch.depth: VGG16 has no such option; it exists only for WideResNet; remove it; options of "
            "VGG16 itself: none",
        ),
        (
            ["Arch.name=VGG16", "Arch.wide_block=other"],
            "Arch.wide_block: VGG16 has no such option; it exists only for WideResNet; remove it; options of "
            "VGG16 itself: none",
        ),
        (
            ["Arch.name=VGG16", "Arch.pretrained=True", "Arch.shift_single_window=False"],
            "Arch.shift_single_window: VGG16 has no such option; it exists only for SwinTransformer; remove "
            "it; options of VGG16 itself: none",
        ),
        ([f"Arch.name={SWIN}", "Arch.use_fused_attn=True"], "Arch.use_fused_attn: expected False, got True"),
        (
            ["Arch.name=DeiT_tiny_patch16_224", "Arch.img_size=40"],
            "Arch.img_size: expected a multiple of 16, the side of DeiT_tiny_patch16_224's patches, got 40",
        ),
        (
            ["Arch.name=DeiT_tiny_patch16_224", "Arch.patch_size=3", "Arch.img_size=28"],
            "Arch.img_size: expected a multiple of 3, the side of DeiT_tiny_patch16_224's patches, got 28",
        ),
        (
            [f"Arch.name={SWIN}", "Arch.drop_path_rate=1.0"],
            "Arch.drop_path_rate: expected a number >= 0 and < 1, got 1.0",
        ),
        (
            ["Arch.name=PPLCNet_x0_25", "Arch.stride_list=[2, 2, [2, 10000000000], 2, 2]"],
            "Arch.stride_list: expected strides of at most 16384, got 10000000000",
        ),
    ],
)
def test_invalid_option_is_rejected(overrides: list[str], text: str) -> None:
    assert problems(*overrides) == [text]


def test_image_size_that_model_rejects_is_reported() -> None:
    found = "produces images of 32 x 32, but Arch.name=ViT_base_patch16_384 accepts only 384 x 384; "
    fix = "set Arch.img_size=32, or change the size"
    assert problems("Arch.name=ViT_base_patch16_384") == [
        f"{place}: {found}{fix}"
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
        "DataLoader.Train.input_size.sizes: 48 x 48, but Arch.name=DeiT_tiny_patch16_224 accepts only "
        "32 x 32; "
        "set Arch.img_size=48, or change the size"
    ]


def test_pretrained_branches_use_their_own_weights_file() -> None:
    plain = read("Arch={name: ResNet18, class_num: 10, pretrained: True}").Arch.weights
    assert plain is not None
    assert plain.endswith("/ResNet18_pretrained.pdparams")
    branched = "Arch={name: ResNet18, class_num: 10, pretrained: True, layer_type: DiverseBranchBlock}"
    assert read(branched).Arch.weights == plain.replace("ResNet18", "ResNet18_dbb")


def test_googlenet_is_only_a_single_classifier_without_options() -> None:
    text = "GoogLeNet is only supported as Arch.name; choose another architecture"
    backbone = "Arch={name: RecModel, Backbone: {name: GoogLeNet}}"
    assert problems(backbone) == [f"Arch.Backbone.name: {text}"]
    models = "Arch={name: DistillationModel, models: [Student: {name: ResNet18}, Peer: {name: GoogLeNet}]}"
    assert problems(models) == [f"Arch.models[1].Peer.name: {text}"]
    (problem,) = problems("Arch={name: GoogLeNet, class_num: 10, ml_decoder: {}}")
    assert problem.startswith("Arch.ml_decoder: GoogLeNet")
