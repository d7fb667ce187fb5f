"""Weights of timm in our models: the same logits as in timm's. See tests/support/timm_reference.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
import safetensors.numpy
from timm_reference import CLASSES, FILE, MODELS, random_array, random_image

from ppcls.arch.build import build_model
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
}  # smaller ones have the same rules
OPTIONS: dict[str, dict[str, Any]] = {
    "ResNet18": {"use_first_short_conv": False},
    "SwinTransformer_tiny_patch4_window7_224": {"shift_single_window": False},
}


def timm_weights(name: str) -> dict[str, np.ndarray]:
    return {key: random_array(key, tuple(shape)) for key, shape in REFERENCE[name]["shapes"].items()}


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
def test_weights_of_timm_produce_the_logits_of_timm(theirs: str, ours: str) -> None:
    model = build_model(ours, CLASSES, **OPTIONS.get(ours, {}))
    fill_model(model, timm_weights(theirs), theirs)
    expected = np.array(REFERENCE[theirs]["logits"])
    scale = max(1.0, np.abs(expected).max())
    logits = logits_of(model, ZOO[ours].side)[: len(expected)]
    np.testing.assert_allclose(logits / scale, expected / scale, atol=1e-4)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        pytest.param(theirs, ours, id=theirs, marks=pytest.mark.slow if theirs in LARGE else ())
        for theirs, ours in MODELS.items()
        if "/" not in theirs
    ],
)
def test_weights_of_timm_return_unchanged_from_the_export(theirs: str, ours: str) -> None:
    weights = timm_weights(theirs)
    model = build_model(ours, CLASSES, **OPTIONS.get(ours, {}))
    fill_model(model, weights, theirs)
    arrays = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    exported = to_timm(model, arrays, ours)
    assert exported.keys() == weights.keys()
    for name, array in weights.items():
        np.testing.assert_allclose(exported[name], array, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("GhostNet_x0_5", "GhostNet has another number of channels in squeeze-and-excitation"),
        ("MobileNetV1_x0_25", "MobileNetV1_x0_25: timm has no network that computes the same numbers"),
        ("SE_ResNet18", "SE_ResNet18: timm has no network that computes the same numbers"),
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
            "windows also where one window .* set Arch.shift_single_window: False",
        ),
        (
            "ResNet18",
            "resnet18",
            "has no convolution, but this model's has; set Arch.use_first_short_conv: False",
        ),
        (
            "SE_ResNet18",
            "resnet18",
            "the shortcut of its first block has no convolution, but this model's has$",
        ),
        ("EfficientNetB0", "efficientnet_b0", "efficientnet_b0: its name must contain tf_efficientnet"),
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
        (
            "GhostNet_x0_5",
            "ghostnet_050",
            "GhostNet has another number of channels in squeeze-and-excitation",
        ),
        ("ResNet50", "resnext50_32x4d", "resnext50_32x4d: weights of another model"),
    ],
)
def test_weights_of_another_network_are_rejected(name: str, weights: str, message: str) -> None:
    source = weights if weights in REFERENCE else "tf_efficientnet_b0"
    arrays = timm_weights(source)
    with pytest.raises(UserError, match=message):
        fill_model(build_model(name, CLASSES), arrays, weights)
