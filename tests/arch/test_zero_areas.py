"""Gradients of networks for images with areas that are exactly 0, as RandomErasing fills them."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
import yaml
from paddle import nn
from paths import ROOT

from ppcls.arch.families.convnext import ConvNeXt_tiny

FLOAT16 = 65_504.0


def largest_gradient(network: nn.Layer, images: np.ndarray) -> float:
    labels = paddle.to_tensor(np.zeros(len(images), np.int64))
    nn.functional.cross_entropy(network(paddle.to_tensor(images)), labels).backward()
    largest = max(float(weight.grad.abs().max()) for weight in network.parameters())
    network.clear_gradients()
    return largest


def test_gradients_of_convnext_overflow_float16_only_with_areas_of_zero() -> None:
    """What docs/troubleshooting.md says, and why the config has no RandomErasing."""
    paddle.seed(0)
    network = ConvNeXt_tiny(class_num=10, patch_size=2)
    rng = np.random.default_rng(0)
    images = rng.normal(size=(2, 3, 28, 28)).astype(np.float32)
    assert largest_gradient(network, images) < FLOAT16 / 128
    images[:, :, 4:24, 4:24] = 0
    assert largest_gradient(network, images) > FLOAT16
    images[:, :, 4:24, 4:24] = rng.normal(size=(2, 3, 20, 20))  # mode: pixel
    assert largest_gradient(network, images) < FLOAT16 / 128


@pytest.mark.parametrize("config", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.name)
def test_no_config_fills_areas_with_zero_in_such_a_network(config) -> None:
    tree = yaml.safe_load(config.read_text())
    if not str(tree["Arch"]["name"]).startswith(("ConvNeXt", "Swin")):
        return
    for transform in tree["DataLoader"]["Train"]["dataset"]["transform_ops"]:
        name = next(iter(transform))
        assert name not in ("Cutout", "GridMask", "HideAndSeek")
        assert name != "RandomErasing" or transform[name].get("mode") == "pixel"
