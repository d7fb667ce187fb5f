"""Which layers are fused, and that a fused model computes what its own layers compute."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import paddle
import pytest
from paddle import nn

from ppcls.arch.build import build_model
from ppcls.arch.fused.layers import fuse
from ppcls.config.schema import Config
from ppcls.engine.core.build import build_state
from ppcls.errors import UserError
from ppcls.runtime.start import Runtime


def test_fuse_counts_convolutions_and_norms_of_nhwc_models_only() -> None:
    assert fuse(build_model("ResNet18", 10, "NHWC", 3)) == 2 * 21, (
        "20 convolutions, the stem's, and their norms"
    )
    assert fuse(build_model("ResNet18", 10, "NCHW", 3)) == 0


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2D(4, 8, 3, data_format="NHWC"),  # with a bias
        nn.Conv2D(4, 8, 3, padding="SAME", bias_attr=False, data_format="NHWC"),
        nn.Conv2D(4, 8, 3, padding=[1, 2, 1, 2], bias_attr=False, data_format="NHWC"),
        nn.Conv2D(4, 8, 3, padding_mode="reflect", padding=1, bias_attr=False, data_format="NHWC"),
        nn.BatchNorm2D(8, use_global_stats=True, data_format="NHWC"),
        nn.BatchNorm2D(8, weight_attr=False, bias_attr=False, data_format="NHWC"),
        nn.SyncBatchNorm(8, data_format="NHWC"),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_fuse_leaves_layers_that_compute_something_else(layer: nn.Layer) -> None:
    assert fuse(layer) == 0
    assert "forward" not in vars(layer)


def test_fuse_copy_of_a_model_uses_its_own_weights() -> None:
    model = build_model("ResNet18", 10, "NHWC", 3)
    fuse(model)
    twin = copy.deepcopy(model)
    for one, other in zip(model.sublayers(), twin.sublayers(), strict=True):
        if "forward" in vars(one):
            assert other.forward.__self__ is other


def test_build_state_fused_kernels_on_a_cpu_are_refused(make_config: Callable[..., Config]) -> None:
    with pytest.raises(UserError, match=r"Global\.fused_kernels: needs an NVIDIA GPU"):
        build_state(make_config(Global__fused_kernels=True), Runtime(), lambda *_: None)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["ResNet18", "ResNet50_vd", "ResNeXt50_32x4d", "MobileNetV1"])
def test_fused_model_has_the_loss_and_gradients_of_its_own_layers(name: str) -> None:
    paddle.seed(0)
    model = build_model(name, 10, "NHWC", 3)
    fused = copy.deepcopy(model)
    assert fuse(fused) > 0
    images = paddle.randn([16, 64, 64, 3])
    results = []
    for net in (model, fused):
        net.train()
        loss = nn.functional.cross_entropy(net(images), paddle.arange(16) % 10)
        loss.backward()
        gradients = {key: value.grad for key, value in net.named_parameters() if not value.stop_gradient}
        results.append((float(loss), {key: gradient.numpy() for key, gradient in gradients.items()}))
        net.eval()
    assert results[1][0] == pytest.approx(results[0][0], rel=2e-3)  # TF32
    for key, expected in results[0][1].items():
        difference = np.linalg.norm(results[1][1][key] - expected)
        assert difference <= 0.03 * np.linalg.norm(expected) + 1e-6, key
    for key, expected in model.state_dict().items():
        np.testing.assert_allclose(
            fused.state_dict()[key].numpy(), expected.numpy(), rtol=2e-2, atol=2e-3, err_msg=key
        )
    with paddle.no_grad():
        np.testing.assert_allclose(fused(images).numpy(), model(images).numpy(), rtol=0.1, atol=0.05)
