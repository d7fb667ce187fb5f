"""Foundation models compute the outputs of timm. See tests/support/foundation_reference.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
import safetensors.numpy
from foundation_reference import (
    CLASSES,
    DEPTH,
    FILE,
    GRID,
    HEADS,
    MODELS,
    OTHER_GRIDS,
    WIDTH,
    images_of,
    patch_of,
    weights_of,
)

from ppcls.arch.families.foundation_transformer import FoundationTransformer
from ppcls.engine.evaluation.heat_map import attention_rollout
from ppcls.errors import UserError
from ppcls.optimizer.name_rules import classifier_layers
from ppcls.registry import ARCHITECTURES
from ppcls.weights.files import fill_model, read_weights, start_from
from ppcls.weights.torch_names import to_timm

REFERENCE = json.loads(FILE.read_text())["models"]
ALL = pytest.mark.parametrize("name", MODELS)


def small(name: str, grid: int = GRID, **options: Any) -> FoundationTransformer:
    """Returns the architecture with the size of the reference."""
    builder = ARCHITECTURES[name]
    keywords = dict(builder.keywords)
    if "hidden" in keywords:  # the factor of these networks is 3.7362
        keywords["hidden"] = int(WIDTH * 3.7362)
    keywords |= {"class_num": CLASSES, **options}
    patch = patch_of(name)
    model = builder.func(grid * patch, patch, WIDTH, DEPTH, HEADS, **keywords)
    model.eval()
    return model


def check_outputs(model: FoundationTransformer, name: str, grid: int, images: np.ndarray) -> None:
    expected = REFERENCE[name]["outputs"][str(grid)]
    with paddle.no_grad():
        tokens = model.features(paddle.to_tensor(images))
        features = model.pool(tokens)
        logits = model(paddle.to_tensor(images))
    for key, values in (("tokens", tokens[0, -1]), ("features", features[0]), ("logits", logits)):
        wanted = np.array(expected[key])
        found = values.numpy()[..., : wanted.shape[-1]]
        np.testing.assert_allclose(found, wanted, atol=1e-4, err_msg=f"{name} {grid} {key}")


@ALL
def test_outputs_and_exported_weights_equal_those_of_timm(name: str) -> None:
    weights = weights_of(REFERENCE[name]["shapes"])
    model = small(name)
    fill_model(model, weights, name)
    check_outputs(model, name, GRID, images_of(name, GRID))
    exported = to_timm(model, {key: tensor.numpy() for key, tensor in model.state_dict().items()}, name)
    assert exported.keys() == weights.keys()
    for key, array in weights.items():
        np.testing.assert_array_equal(exported[key], array, err_msg=key)


@ALL
@pytest.mark.parametrize("grid", OTHER_GRIDS)
def test_a_file_for_another_image_size_starts_the_model_as_in_timm(
    name: str, grid: int, tmp_path: Path
) -> None:
    file = tmp_path / f"{name}.safetensors"
    safetensors.numpy.save_file(weights_of(REFERENCE[name]["shapes"]), file)
    model = small(name, grid, data_format="NHWC")
    report = start_from(model, read_weights(file), file)
    assert report.random == []
    assert ("interpolated from 3 x 3" in report.adapted) == ("dinov3" not in name)
    check_outputs(model, name, grid, images_of(name, grid).transpose(0, 2, 3, 1))


@ALL
def test_a_file_without_classifier_starts_all_other_layers(name: str) -> None:
    weights = weights_of(REFERENCE[name]["shapes"])
    backbone = {key: array for key, array in weights.items() if not key.startswith("head.")}
    model = small(name)
    assert classifier_layers(model) == ["head"]
    assert start_from(model, backbone, name).random == ["head.bias", "head.weight"]
    expected = REFERENCE[name]["outputs"][str(GRID)]["features"]
    with paddle.no_grad():
        features = model.pool(model.features(paddle.to_tensor(images_of(name, GRID))))
    np.testing.assert_allclose(features.numpy()[0, : len(expected)], expected, atol=1e-4)


def test_a_file_that_lacks_a_block_is_rejected() -> None:
    name = MODELS[0]
    weights = weights_of(REFERENCE[name]["shapes"])
    del weights["blocks.1.norm1.bias"], weights["head.weight"]
    with pytest.raises(UserError, match=r"blocks\.1\.norm1\.bias: missing"):
        start_from(small(name), weights, name)


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        (
            "vit_base_patch16_clip_224",
            "vit_base_patch16_clip_quickgelu_224.openai",
            "has QuickGELU; use .* with",
        ),
        (
            "vit_base_patch16_clip_quickgelu_224",
            "vit_base_patch16_clip_224.laion2b",
            "no QuickGELU; use .* without",
        ),
    ],
)
def test_clip_weights_with_another_activation_are_rejected(name: str, source: str, message: str) -> None:
    weights = weights_of(REFERENCE[name]["shapes"])
    with pytest.raises(UserError, match=message):
        fill_model(small(name), weights, source)


@ALL
def test_training_reaches_all_weights_and_heat_maps_cover_the_patches(name: str) -> None:
    model = small(name, drop_path_rate=0.1, drop_rate=0.1, attn_drop_rate=0.1)
    model.train()
    model(paddle.to_tensor(images_of(name, GRID))).square().sum().backward()
    without = [key for key, parameter in model.named_parameters() if parameter.grad is None]
    assert without == []
    model.eval()
    assert attention_rollout(model, images_of(name, GRID)[:1]).shape == (GRID, GRID)
