"""Settings with which Paddle Inference runs a model on a GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import paddle
import pytest
from small_classifier import config_tree, write_config, write_weights

from ppcls.cli.export import export
from ppcls.deploy.models import paddle_inference
from ppcls.deploy.models.description import read_description
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
