"""Images that are small, but would become huge when their shorter side is resized."""

from __future__ import annotations

import resource
from pathlib import Path

import cv2
import numpy as np
import pytest
from small_classifier import config_tree, write_config, write_names, write_weights

from ppcls.cli.export import export
from ppcls.data.images.header import DecodeError
from ppcls.data.transforms.numpy_ops.basic import resized_shape
from ppcls.data.transforms.specs import ResizeImage
from ppcls.deploy.predictor import Predictor

pytestmark = pytest.mark.hostile


@pytest.mark.parametrize(("height", "width"), [(1, 4000), (4000, 1), (1, 100_000), (2, 100_000_000)])
def test_resized_size_is_limited(height: int, width: int) -> None:
    with pytest.raises(
        DecodeError, match=r"would resize the image of .* pixels, expected at most 100,000,000"
    ):
        resized_shape(ResizeImage(resize_short=256), height, width)


@pytest.mark.parametrize("backend", ["cv2", "pil"])
@pytest.mark.parametrize("preprocess", [[], ["--preprocess", "all"]])
def test_thin_image_is_rejected_without_memory(tmp_path: Path, backend: str, preprocess: list[str]) -> None:
    if backend == "pil" and preprocess:
        pytest.skip("not supported in a graph")
    weights = write_weights(tmp_path / "model.safetensors")
    tree = config_tree(weights, write_names(tmp_path / "names.txt"))
    tree["Infer"]["transforms"][1] = {"ResizeImage": {"resize_short": 256, "backend": backend}}
    config = str(write_config(tmp_path / "config.yaml", tree))
    assert export(["-c", config, "--format", "onnx", "--output", str(tmp_path / "onnx"), *preprocess]) == 0
    predictor = Predictor(tmp_path / "onnx", device="cpu")
    thin = cv2.imencode(".png", np.zeros((1, 4000, 3), np.uint8))[1].tobytes()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match="would resize the image of 4000x1 pixels"):
        predictor.predict([thin])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10
