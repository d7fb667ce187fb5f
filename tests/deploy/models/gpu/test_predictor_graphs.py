"""float16 models for GPUs, which run as CUDA graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import paddle
import pytest
import yaml
from small_classifier import config_tree, write_config, write_weights

from ppcls.cli.export import export
from ppcls.deploy.models.description import read_description
from ppcls.deploy.models.gpu.predictor_graphs import PredictorGraphs
from ppcls.deploy.models.paddle_inference import PaddleInferenceModel
from ppcls.deploy.models.source import find_program
from ppcls.errors import UserError
from ppcls.runtime.start import Runtime

NAME = "ResNet18"


def export_model(folder: Path, device: str, *options: str, name: str = NAME) -> Path:
    tree = config_tree(write_weights(folder / "model.safetensors", name), None, name=name)
    tree["Global"]["device"] = device
    exported = folder / "inference"
    config = str(write_config(folder / "config.yaml", tree))
    assert export(["-c", config, *options, "-o", f"Global.save_inference_dir={exported}"]) == 0
    return exported


def load(folder: Path) -> PaddleInferenceModel:
    return PaddleInferenceModel(
        find_program(folder), read_description(folder), Runtime(device="gpu", device_id=0)
    )


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ResNet18", []),
        ("ResNet18", ["--preprocess", "normalize"]),
        ("Res2Net50_26w_4s", []),
        ("DarkNet53", []),
        ("HRNet_W18_C", []),
        ("RepVGG_A0", []),
    ],
)
def test_graphs_of_an_export_return_the_outputs_of_plain_runs(
    tmp_path: Path, name: str, options: list[str]
) -> None:
    folder = export_model(tmp_path, "gpu", "--precision", "float16", *options, name=name)
    description, random = read_description(folder), np.random.default_rng(0)
    assert description.needs_gpu
    assert description.Input.layout == ("NHWC" if options else "NCHW")
    model, plain = load(folder), load(folder)
    plain._graphs = None
    for count in (3, 1, 3, 1, 3, 1, 3, 1, 3):  # the first two runs of a shape are plain ones
        images = description.random_images(count, random)
        np.testing.assert_allclose(model.run(images), plain.run(images), atol=2e-3)
    on_gpu = paddle.to_tensor(images)
    np.testing.assert_allclose(model.run(on_gpu), plain.run(images), atol=2e-3)
    assert model._graphs is not None
    assert {shape[0] for shape in model._graphs._graphs} == {1, 3}


@pytest.mark.gpu
def test_model_that_cannot_be_captured_runs_operator_by_operator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = export_model(tmp_path, "gpu", "--precision", "float16")
    images = read_description(folder).random_images(2, np.random.default_rng(0))
    model = load(folder)
    expected = model.run(images)

    def fail(*_: object) -> None:
        raise UserError("reason")

    monkeypatch.setattr(PredictorGraphs, "run", fail)
    capsys.readouterr()
    np.testing.assert_array_equal(model.run(images), expected)
    assert capsys.readouterr().err == (
        f"warning: {find_program(folder)}: runs operator by operator: reason\n"
    )


def test_model_for_gpus_is_rejected_on_a_cpu(tmp_path: Path) -> None:
    folder = export_model(tmp_path, "cpu", name="WideResNet")
    file = folder / "inference.yml"
    tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    tree["Export"] |= {"precision": "float16", "device": "gpu"}
    write_config(file, tree)
    with pytest.raises(
        UserError, match="this float16 model was exported for a GPU, but this run uses the CPU"
    ):
        PaddleInferenceModel(find_program(folder), read_description(folder), Runtime())
