"""Networks in the form for GPUs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.nn import functional as F

from ppcls.arch.build import build_model
from ppcls.arch.layers.conv_norm import ConvNorm
from ppcls.deploy.export.export import _load_gpu_network
from ppcls.deploy.export.gpu_network import GpuNetwork, has_gpu_form
from ppcls.recipe.load import load_config

CONFIG = Path(__file__).parents[3] / "configs" / "ResNet50.yaml"


def build(name: str) -> nn.Layer:
    """Returns a network in evaluation mode, with batch norm statistics of random images."""
    paddle.seed(1)
    network = build_model(name, 5, data_format="NHWC")
    for layer in network.sublayers():
        if isinstance(layer, nn.BatchNorm2D):
            layer._momentum = 0.0
    network.train()
    with paddle.no_grad():
        network(paddle.randn([4, 48, 48, 3]))
    network.eval()
    return network


@pytest.mark.parametrize(
    "name",
    [
        *("SE_ResNet18_vd", "SqueezeNet1_0"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("ResNet18_vd", "ResNet50", "DarkNet53")),
    ],
)
def test_gpu_network_returns_the_outputs_of_the_network(name: str) -> None:
    network, images = build(name), paddle.randn([2, 48, 48, 3])
    assert has_gpu_form(network)
    with paddle.no_grad():
        expected = network(images)
        converted = GpuNetwork(network, "float32", transpose=True)
        difference = (converted(images.transpose([0, 3, 1, 2])) - expected).abs().max() / expected.abs().max()
    assert float(difference) < 1e-3
    assert not any(isinstance(layer, nn.BatchNorm2D) for layer in converted.sublayers())


@pytest.mark.parametrize(
    "name", ["MobileNetV1_x0_25", "ResNeXt50_32x4d", "DeiT_tiny_patch16_224", "LeViT_128S"]
)
def test_networks_with_groups_or_other_norms_have_no_gpu_form(name: str) -> None:
    assert not has_gpu_form(build_model(name, 5, data_format="NHWC"))


def test_network_that_ignores_the_layout_has_no_gpu_form() -> None:
    assert not has_gpu_form(build_model("ResNet18", 5, data_format="NCHW"))


def test_architecture_with_a_fixed_layout_has_no_gpu_network() -> None:
    config = load_config(CONFIG, ["Arch.name=resnet18", "Arch.pretrained=False"])
    assert (
        _load_gpu_network(config.Arch, config.Loss.Train, Path("model.safetensors"), transpose=True) is None
    )


def test_pointwise_convolution_of_images_pads_their_channels() -> None:
    unit = ConvNorm(3, 8, 1, data_format="NHWC")
    unit.eval()
    images = paddle.randn([2, 4, 4, 3])
    with paddle.no_grad():
        expected = unit(images)
        converted = GpuNetwork(nn.Sequential(unit), "float32")
        np.testing.assert_allclose(converted(images).numpy(), expected.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("padding", [0, 1])
def test_small_convolution_with_padding_is_no_product(padding: int) -> None:
    """A product of 1x1 convolutions would drop the border, which has the bias as value."""
    paddle.seed(2)
    unit = ConvNorm(4, 8, 1, padding=padding, act=F.relu, data_format="NHWC")
    unit(paddle.randn([2, 5, 5, 4]))
    unit.eval()
    network, images = nn.Sequential(unit), paddle.randn([2, 5, 5, 4])
    with paddle.no_grad():
        expected = network(images).numpy()
        actual = GpuNetwork(network, "float32")(images).numpy()
    np.testing.assert_allclose(actual, expected, atol=1e-5)
