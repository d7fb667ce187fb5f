"""Weights of timm in our models: the same logits as in timm's. See tests/support/timm_reference.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
import safetensors.numpy
from timm_reference import CLASSES, FILE, MODELS, random_image, random_weights
from unset_weights import unset_weights

from ppcls.arch.build import build_model
from ppcls.arch.public.names import apply_rules
from ppcls.arch.public_names import public_names
from ppcls.errors import UserError
from ppcls.weights.files import fill_model, read_weights, start_from
from ppcls.weights.torch_names import to_timm
from ppcls.zoo import ZOO

REFERENCE = json.loads(FILE.read_text())["models"]
LARGE = {
    "vit_base_patch16_224",
    "resnext50_32x4d",
    "seresnet50",
    "resnet50",
    "vgg11",
    "torchvision/vgg11",
    "torchvision/vit_b_32",
    "hgnetv2_b4",
    "resnext101_32x8d",
    "mixnet_l",
    "swinv2_tiny_window8_256",
    "res2net50_14w_8s",
    "torchvision/swin_t",
    "torchvision/convnext_tiny",
    "torchvision/inception_v3",
    "torchvision/alexnet",
    "inception_v4",
    "tf_efficientnetv2_s",
    "darknet53",
    "seresnext50_32x4d",
    "twins_pcpvt_small",
}  # others have the same rules
OPTIONS: dict[str, dict[str, Any]] = {
    "ResNet18": {"use_first_short_conv": False},
    "SwinTransformer_tiny_patch4_window7_224": {"shift_single_window": False},
}
# Biases of convolutions that ours lack, and the means of BatchNorm that they are subtracted from.
BIASES = {
    "hrnet_w18": (".0.bias", ".1.running_mean"),
    "resnest50d": (".conv2.fc1.bias", ".conv2.bn1.running_mean"),
}
NO_VARIANTS = {"tf_efficientnet_b0", "tf_efficientnet_lite0"}


@pytest.fixture(autouse=True)
def _unset_weights() -> Iterator[None]:
    """These tests set all weights, or need only their names."""
    with unset_weights():
        yield


def timm_weights(name: str) -> dict[str, np.ndarray]:
    return random_weights(name, REFERENCE[name]["shapes"])


def options_of(theirs: str) -> dict[str, Any]:
    """Returns the options of our model for weights of timm's model ``theirs``."""
    ours = MODELS[theirs]
    if "timm_variant" in ZOO[ours].options and theirs not in NO_VARIANTS:
        return {"timm_variant": True}
    return OPTIONS.get(ours, {})


def logits_of(model: paddle.nn.Layer, side: int = 224) -> np.ndarray:
    model.eval()
    with paddle.no_grad():
        return model(paddle.to_tensor(random_image(side))).numpy()[0]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        pytest.param(theirs, ours, id=theirs, marks=pytest.mark.slow if theirs in LARGE else ())
        for theirs, ours in MODELS.items()
    ],
)
def test_weights_of_timm_produce_the_logits_of_timm_and_are_exported_unchanged(
    theirs: str, ours: str
) -> None:
    weights = timm_weights(theirs)
    model = build_model(ours, CLASSES, **options_of(theirs))
    fill_model(model, weights, theirs)
    expected = np.array(REFERENCE[theirs]["logits"])
    scale = max(1.0, np.abs(expected).max())
    logits = logits_of(model, ZOO[ours].side)[: len(expected)]
    np.testing.assert_allclose(logits / scale, expected / scale, atol=1e-4)
    if "/" not in theirs:  # torchvision has other names than timm
        check_export(model, weights, theirs, ours)


def check_export(model: paddle.nn.Layer, weights: dict[str, np.ndarray], theirs: str, ours: str) -> None:
    arrays = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    exported = to_timm(model, arrays, ours)
    assert exported.keys() == weights.keys()
    bias, mean = BIASES.get(theirs, ("\0", ""))
    for name in [name for name in weights if name.endswith(bias)]:
        weights[name.replace(bias, mean)] = weights[name.replace(bias, mean)] - weights[name]
        weights[name] = np.zeros_like(weights[name])
    for name, array in weights.items():
        if not np.array_equal(exported[name], array):  # many times faster than assert_allclose
            np.testing.assert_allclose(exported[name], array, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("GhostNet_x0_5", "GhostNet differs in squeeze-and-excitation.*; set Arch.timm_variant: True"),
        ("MobileNetV1_x0_25", "MobileNetV1 has ReLU instead of ReLU6; set Arch.timm_variant: True"),
        ("SE_ResNet18", "SE-ResNet has other squeezed widths.*; set Arch.timm_variant: True"),
        ("TinyNet_E", "rounds its numbers of blocks up; set Arch.timm_variant: True"),
        ("InceptionV4", "1x7 and 7x1 convolutions in another order; set Arch.timm_variant: True"),
        ("LeViT_128S", "LeViT has one classifier, timm's has two; set Arch.timm_variant: True"),
        ("Xception41_deeplab", "is dilated; set Arch.timm_variant: True"),
        ("Xception41", "a block of PaddleClas's Xception has two separable convolutions"),
        ("ShuffleNetV2_x0_25", "ShuffleNetV2_x0_25: timm has no network that computes the same numbers"),
        ("ViT_small_patch16_224", "timm has no network that computes the same numbers"),
        (
            "ResNet18",
            "ResNet18: in timm, the shortcut of the first block has no .*use_first_short_conv: False",
        ),
        ("SwinTransformer_tiny_patch4_window7_224", "set Arch.shift_single_window: False"),
    ],
)
def test_export_of_a_network_that_timm_lacks_is_rejected(name: str, message: str) -> None:
    model = build_model(name, CLASSES)
    with pytest.raises(UserError, match=message):
        to_timm(model, {}, name)


def test_paddleclas_settings_build_the_tinynet_of_timm() -> None:
    weights = timm_weights("tinynet_e")
    settings = {"depth_trunc": "round", "batch_norm_epsilon": 1e-5}
    model = build_model("TinyNet_E", CLASSES, override_params=settings)
    fill_model(model, weights, "tinynet_e")
    expected = np.array(REFERENCE["tinynet_e"]["logits"])
    np.testing.assert_allclose(logits_of(model, 106)[: len(expected)], expected, atol=1e-4)


@pytest.mark.parametrize("name", ["PPHGNet_base", "PPLCNet_x0_25"])
def test_classifier_of_timm_is_enlarged_as_dropout_shrinks_its_input(name: str) -> None:
    variant = {"timm_variant": True} if "timm_variant" in ZOO[name].options else {}
    model = build_model(name, CLASSES, **variant)
    model.fc.weight.set_value(paddle.ones_like(model.fc.weight))
    arrays = {key: tensor.numpy() for key, tensor in model.state_dict().items()}
    kept = 1 - model.dropout.p
    assert kept < 1
    exported = to_timm(model, arrays, name)
    np.testing.assert_allclose(exported[next(key for key in exported if exported[key].ndim == 2)], kept)


def test_rules_of_repvgg_rename_squeeze_and_excitation() -> None:
    model = build_model("RepVGG_A0", CLASSES)
    rules = public_names(model).timm_rules(model) or ()
    renamed = [apply_rules(rules, f"stage1.0.se.{name}.weight") for name in ("down", "up")]
    assert renamed == ["stages.0.0.attn.fc1.weight", "stages.0.0.attn.fc2.weight"]


def test_safetensors_of_timm_start_a_model_of_other_classes(tmp_path: Path) -> None:
    weights = timm_weights("deit_tiny_patch16_224")
    safetensors.numpy.save_file(weights, tmp_path / "deit.safetensors")
    model = build_model("DeiT_tiny_patch16_224", 7)
    started = start_from(model, read_weights(tmp_path / "deit.safetensors"), "deit")
    assert started.random == ["head.bias", "head.weight"]
    square = "blocks.0.attn.proj.weight"
    np.testing.assert_array_equal(model.state_dict()[square].numpy(), weights[square].T)


@pytest.mark.parametrize(
    ("name", "weights", "message"),
    [
        (
            "SwinTransformer_tiny_patch4_window7_224",
            "swin_tiny",
            "windows even if one window .* set Arch.shift_single_window: False",
        ),
        (
            "ResNet18",
            "resnet18",
            "no convolution in the file, but has one in the model; set Arch.use_first_short_conv: False",
        ),
        ("TinyNet_E", "tinynet_e", "rounds its numbers of blocks up; set Arch.timm_variant: True"),
        ("SE_ResNet18", "seresnet18", "a convolution in its first shortcut; set Arch.timm_variant: True"),
        ("EfficientNetB0", "efficientnet_b0", "to use them, set Arch.timm_variant: True"),
        ("EfficientNet_lite0", "efficientnet_lite0", "to use them, set Arch.timm_variant: True"),
        ("DarkNet53", "darknet53", "ReLU instead of leaky ReLU; set Arch.timm_variant: True"),
        ("MobileNetV1", "mobilenetv1_100", "ReLU instead of ReLU6; set Arch.timm_variant: True"),
        ("PPLCNet_x1_0", "lcnet_100", "PPLCNet has no bias; set Arch.timm_variant: True"),
        ("LeViT_128S", "levit_128s", "timm's has two; set Arch.timm_variant: True"),
        ("ResNeSt50", "resnest50d", "does not count padding .* set Arch.timm_variant: True"),
        ("Xception41_deeplab", "xception41", "is dilated; set Arch.timm_variant: True"),
        ("InceptionV4", "inception_v4", "in another order; set Arch.timm_variant: True"),
        ("Res2Net50_vd_26w_4s", "res2net50d", "does not count padding .* set Arch.timm_variant: True"),
        (
            "MobileNetV2",
            "mobilenetv2_100",
            "do not fit this architecture: the first block .* one more convol",
        ),
        ("MobileNetV3_small_x1_0", "mobilenetv3_small_100", "the first block of PaddleClas's MobileNetV3"),
        pytest.param(
            "VGG11",
            "vgg11",
            "PaddleClas's VGG has no bias in its convolutions; set Arch.name: vgg11",
            marks=pytest.mark.slow,
        ),
        ("GhostNet_x0_5", "ghostnet_100", "last convolution; set Arch.timm_variant: True"),
        ("ResNet50", "resnext50_32x4d", "resnext50_32x4d: weights of another model"),
    ],
)
def test_weights_of_another_network_are_rejected(name: str, weights: str, message: str) -> None:
    source = weights if weights in REFERENCE else "tf_efficientnet_b0"
    arrays = timm_weights(source)
    with pytest.raises(UserError, match=message):
        fill_model(build_model(name, CLASSES), arrays, weights)


def test_nameless_lite_weights_of_pytorch_are_rejected_as_their_padding_is_unknown() -> None:
    model = build_model("EfficientNet_lite0", CLASSES)
    weights = timm_weights("tf_efficientnet_lite0")
    fill_model(model, weights, "model.safetensors")  # an export of ppcls, which has no counters
    with pytest.raises(UserError, match="expected a file name with 'tf_efficientnet'"):
        fill_model(model, {**weights, "bn1.num_batches_tracked": np.array(1)}, "model.safetensors")


def test_weights_with_the_padding_of_tensorflow_need_the_usual_network() -> None:
    model = build_model("EfficientNet_lite0", CLASSES, timm_variant=True)
    with pytest.raises(UserError, match=r"pads as in TensorFlow; set Arch\.timm_variant: False"):
        fill_model(model, timm_weights("tf_efficientnet_lite0"), "tf_efficientnet_lite0")


@pytest.mark.parametrize("source", ["tf_mixnet_s.in1k.safetensors", "model.safetensors"])
def test_mixnet_weights_are_rejected_unless_their_name_shows_the_padding(source: str) -> None:
    with pytest.raises(UserError, match=r"expected a file name with 'mixnet' but without 'tf_mixnet'"):
        fill_model(build_model("MixNet_S", CLASSES), timm_weights("mixnet_s"), source)


@pytest.mark.parametrize(
    ("name", "weights", "source", "message"),
    [
        ("MobileNetV4_conv_small", "mobilenetv4_conv_small", "mobilenetv4_conv_aa_large", "smooths"),
        ("ResNet50_vd", "resnet50d", "hf-hub:timm/resnetaa50d.sw_in12k_ft_in1k", "smooths features"),
        ("resnet18", "resnet18", "resnetblur18.bin", "smooths features"),
        (
            "SwinTransformerV2_tiny_patch4_window8_256",
            "swinv2_tiny_window8_256",
            "hf-hub:timm/swinv2_tiny_window16_256.ms_in1k",
            "expected windows of 8 tokens in pretraining and 8 after it, got 16 and 16",
        ),
        (
            "EfficientNetV2_S",
            "tf_efficientnetv2_s",
            "efficientnetv2_s.pth",
            "use weights of timm's tf_efficientnetv2_",
        ),
    ],
)
def test_weights_of_a_network_with_equal_names_and_shapes_are_rejected(
    name: str, weights: str, source: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        fill_model(build_model(name, CLASSES), timm_weights(weights), source)


def test_export_of_resnest_without_branches_is_rejected_as_timm_lacks_it() -> None:
    model = build_model("ResNeSt50_fast_1s1x64d", CLASSES, timm_variant=True)
    with pytest.raises(UserError, match="timm has no network that computes the same numbers"):
        to_timm(model, {}, "ResNeSt50_fast_1s1x64d")
