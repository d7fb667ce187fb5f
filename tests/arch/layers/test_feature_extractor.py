"""Features of layers within a model, compared with PaddleClas's."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.nn import functional as F
from paddleclas_reference import CLASSES, LAYERS, SIDES, fill, images

from ppcls.arch.build import build_model
from ppcls.arch.layers.feature_extractor import FeatureExtractor, FeatureLayerError
from ppcls.arch.layers.mobile import InvertedResidual

SCRIPT = str(sys.modules["paddleclas_reference"].__file__)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    path = tmp_path_factory.mktemp("layers") / "layers.npz"
    subprocess.run([sys.executable, SCRIPT, str(path), "layers"], check=True)
    with np.load(path) as file:
        return dict(file)


@pytest.mark.parametrize("data_format", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", LAYERS)
def test_extracted_features_equal_paddleclas(
    reference: dict[str, np.ndarray], name: str, data_format: str
) -> None:
    model = build_model(name, class_num=CLASSES, data_format=data_format)
    fill(model)
    model.eval()
    image = paddle.to_tensor(images(SIDES))
    with paddle.no_grad():
        logits, features = FeatureExtractor(model, LAYERS[name], data_format)(
            image if data_format == "NCHW" else image.transpose([0, 2, 3, 1])
        )
    assert list(features) == list(LAYERS[name])
    for key, value in {"logits": logits, **features}.items():
        want = reference[f"{name}/{key}"]
        np.testing.assert_allclose(value.numpy(), want, atol=1e-4 * np.abs(want).max(), err_msg=key)


def test_model_call_is_unchanged_and_stores_no_features() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    extractor, image = FeatureExtractor(model, ["0", "1"]), paddle.randn([5, 3])
    plain = model(image)
    assert extractor._features is None
    logits, features = extractor(image)
    assert extractor._features is None
    np.testing.assert_array_equal(plain.numpy(), logits.numpy())
    np.testing.assert_array_equal(features["0"].numpy(), model[0](image).numpy())
    np.testing.assert_array_equal(features["1"].numpy(), np.maximum(features["0"].numpy(), 0))
    features["1"].sum().backward()
    assert model[0].weight.grad is not None
    assert model[2].weight.grad is None


def test_output_before_a_shortcut_is_extracted() -> None:
    block = InvertedResidual(4, 8, 4, 3, 1, F.relu)
    block.eval()
    x = paddle.randn([2, 4, 5, 5])
    y, features = FeatureExtractor(block, ["linear_conv"])(x)
    np.testing.assert_allclose((features["linear_conv"] + x).numpy(), y.numpy(), rtol=1e-5, atol=1e-6)


def test_missing_or_uncalled_layer_is_rejected() -> None:
    model = build_model("ResNet18", class_num=CLASSES)
    with pytest.raises(
        FeatureLayerError, match=r"ResNet has no layer 'blocks\[8\]'; known: blocks.0, blocks.1,"
    ):
        FeatureExtractor(model, ["blocks[8]"])
    with pytest.raises(FeatureLayerError, match=r"no layer 'neck'; known: stem, max_pool, blocks, avg_pool"):
        FeatureExtractor(model, ["neck"])
    fused = FeatureExtractor(model, ["blocks[0].conv1"])  # its norm is fused with the following addition
    with pytest.raises(
        FeatureLayerError, match=r"ResNet has no separate output of layer 'blocks\[0\].conv1'"
    ):
        fused(paddle.to_tensor(images(SIDES)))
