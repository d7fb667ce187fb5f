"""Transformers in half precision: logits and gradients agree with float32."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
import paddle
import pytest
from paddle import nn

from ppcls.arch.families.convnext import ConvNeXt
from ppcls.arch.families.swin_transformer import SwinTransformer
from ppcls.arch.families.swin_transformer_v2 import SwinTransformerV2
from ppcls.arch.families.vision_transformer import DistilledVisionTransformer
from ppcls.engine.core.precision import build_precision
from ppcls.engine.core.settings import AMP

Build = Callable[..., nn.Layer]
MODELS: list[Any] = [
    pytest.param(
        partial(ConvNeXt, (1, 1, 1, 1), (16, 16, 32, 32), layer_scale_init_value=1.0), id="ConvNeXt"
    ),
    pytest.param(partial(DistilledVisionTransformer, 48, 16, 24, 2, 3), id="DeiT"),
    pytest.param(partial(SwinTransformer, 12, (1, 2, 1, 1), 3, 7, drop_path_rate=0.0), id="Swin"),
    pytest.param(partial(SwinTransformerV2, 12, (1, 2, 1, 1), 3, 4, 128, drop_path_rate=0.0), id="SwinV2"),
]


def one_pass(build: Build, settings: AMP | None, device: Literal["cpu", "gpu"]) -> dict[str, np.ndarray]:
    """Returns logits and gradients of one batch, float32."""
    paddle.seed(1)
    model = build(class_num=5)
    for parameter in model.parameters():  # large enough for every part to matter
        if len(parameter.shape) > 1:
            fan_in = np.prod(parameter.shape[1:]) if len(parameter.shape) == 4 else parameter.shape[0]
            parameter.set_value(paddle.randn(parameter.shape) / float(np.sqrt(fan_in)))
    precision = build_precision(settings, device)
    precision.prepare(model, paddle.optimizer.SGD(0.1, parameters=model.parameters()))
    image = precision.images(paddle.randn([4, 3, 48, 48]), training=True)
    with precision.forward():
        logits = model(image)
    logits = logits.astype("float32")
    precision.backward(logits.square().mean())
    found = {"logits": logits.numpy()}
    for name, parameter in model.named_parameters():
        found[f"gradient of {name}"] = parameter.grad.astype("float32").numpy()
    return found


def assert_near(found: dict[str, np.ndarray], exact: dict[str, np.ndarray], allowed: float) -> None:
    for name, reference in exact.items():
        assert found[name].any(), name
        error = np.linalg.norm(found[name] - reference)
        assert error <= allowed * np.linalg.norm(reference) + 1e-4, (name, error, np.linalg.norm(reference))


@pytest.mark.parametrize("build", MODELS)
def test_bfloat16_on_a_cpu_is_close_to_float32(build: Build) -> None:
    exact = one_pass(build, None, "cpu")
    found = one_pass(build, AMP(dtype="bfloat16"), "cpu")
    assert_near(found, exact, 0.1)
    assert np.abs(found["logits"] - exact["logits"]).max() > 1e-4


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("build", MODELS)
def test_mixed_precision_on_a_gpu_is_close_to_float32(
    build: Build, level: Literal["O1", "O2"], dtype: Any
) -> None:
    settings = AMP(level=level, dtype=dtype, scale_loss=1.0, use_dynamic_loss_scaling=False)
    exact = one_pass(build, None, "gpu")
    assert_near(one_pass(build, settings, "gpu"), exact, 0.25 if dtype == "bfloat16" else 0.05)
