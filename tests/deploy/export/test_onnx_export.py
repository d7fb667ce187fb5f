from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import paddle
import pytest
from paddle import nn
from small_classifier import config_tree, forget_files, write_config, write_image, write_names, write_weights

from ppcls.arch.build import build_model
from ppcls.cli import export as export_cli
from ppcls.deploy.export import onnx as onnx_export
from ppcls.deploy.export import parity
from ppcls.deploy.export.formats import convert_to_onnx
from ppcls.deploy.export.onnx import convert
from ppcls.deploy.predictor import Predictor
from ppcls.errors import UserError
from ppcls.weights.files import write_arrays


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_weights(tmp_path_factory.mktemp("weights") / "model.safetensors")


def export(folder: Path, tree: dict[str, Any]) -> int:
    """Exports into ``folder/inference``."""
    config = write_config(folder / "config.yaml", tree)
    options = ["-o", f"Global.save_inference_dir={folder / 'inference'}"]
    return export_cli.export(["-c", str(config), "--format", "onnx", *options])


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_onnx_export_predicts_the_same_as_paddle(
    tmp_path: Path, weights: Path, layout: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = config_tree(weights, write_names(tmp_path / "names.txt"), layout)
    assert export(tmp_path, tree) == 0
    said = capsys.readouterr()
    assert said.err == ""
    first, second, _ = said.out.splitlines()  # the last line says that there are no evaluation images
    folder = tmp_path / "inference"
    assert first.startswith(f"[Export] {weights} -> {folder}: inference.onnx, inference.yml, ")
    assert first.endswith("input [-1, 3, 32, 32] float32 NCHW, any batch size")
    found = re.search(r"is at most (\d\.\de-\d\d)", second)
    assert found is not None
    assert 0 < float(found[1]) < 1e-4
    images = [write_image(tmp_path / f"{seed}.png", seed).read_bytes() for seed in range(5)]
    expected = Predictor(tmp_path / "config.yaml").predict(images)
    for model in (folder, folder / "inference.onnx"):
        results = Predictor(model, batch_size=3).predict(images)
        assert [each.class_ids for each in results] == [each.class_ids for each in expected]
        assert [each.names for each in results] == [each.names for each in expected]
        np.testing.assert_allclose(
            [each.scores for each in results], [each.scores for each in expected], atol=1e-5
        )


@pytest.mark.parametrize(
    "name",
    [
        # Its layers are those of PP-LCNet.
        pytest.param("MobileNetV3_small_x0_35", marks=pytest.mark.slow),
        *("PPLCNet_x0_25", "DeiT_tiny_patch16_224"),
    ],
)
def test_onnx_export_of_other_families_predicts_the_same(tmp_path: Path, name: str) -> None:
    paddle.seed(3)
    size = {"img_size": 32} if name.startswith("DeiT") else {}
    write_arrays(tmp_path / "model.safetensors", build_model(name, 3, **size).state_dict())
    tree = config_tree(tmp_path / "model.safetensors", None, name=name)
    tree["Arch"] |= size
    assert export(tmp_path, tree) == 0


def test_onnx_export_that_differs_is_not_written(
    tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(parity, "TOLERANCE", 0.0)
    assert export(tmp_path, config_tree(weights, None)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "the scores of the exported WideResNet differ by " in said.err
    assert "nothing was written" in said.err
    assert [each.name for each in tmp_path.iterdir()] == ["config.yaml"]


def test_onnx_export_without_converter_is_an_error(
    tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(onnx_export, "_CONVERTERS", {True: ">=98,<99", False: ">=99"})
    assert export(tmp_path, config_tree(weights, None)) == 2
    wanted = ">=98,<99" if paddle.__version__.startswith("3") else ">=99"
    assert re.search(
        rf"ONNX with Paddle {re.escape(paddle.__version__)}: paddle2onnx is [\d.]+; "
        rf"pip install 'paddle2onnx{wanted}'\n",
        capsys.readouterr().err,
    )


def test_convert_unreadable_program_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "inference.json").write_text("{}")
    (tmp_path / "inference.pdiparams").write_bytes(b"")
    with pytest.raises(UserError, match=r"paddle2onnx [\d.]+ cannot convert ResNet18; see its output above"):
        convert(tmp_path / "inference.json", "ResNet18")


def test_program_without_weights_is_converted(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Flatten(), nn.ReLU())
    spec = paddle.static.InputSpec([None, 2, 3], "float32", name="x")

    def save(stem: Path) -> None:
        paddle.jit.save(paddle.jit.to_static(network, input_spec=[spec], full_graph=True), str(stem))

    session = onnxruntime.InferenceSession(convert_to_onnx(save, tmp_path, "flatten"))
    images = np.float32([[[-1, 2, -3], [4, -5, 6]]])
    np.testing.assert_array_equal(session.run(None, {"x": images})[0], [[0, 2, 0, 4, 0, 6]])


def test_damaged_onnx_file_is_an_error(tmp_path: Path, weights: Path) -> None:
    assert export(tmp_path, config_tree(weights, None)) == 0
    file = tmp_path / "inference" / "inference.onnx"
    whole = file.read_bytes()
    file.write_bytes(whole[:5000])
    with pytest.raises(UserError, match=r"inference.onnx: damaged or from another export"):
        Predictor(file)
    forget_files(file.parent)
    with pytest.raises(
        UserError, match=r"inference.onnx: not an exported network: a field extends beyond the end"
    ):
        Predictor(file)
    file.write_bytes(b"")
    with pytest.raises(UserError, match=r"inference\.onnx: the file is empty; export the model again"):
        Predictor(file)
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        file.write_bytes(whole)
        with pytest.raises(UserError, match=r"Global\.device is gpu, but .* onnxruntime supports only CPUs"):
            Predictor(file, device="gpu")
