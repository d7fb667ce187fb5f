"""The check of labels at the end of a run computes features with the fastest layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import paddle
import pytest
from paddle import nn
from small_classifier import config_tree, write_weights

from ppcls.arch.fuse import InferenceLayers
from ppcls.engine.core.precision import build_precision
from ppcls.engine.head.features import FeatureModel
from ppcls.engine.recording import load_best, load_for_features
from ppcls.recipe.load import validate


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_features_of_the_label_check_are_those_of_paddle_by_onednn_layers(
    tmp_path: Path, layout: str
) -> None:
    weights = write_weights(tmp_path / "model.safetensors")
    config = validate(config_tree(weights, None, layout), "test")
    precision = build_precision(config.AMP, "cpu")
    plain = load_best(config.Arch, config.Loss.Train, lambda: weights)
    layers = InferenceLayers.choose(config.Arch, "auto", "cpu", precision.name)
    fast = load_for_features(layers, config.Loss.Train, lambda: weights)
    assert plain is not None
    assert fast is not None
    shape = [4, 3, 32, 32] if layout == "NCHW" else [4, 32, 32, 3]
    images = paddle.rand(shape)
    expected, found = (FeatureModel(model, precision).compute_batch(images) for model in (plain, fast))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    for model, replaced in ((plain, False), (fast, True)):
        convolutions = [layer for layer in model.sublayers() if isinstance(layer, nn.Conv2D)]
        assert {"forward" in vars(layer) for layer in convolutions} == {replaced}


def test_without_a_best_model_there_are_no_features(tmp_path: Path) -> None:
    config = validate(config_tree(write_weights(tmp_path / "model.safetensors"), None), "test")
    layers = InferenceLayers.choose(config.Arch, "auto", "cpu", "float32")
    assert load_for_features(layers, config.Loss.Train, lambda: None) is None
