"""Which layers are fused, and that a fused model computes what its own layers compute."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import nn
from paths import ROOT, SUPPORT
from runs import GUARD

from ppcls.arch import fuse as fusing
from ppcls.arch.build import build_model
from ppcls.arch.fused import max_pool
from ppcls.arch.fused.batch_norm import batch_norm, normalize
from ppcls.arch.fused.layers import find_kernel, fuse
from ppcls.arch.kernels import fallback
from ppcls.arch.kernels.errors import KernelsUnavailableError
from ppcls.engine.core.build import build_state
from ppcls.errors import UserError
from ppcls.recipe.schema import Config
from ppcls.runtime.start import Runtime


def test_fuse_counts_convolutions_and_norms_of_nhwc_models_only() -> None:
    assert fuse(build_model("ResNet18", 10, "NHWC", 3)) == 2 * 21, (
        "20 convolutions, the stem's, and their norms"
    )
    assert fuse(build_model("ResNet18", 10, "NCHW", 3)) == 0


class PaddedConvolution(nn.Conv2D):  # type: ignore[misc]
    """A convolution with a forward pass of its own."""


@pytest.mark.parametrize(
    "layer",
    [
        PaddedConvolution(4, 8, 3, bias_attr=False, data_format="NHWC"),
        nn.Conv2D(4, 8, 3, padding="SAME", bias_attr=False, data_format="NHWC"),
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


@pytest.mark.parametrize(
    ("outputs", "kernel", "options"),
    [
        (6, 3, {"dilation": 2, "padding": 2}),
        (12, 3, {"padding": [1, 2]}),
        (6, (1, 5), {"stride": 2, "padding": [0, 0, 2, 1]}),
        (6, 9, {"padding": 4, "bias_attr": False}),
    ],
    ids=["dilation", "multiplier", "oblong", "large"],
)
def test_depthwise_convolution_without_a_kernel_is_computed_in_nchw(
    outputs: int,
    kernel: Any,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A CUDA graph can't replay Paddle's operator in NHWC."""
    fallback.report.cache_clear()
    paddle.seed(1)
    layer = nn.Conv2D(6, outputs, kernel, groups=6, data_format="NHWC", **options)
    image = paddle.randn([2, 12, 11, 6])
    results = []
    for _ in range(2):
        x = image.clone()
        x.stop_gradient = False
        layer.clear_gradients()
        y = layer(x)
        (y * y).sum().backward()
        results.append([tensor.numpy() for tensor in (y, x.grad, layer.weight.grad)])
        assert fuse(layer) == 1
        monkeypatch.setattr(nn.Conv2D, "forward", None)
    for own, fused in zip(*results, strict=True):
        np.testing.assert_allclose(fused, own, rtol=1e-5, atol=1e-5)
    assert capfd.readouterr().err == (
        "fused kernels: a convolution of 6 channels with weights "
        f"{list(layer.weight.shape)}: Paddle's operators, because the kernels have no such depthwise "
        "convolution\n"
    )


@pytest.mark.parametrize(
    ("arguments", "numbers"), [((2,), (2, 2, 0)), ((3, None, 1), (3, 3, 1)), ((3, 2), (3, 2, 0))], ids=str
)
def test_fused_max_pooling_has_the_stride_of_its_window_by_default(
    arguments: tuple[Any, ...], numbers: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    called = []
    monkeypatch.setattr(max_pool, "max_pool", lambda _, *settings: called.append(settings))
    layer = nn.MaxPool2D(*arguments, data_format="NHWC")
    fuse(layer)
    layer(paddle.randn([2, 9, 6, 8]))
    assert called == [numbers]


def test_fuse_copy_of_a_model_uses_its_own_weights() -> None:
    model = build_model("ResNet18", 10, "NHWC", 3)
    fuse(model)
    twin = copy.deepcopy(model)
    for one, other in zip(model.sublayers(), twin.sublayers(), strict=True):
        if "forward" in vars(one):
            assert other.forward.__self__ is other


def test_find_kernel_in_evaluation_needs_disabled_gradients() -> None:
    norm, images = nn.BatchNorm2D(64, data_format="NHWC"), paddle.rand([2, 4, 4, 64])
    assert find_kernel(norm, images) is batch_norm
    norm.eval()
    assert find_kernel(norm, images) is None
    with paddle.no_grad():
        assert find_kernel(norm, images) is normalize
        assert find_kernel(norm, images[..., :3]) is None


def test_build_state_fused_kernels_need_the_layout_nhwc(make_config: Callable[..., Config]) -> None:
    config = make_config(Global__fused_kernels=True)
    with pytest.raises(UserError, match=r"Global\.fused_kernels: .* has no convolution .* in NHWC"):
        build_state(config, Runtime(), lambda *_: None)


def test_build_state_without_the_library_names_the_setting(
    make_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise KernelsUnavailableError("reason")

    monkeypatch.setattr(fusing, "library", fail)
    config = make_config(Global__fused_kernels=True, Arch__data_format="NHWC")
    with pytest.raises(UserError, match=r"Global\.fused_kernels: reason; set Global\.fused_kernels=auto"):
        build_state(config, Runtime(), lambda *_: None)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["ResNet18", "ResNet50_vd", "ResNeXt50_32x4d", "MobileNetV1"])
def test_fused_model_is_as_close_to_the_cpu_as_its_own_layers(name: str) -> None:
    command = [sys.executable, "-s", str(SUPPORT / "fused_model_run.py"), name]
    environment = os.environ | {"PYTHONPATH": python_path()}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=GUARD, check=True)
    result = json.loads(run.stdout.splitlines()[-1])
    exact, *losses = result["losses"]
    assert losses == pytest.approx([exact, exact], rel=0.02), "TF32"
    for measure, own in result["own"].items():
        assert result["fused"][measure] < 3 * own + 1e-3, result


def python_path() -> str:
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
