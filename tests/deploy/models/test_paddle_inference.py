"""Runs exported models with Paddle Inference, and the settings for it on a GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import paddle
import pytest
from small_classifier import config_tree, write_config, write_weights

from ppcls.arch.families.swin_transformer import SwinTransformer
from ppcls.cli.export import export
from ppcls.deploy.models import paddle_inference
from ppcls.deploy.models.description import ModelDescription, read_description
from ppcls.deploy.models.paddle_inference import PaddleInferenceModel
from ppcls.deploy.models.source import find_program
from ppcls.runtime.start import Runtime

SEARCH = "FLAGS_cudnn_exhaustive_search"


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "largest"), [("float32", 4), ("float16", 32)])
def test_kernel_search_is_disabled_for_large_batches(
    tmp_path: Path, precision: str, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SEARCH, raising=False)
    tree = config_tree(write_weights(tmp_path / "model.safetensors"), None)
    tree["Global"]["device"] = "gpu"
    folder = tmp_path / "inference"
    options = ["--precision", precision, "-o", f"Global.save_inference_dir={folder}"]
    assert export(["-c", str(write_config(tmp_path / "config.yaml", tree)), *options]) == 0
    paddle.set_flags({SEARCH: True})
    model = PaddleInferenceModel(
        find_program(folder), read_description(folder), Runtime(device="gpu", device_id=0)
    )
    for size, searches in ((largest, True), (largest + 1, False)):
        with model._kernel_search(size):
            assert paddle.get_flags(SEARCH)[SEARCH] is searches
        assert paddle.get_flags(SEARCH)[SEARCH] is True
    monkeypatch.setenv(SEARCH, "1")
    with model._kernel_search(largest + 1):
        assert paddle.get_flags(SEARCH)[SEARCH] is True


def test_kernel_search_on_a_cpu_is_not_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = config_tree(write_weights(tmp_path / "model.safetensors"), None)
    folder = tmp_path / "inference"
    place = ["-o", f"Global.save_inference_dir={folder}", "-o", "Global.device=cpu"]
    assert export(["-c", str(write_config(tmp_path / "config.yaml", tree)), *place]) == 0
    description = read_description(folder)
    model = PaddleInferenceModel(find_program(folder), description, Runtime())
    monkeypatch.setattr(paddle_inference.paddle, "set_flags", pytest.fail)
    images = description.random_images(40, np.random.default_rng(0))
    assert model.run(images).shape == (40, description.width)


@pytest.mark.parametrize("side", [pytest.param(27, marks=pytest.mark.slow), 28])
def test_padded_tokens_and_patches_are_those_of_the_trained_network(side: int, tmp_path: Path) -> None:
    """Merging pads the 7 tokens per side of 28 pixels. Images of 27 pixels have incomplete patches."""
    paddle.seed(1)
    network = SwinTransformer(16, (1, 1, 1, 1), 2, 7, class_num=3)
    network.eval()
    shape = [-1, 3, side, side]
    spec = paddle.static.InputSpec(shape, "float32", "x")
    program = paddle.jit.to_static(network, input_spec=[spec], full_graph=True)
    paddle.jit.save(program, str(tmp_path / "inference"))
    chain = [{"DecodeImage": None}, {"ResizeImage": {"size": side}}, {"NormalizeImage": None}]
    description = ModelDescription.model_validate(
        {
            "Global": {"model_name": "SwinTransformer"},
            "Input": {"name": "x", "shape": shape, "dtype": "float32", "layout": "NCHW"},
            "PreProcess": {"transform_ops": [*chain, {"ToCHWImage": None}]},
            "Output": {"shape": [-1, 3], "dtype": "float32", "activation": "l2_norm"},
            "PostProcess": None,
        }
    )
    model = PaddleInferenceModel(find_program(tmp_path), description, Runtime())
    images = description.random_images(2, np.random.default_rng(0))
    expected = network(paddle.to_tensor(images)).numpy()
    np.testing.assert_allclose(model.run(images), expected, rtol=1e-4, atol=1e-5)
