"""Recomputed activations: the same training with less memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest
from paddle import Tensor, nn

from ppcls.arch.batch_statistics import batch_norms
from ppcls.arch.build import build_model
from ppcls.arch.kernels.paddle_layers import running_statistics
from ppcls.arch.layers.drop_path import StepMasks, attach_masks
from ppcls.engine.core.recompute import find_blocks, recompute_blocks
from ppcls.errors import UserError
from ppcls.recipe.schema import Config

MODELS: dict[str, dict[str, Any]] = {
    "ResNet18": {},
    "DeiT_tiny_patch16_224": {"img_size": 32, "drop_path_rate": 0.4, "drop_rate": 0.2},
    "SwinTransformer_tiny_patch4_window7_224": {"drop_path_rate": 0.4},
    "ConvNeXt_tiny": {"drop_path_rate": 0.4},
    "EfficientNet_lite0": {},
}


def _build(name: str) -> nn.Layer:
    paddle.seed(3)
    return build_model(name, 4, "NCHW", 3, **MODELS[name])


def _prepare(name: str, *, masked: bool, recomputed: bool) -> tuple[nn.Layer, StepMasks | None]:
    """Returns a model in training mode, and the source of its random factors."""
    model = _build(name)
    masks = StepMasks(1, 0) if masked else None
    if masks is not None:
        attach_masks(model, masks)
    if recomputed:
        assert recompute_blocks(model, masks, name) > 5
    model.train()
    return model, masks


def _forward(model: nn.Layer, masks: StepMasks | None, side: int, update: int) -> Tensor:
    """Returns the loss of an update."""
    images = paddle.to_tensor(np.random.default_rng(0).normal(size=(3, 3, side, side)).astype(np.float32))
    paddle.seed(7 + update)
    if masks is not None:
        masks.begin_step(update)
        masks.begin_forward()
    return (model(images) ** 2).mean()


def _train(model: nn.Layer, masks: StepMasks | None, side: int) -> list[np.ndarray]:
    """Returns losses, gradients and statistics of two updates."""
    optimizer = paddle.optimizer.SGD(1e-3, parameters=model.parameters())
    results: list[np.ndarray] = []
    for update in range(2):
        loss = _forward(model, masks, side, update)
        loss.backward()
        results.append(loss.numpy())
        results += [each.grad.numpy() for each in model.parameters() if each.grad is not None]
        optimizer.step()
        optimizer.clear_grad()
    results += [each.numpy() for norm in batch_norms(model) for each in running_statistics(norm)]
    return results


def _count_kept_bytes(model: nn.Layer, masks: StepMasks | None, side: int) -> int:
    """Returns the size of all tensors except parameters that a forward pass keeps for the backward pass."""
    kept = 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal kept
        if tensor.stop_gradient or not tensor.persistable:
            kept += tensor.size * tensor.element_size()
        return tensor

    with paddle.autograd.saved_tensors_hooks(pack, lambda tensor: tensor):
        _forward(model, masks, side, 0)
    return kept


every_model = pytest.mark.parametrize(
    ("name", "masked"),
    [
        ("ResNet18", False),
        ("DeiT_tiny_patch16_224", False),
        ("DeiT_tiny_patch16_224", True),
        pytest.param("SwinTransformer_tiny_patch4_window7_224", False, marks=pytest.mark.slow),
        pytest.param("ConvNeXt_tiny", False, marks=pytest.mark.slow),
        pytest.param("ConvNeXt_tiny", True, marks=pytest.mark.slow),
        pytest.param("EfficientNet_lite0", False, marks=pytest.mark.slow),
    ],
)


@every_model
def test_training_is_the_same(name: str, masked: bool) -> None:
    side = MODELS[name].get("img_size", 32)
    expected, found = (
        _train(*_prepare(name, masked=masked, recomputed=recomputed), side) for recomputed in (False, True)
    )
    assert len(expected) == len(found)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.skipif(paddle.__version__.startswith("2.6"), reason="the hooks crash Paddle 2.6")
@every_model
def test_forward_pass_keeps_less(name: str, masked: bool) -> None:
    side = MODELS[name].get("img_size", 32)
    usual, recomputed = (
        _count_kept_bytes(*_prepare(name, masked=masked, recomputed=recomputed), side)
        for recomputed in (False, True)
    )
    assert recomputed < 0.5 * usual


def test_frozen_layers_and_evaluation_are_computed_as_usual() -> None:
    model = _build("ResNet18")
    recompute_blocks(model, None, "ResNet18")
    blocks = list(find_blocks(_build("ResNet18")))
    assert len(blocks) == 8
    for parameter in model.parameters()[:-2]:
        parameter.stop_gradient = True
    model(paddle.ones([2, 3, 32, 32])).sum().backward()
    assert [each.grad is not None for each in model.parameters()[-2:]] == [True, True]
    model.eval()
    logits = model(paddle.ones([1, 3, 32, 32]))
    np.testing.assert_array_equal(logits.numpy(), model(paddle.ones([1, 3, 32, 32])).numpy())


def test_models_without_blocks_are_errors() -> None:
    with pytest.raises(UserError, match=r"Global\.recompute: Small has no repeated blocks"):
        recompute_blocks(nn.Sequential(nn.Conv2D(3, 4, 3), nn.Flatten(), nn.Linear(4, 2)), None, "Small")


@pytest.mark.parametrize("key", ["to_static", "cuda_graph"])
def test_other_ways_to_execute_steps_conflict(make_config: Callable[..., Config], key: str) -> None:
    with pytest.raises(UserError, match=rf"Global\.{key}: .*Global\.recompute"):
        make_config(**{"Global__recompute": True, f"Global__{key}": True})
