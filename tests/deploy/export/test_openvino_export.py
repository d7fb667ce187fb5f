"""Export in OpenVINO's format."""

from __future__ import annotations

import resource
import signal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_classifier import config_tree, write_config, write_image, write_names, write_weights

from ppcls.arch.families.vision_transformer import VisionTransformer
from ppcls.cli.export import export
from ppcls.cli.infer import infer
from ppcls.deploy.export import openvino as openvino_export
from ppcls.deploy.export.formats import convert_to_onnx
from ppcls.deploy.models.description import ExportRecord, read_description
from ppcls.deploy.predictor import Predictor

IMAGES = 24

needs_openvino = pytest.mark.skipif(find_spec("openvino") is None, reason="needs the package openvino")
needs_nncf = pytest.mark.skipif(find_spec("nncf") is None, reason="needs the package nncf")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A config with random weights, and images for calibration and evaluation."""
    folder = tmp_path_factory.mktemp("weights")
    tree = config_tree(write_weights(folder / "model.safetensors"), write_names(folder / "names.txt"))
    for number in range(IMAGES):
        write_image(folder / f"{number}.png", number)
    (folder / "list.txt").write_text("".join(f"{number}.png {number % 3}\n" for number in range(IMAGES)))
    dataset = {
        "name": "ImageNetDataset",
        "image_root": str(folder),
        "cls_label_path": str(folder / "list.txt"),
    }
    split = {
        "dataset": {**dataset, "transform_ops": tree["Infer"]["transforms"]},
        "sampler": {"batch_size": 4},
    }
    tree["DataLoader"] = {"Train": split, "Eval": split}
    return tree


def run_export(folder: Path, tree: dict[str, Any], *options: str) -> int:
    config = write_config(folder / "config.yaml", tree)
    place = ["-o", f"Global.save_inference_dir={folder / 'model'}"]
    return export(["-c", str(config), "--format", "openvino", *options, *place])


def exported_record(folder: Path) -> ExportRecord:
    record = read_description(folder / "model").Export
    assert record is not None
    assert record.comparison is not None
    assert record.comparison.images == IMAGES
    return record


@needs_openvino
@pytest.mark.parametrize("precision", ["float32", pytest.param("int8", marks=needs_nncf)])
def test_openvino_export_that_normalizes_is_compared_on_pixels(
    tmp_path: Path, tree: dict[str, Any], precision: str
) -> None:
    import openvino

    count = ["--calibration-images", str(IMAGES), "--max-accuracy-loss", "100"]
    assert run_export(tmp_path, tree, "--precision", precision, "--preprocess", "normalize", *count) == 0
    record = exported_record(tmp_path)
    assert record.comparison is not None
    assert record.comparison.largest_difference < 0.2
    assert read_description(tmp_path / "model").Input.shape == (-1, 32, 32, 3)
    model = openvino.Core().read_model(tmp_path / "model/inference.xml")
    (image,) = model.get_parameters()
    assert image.get_element_type().get_type_name() == "u8"
    (first,) = (each.get_node() for each in image.output(0).get_target_inputs())
    assert first.get_type_name() == "Convert", "the pixels are not quantized again"


@needs_openvino
@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
def test_openvino_export_is_compared_and_predicts(
    tmp_path: Path, tree: dict[str, Any], precision: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from ppcls.deploy.models.openvino import supports_bfloat16

    if precision == "bfloat16" and not supports_bfloat16():
        pytest.skip("needs a CPU with AVX-512")
    assert run_export(tmp_path, tree, "--precision", precision, "--max-accuracy-loss", "100") == 0
    assert sorted(file.name for file in (tmp_path / "model").iterdir()) == [
        "inference.bin",
        "inference.xml",
        "inference.yml",
    ]
    record = exported_record(tmp_path)
    assert record.precision == precision
    assert record.comparison is not None
    limits = {"float32": (0, 1e-5), "float16": (1e-8, 0.01), "bfloat16": (1e-5, 0.05)}
    low, high = limits[precision]
    assert low <= record.comparison.largest_difference <= high
    capsys.readouterr()
    image = str(write_image(tmp_path / "image.png", 0))
    assert infer(["--model", str(tmp_path / "model/inference.xml"), image]) == 0
    assert f"(CPU, {precision})" in capsys.readouterr().err


@needs_openvino
def test_openvino_float16_export_halves_the_weights(tmp_path: Path, tree: dict[str, Any]) -> None:
    sizes = []
    for precision in ("float32", "float16"):
        folder = tmp_path / precision
        folder.mkdir()
        assert run_export(folder, tree, "--precision", precision, "--max-accuracy-loss", "100") == 0
        sizes.append((folder / "model/inference.bin").stat().st_size)
    assert sizes[1] == pytest.approx(sizes[0] / 2, rel=0.01)


@needs_nncf
def test_openvino_int8_export_is_calibrated_by_nncf(
    tmp_path: Path, tree: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--precision", "int8", "--calibration-images", "20", "--max-accuracy-loss", "100"]
    assert run_export(tmp_path, tree, *options) == 0
    record = exported_record(tmp_path)
    assert record.calibration is not None
    assert (record.calibration.method, record.calibration.images) == ("nncf", 20)
    line = next(line for line in capsys.readouterr().out.splitlines() if "int8:" in line)
    assert " Convolution" in line.partition("float32:")[0]
    assert "1 Softmax" in line.partition("float32:")[2]
    scores = Predictor(tmp_path / "model").model.run(np.ones((2, 3, 32, 32), np.float32))
    np.testing.assert_allclose(scores.sum(axis=1), 1, rtol=1e-5)


@needs_nncf
def test_openvino_int8_export_quantizes_depthwise_convolutions(
    tmp_path: Path, tree: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    name = "MobileNetV3_small_x0_35"
    weights = write_weights(tmp_path / "weights.safetensors", name)
    depthwise = {
        **tree,
        "Arch": {"name": name, "class_num": 3},
        "Global": {**tree["Global"], "pretrained_model": str(weights)},
    }
    options = ["--precision", "int8", "--calibration-images", "20", "--max-accuracy-loss", "100"]
    assert run_export(tmp_path, depthwise, *options) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "int8:" in line)
    assert " Convolution" not in line.partition("float32:")[2]


@needs_nncf
def test_openvino_int8_export_of_attention_is_close_to_float32(tmp_path: Path) -> None:
    """Some channels of trained transformers are many times larger than the others; NNCF must balance them.

    Without this, the largest difference is two thirds of the largest logit.
    """
    import openvino

    paddle.seed(7)
    network = VisionTransformer(32, 8, 64, 2, 4, class_num=10)
    network.eval()
    for name, parameter in network.named_parameters():
        if "norm" in name and name.endswith("weight"):
            values = parameter.numpy().copy()
            values[3] = 20
            parameter.set_value(values)
    spec = paddle.static.InputSpec([None, 3, 32, 32], "float32", name="x")
    graph = paddle.jit.to_static(network, input_spec=[spec], full_graph=True)
    data = convert_to_onnx(lambda stem: paddle.jit.save(graph, str(stem)), tmp_path, "ViT")
    (tmp_path / "model.onnx").write_bytes(data)
    random = np.random.default_rng(0)
    batches = [random.standard_normal((4, 3, 32, 32)).astype(np.float32) for _ in range(6)]
    file = tmp_path / "inference.xml"
    openvino_export.write_openvino(tmp_path / "model.onnx", file)
    exact = openvino.Core().compile_model(file, "CPU")(batches[0])[0]
    operators = openvino_export.quantize_with_nncf(file, "ViT", batches)
    assert operators.int8["FullyConnected"] >= 8
    logits = openvino.Core().compile_model(file, "CPU")(batches[0])[0]
    assert np.abs(logits - exact).max() < 0.15 * np.abs(exact).max()


@needs_openvino
def test_openvino_file_on_a_full_disk_is_an_error(tmp_path: Path) -> None:
    """The kernel cuts files at a limit, as a full disk does."""
    shapes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 256]) for name in ("x", "y")]
    weights = numpy_helper.from_array(np.random.default_rng(0).random((256, 256), np.float32), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", shapes[:1], shapes[1:], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 15, before[1]))
        with pytest.raises(OSError, match=r"OpenVINO cannot write inference\.xml \(\d+ MB are free\)"):
            openvino_export.write_openvino(tmp_path / "model.onnx", tmp_path / "inference.xml")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_openvino_export_without_a_package_is_an_error(
    tmp_path: Path,
    tree: dict[str, Any],
    precision: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    missing = "nncf" if precision == "int8" else "openvino"
    monkeypatch.setattr(openvino_export, "find_spec", lambda name: None if name == missing else object())
    assert run_export(tmp_path, tree, "--precision", precision) == 2
    assert (
        f"--format openvino --precision {precision}: not installed: {missing}; pip install 'openvino>=2025' "
    ) in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]
