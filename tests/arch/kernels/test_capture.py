"""Layers that a CUDA graph would replay wrongly are found."""

from __future__ import annotations

import pytest
from paddle import nn

from ppcls.arch.build import build_model
from ppcls.arch.fused.layers import fuse
from ppcls.arch.kernels.capture import find_capture_obstacle

MODELS = ["MobileNetV2", "MobileNetV3_small_x0_35", "EfficientNetB0_small", "ConvNeXt_tiny", "PPLCNet_x0_25"]


@pytest.mark.parametrize("name", MODELS)
def test_depthwise_convolutions_of_channels_last_networks_are_found(name: str) -> None:
    model = build_model(name, 4, "NHWC", 3)
    found = find_capture_obstacle(model)
    assert found is not None
    assert found.startswith("Paddle's depthwise convolutions can't be replayed in NHWC (")
    layer = found.split("(")[1].split(")")[0]
    assert layer in dict(model.named_sublayers())
    assert find_capture_obstacle(build_model(name, 4, "NCHW", 3)) is None


@pytest.mark.parametrize("name", MODELS)
def test_fused_networks_do_not_use_the_operator(name: str) -> None:
    model = build_model(name, 4, "NHWC", 3)
    fuse(model)
    assert find_capture_obstacle(model) is None


@pytest.mark.parametrize("name", ["ResNet50", "ResNeXt50_32x4d", "DeiT_tiny_patch16_224"])
def test_other_networks_can_be_replayed(name: str) -> None:
    assert find_capture_obstacle(build_model(name, 4, "NHWC", 3)) is None


@pytest.mark.parametrize(
    ("layer", "found"),
    [
        (nn.Conv2D(8, 16, 3, groups=8, data_format="NHWC"), True),
        (nn.Conv2D(8, 8, 3, groups=4, data_format="NHWC"), False),
        (nn.Conv2D(1, 8, 3, groups=1, data_format="NHWC"), False),
        (nn.Conv2D(8, 8, 3, groups=8), False),
        (nn.Conv1D(8, 8, 3, groups=8, data_format="NLC"), True),
        (nn.Conv2DTranspose(8, 8, 3, groups=8, data_format="NHWC"), True),
        (nn.Conv2DTranspose(8, 4, 3, groups=4, data_format="NHWC"), False),
    ],
)
def test_only_depthwise_convolutions_are_found(layer: nn.Layer, found: bool) -> None:
    assert (find_capture_obstacle(layer) is not None) == found
    assert (find_capture_obstacle(nn.Sequential(nn.ReLU(), layer)) is not None) == found
