from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import onnxruntime
import paddle
import pytest
import yaml
from onnx import TensorProto, helper
from small_classifier import arch_tree, config_tree, write_config, write_image
from tensorrt_operators import unsupported

from benchmarks.infer.requests import find_models, make_candidates
from ppcls.arch.build import build_model
from ppcls.bench.measure.runner import Effort
from ppcls.cli.export import export
from ppcls.cli.infer import infer
from ppcls.deploy.export import export as export_module
from ppcls.deploy.export.accuracy import check_accuracy, compare_accuracy
from ppcls.deploy.export.precision import quantize
from ppcls.deploy.models.description import Comparison, ModelDescription, read_description
from ppcls.errors import UserError
from ppcls.postprocess.methods import MultiLabelThreshOutput, Topk
from ppcls.weights.files import write_arrays

IMAGES = 20


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A small network with random weights, and images for calibration and evaluation; one is damaged."""
    folder = tmp_path_factory.mktemp("precision")
    paddle.seed(3)
    model = build_model(**arch_tree(), class_num=3)
    model.train()
    model(paddle.randn([8, 3, 32, 32]))
    write_arrays(folder / "model.safetensors", model.state_dict())
    for number in range(IMAGES):
        write_image(folder / f"{number}.png", number)
    (folder / "broken.png").write_bytes(b"no image")
    names = [*(f"{number}.png" for number in range(IMAGES)), "broken.png"]
    (folder / "list.txt").write_text("".join(f"{name} {row % 3}\n" for row, name in enumerate(names)))
    tree = config_tree(folder / "model.safetensors", None)
    split = {
        "dataset": {
            "name": "ImageNetDataset",
            "image_root": str(folder),
            "cls_label_path": str(folder / "list.txt"),
            "transform_ops": tree["Infer"]["transforms"],
        },
        "sampler": {"batch_size": 4},
    }
    tree["DataLoader"] = {"Train": split, "Eval": split}
    return tree


def run_export(folder: Path, tree: dict[str, Any], *options: str, kind: str = "onnx") -> int:
    config = write_config(folder / "config.yaml", tree)
    place = ["-o", f"Global.save_inference_dir={folder / 'inference'}"]
    return export(["-c", str(config), "--format", kind, *options, *place])


@pytest.fixture(scope="module")
def quantized(trained: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("int8")
    count = ["--calibration-images", str(IMAGES), "--max-accuracy-loss", "100"]
    assert run_export(folder, trained, "--precision", "int8", *count) == 0
    return folder / "inference"


def test_int8_export_has_int8_operators_and_float32_scores(quantized: Path) -> None:
    graph = onnx.load(quantized / "inference.onnx").graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    first = next(node for node in graph.node if node.op_type == "Conv")
    convert = next(node for node in graph.node if node.output[0] == first.input[1])
    assert convert.op_type == "DequantizeLinear"
    weights, scales = (tensors[name] for name in convert.input[:2])
    assert weights.data_type == TensorProto.INT8
    assert scales.dims == weights.dims[:1], "one scale per output channel"
    last = next(node for node in graph.node if node.output[0] == graph.output[0].name)
    assert last.op_type == "Softmax"
    before = next(node for node in graph.node if node.output[0] == last.input[0])
    assert before.op_type not in ("QuantizeLinear", "DequantizeLinear")


def test_signed_int8_activations_have_the_operators_of_tensorrt(
    quantized: Path, trained: dict[str, Any], tmp_path: Path
) -> None:
    assert "QuantizeLinear with a zero point" in unsupported(quantized / "inference.onnx")
    count = ["--calibration-images", str(IMAGES), "--max-accuracy-loss", "100"]
    options = ["--precision", "int8", "--int8-activations", "signed"]
    assert run_export(tmp_path, trained, *options, *count) == 0
    assert unsupported(tmp_path / "inference/inference.onnx") == []
    record = read_description(tmp_path / "inference").Export
    assert record is not None
    assert record.comparison is not None
    assert 0 < record.comparison.largest_difference < 0.2


def test_int8_export_records_calibration_and_comparison(quantized: Path, trained: dict[str, Any]) -> None:
    record = read_description(quantized).Export
    assert record is not None
    assert record.precision == "int8"
    source = trained["DataLoader"]["Eval"]["dataset"]["cls_label_path"]
    assert record.calibration is not None
    # One of 20 evenly spaced images of 21 is the damaged one.
    assert record.calibration.model_dump() == {"method": "percentile", "images": IMAGES - 1, "source": source}
    assert record.comparison is not None
    assert record.comparison.images == IMAGES
    assert record.comparison.source == source
    assert record.comparison.trained_accuracy is not None
    assert 0 < record.comparison.largest_difference < 0.2
    assert record.comparison.agreement > 0.5


@pytest.mark.parametrize("precision", ["float16", "int8"])
def test_export_that_normalizes_is_compared_on_pixels(
    tmp_path: Path, trained: dict[str, Any], precision: str, capsys: pytest.CaptureFixture[str]
) -> None:
    count = ["--calibration-images", str(IMAGES), "--max-accuracy-loss", "100"]
    assert run_export(tmp_path, trained, "--precision", precision, "--preprocess", "normalize", *count) == 0
    printed = capsys.readouterr().out
    assert "input [-1, 32, 32, 3] uint8 NHWC, any batch size" in printed
    assert f"compared on {IMAGES} images of " in printed
    record = read_description(tmp_path / "inference").Export
    assert record is not None
    assert record.comparison is not None
    assert 0 < record.comparison.largest_difference < 0.2
    graph = onnx.load(tmp_path / "inference/inference.onnx").graph
    before_conv = []
    for node in graph.node:
        if node.op_type == "Conv":
            break
        before_conv.append(node.op_type)
    normalization = {"Cast", "Mul", "Add", "Sub", "Div", "Transpose", "Constant", "Identity"}
    assert set(before_conv) - {"QuantizeLinear", "DequantizeLinear"} <= normalization
    assert before_conv.count("QuantizeLinear") == (1 if precision == "int8" else 0), "only the Conv's input"


def test_int8_export_predicts_by_onnxruntime(quantized: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = write_image(quantized.parent / "photo.png", 5)
    settings = ["-o", "Global.device=cpu", "-o", "Infer.engine=onnxruntime"]
    assert infer(["--model", str(quantized), "--json", str(image), *settings]) == 0
    printed = capsys.readouterr()
    assert len(json.loads(printed.out)["scores"]) == 2
    engine = f"ONNX Runtime {onnxruntime.__version__} (CPU, int8)"
    assert printed.err == f"[Infer] WideResNet by {engine}\n"


def test_benchmark_of_int8_model_names_its_precision(quantized: Path) -> None:
    (candidate,) = make_candidates(
        find_models([quantized], ["Infer.engine=onnxruntime"]), "cpu", ([1], [1]), [], Effort()
    )
    assert candidate.labels["run by"] == "onnxruntime int8"


def test_float16_export_keeps_float32_input_and_scores(
    tmp_path: Path, trained: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_export(tmp_path, trained, "--precision", "float16", "--evaluation-images", "9") == 0
    model = onnx.load(tmp_path / "inference/inference.onnx")
    types = {tensor.type.tensor_type.elem_type for tensor in (model.graph.input[0], model.graph.output[0])}
    assert types == {TensorProto.FLOAT}
    constants = [node.attribute[0].t for node in model.graph.node if node.op_type == "Constant"]
    tensors = [*constants, *model.graph.initializer]
    stored = {tensor.data_type for tensor in tensors if len(tensor.dims) == 4}
    assert stored == {TensorProto.FLOAT16}
    line = capsys.readouterr().out.splitlines()[-1]
    assert "compared on 8 images of " in line, "the damaged image is not counted"
    record = yaml.safe_load((tmp_path / "inference/inference.yml").read_text())["Export"]
    assert record["precision"] == "float16"
    assert 0 < record["comparison"]["largest_difference"] < 0.01


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_paddle_export_in_a_precision_that_the_cpu_lacks_is_an_error(
    tmp_path: Path,
    trained: dict[str, Any],
    precision: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(paddle.base.core, "supports_bfloat16", lambda: False)
    options = ["--precision", precision, "-o", "Global.device=cpu"]
    assert run_export(tmp_path, trained, *options, kind="paddle") == 2
    assert (
        "this run uses the CPU, so the exported model cannot be compared with the trained one; nothing was "
        "written. Export on another device (-o Global.device=gpu), or use --format onnx --precision float16"
    ) in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


@pytest.mark.skipif(not paddle.base.core.supports_bfloat16(), reason="needs a CPU with AVX-512")
def test_paddle_bfloat16_export_is_compared_and_predicts_on_a_cpu(
    tmp_path: Path, trained: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--precision", "bfloat16", "--max-accuracy-loss", "100", "-o", "Global.device=cpu"]
    assert run_export(tmp_path, trained, *options, kind="paddle") == 0
    assert f"compared on {IMAGES} images of " in capsys.readouterr().out
    record = read_description(tmp_path / "inference").Export
    assert record is not None
    assert record.comparison is not None
    assert record.precision == "bfloat16"
    assert 1e-5 < record.comparison.largest_difference < 0.02, "it computes in bfloat16"
    check_prediction(tmp_path / "inference", "CPU, bfloat16", capsys)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_paddle_half_precision_export_is_compared_and_predicts_on_a_gpu(
    tmp_path: Path, trained: dict[str, Any], precision: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--precision", precision, "--max-accuracy-loss", "100", "-o", "Global.device=gpu"]
    assert run_export(tmp_path, trained, *options, kind="paddle") == 0
    assert f"compared on {IMAGES} images of " in capsys.readouterr().out
    record = read_description(tmp_path / "inference").Export
    assert record is not None
    assert record.comparison is not None
    assert 0 < record.comparison.largest_difference < 0.02
    check_prediction(tmp_path / "inference", f"GPU, {precision}", capsys)


def check_prediction(model: Path, engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    image = write_image(model.parent / "photo.png", 5)
    device = engine.partition(",")[0].lower()
    assert infer(["--model", str(model), "--json", str(image), "-o", f"Global.device={device}"]) == 0
    printed = capsys.readouterr()
    assert len(json.loads(printed.out)["scores"]) == 2
    assert f"[Infer] WideResNet by Paddle Inference {paddle.__version__} ({engine})" in printed.err


def test_export_without_evaluation_images_compares_random_ones(
    tmp_path: Path, trained: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    tree = {key: section for key, section in trained.items() if key != "DataLoader"}
    assert run_export(tmp_path, tree, "--precision", "float16") == 0
    line = capsys.readouterr().out.splitlines()[-1]
    reason = "because there are no evaluation images (the config has no DataLoader.Eval)"
    assert f"compared on 32 random images, {reason}: agreement " in line
    comparison = read_description(tmp_path / "inference").Export
    assert comparison is not None
    assert comparison.comparison is not None
    assert comparison.comparison.trained_accuracy is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--calibration-images", "64"],
            "list.txt: expected 64 calibration images, found 21; set --calibration-images 21, or add images",
        ),
        (["--calibration-data", "absent/"], "absent"),
        (["--preprocess"], "--preprocess all needs --precision float32, got int8"),
        (["--format", "paddle"], "--precision int8 needs --format onnx or openvino, got paddle"),
        (["--precision", "bfloat16"], "--precision bfloat16 needs --format paddle or openvino"),
        (["--precision", "float16", "--calibration-data", "."], "--calibration-data needs --precision int8"),
        (["--format", "openvino", "--calibration", "entropy"], "--calibration entropy needs --format onnx"),
        (
            ["--format", "openvino", "--int8-activations", "signed"],
            "--int8-activations signed needs --format onnx, got openvino",
        ),
        (
            ["--precision", "float16", "--int8-activations", "signed"],
            "--int8-activations signed needs --precision int8, got float16",
        ),
    ],
)
def test_int8_export_unusable_option_is_an_error(
    tmp_path: Path,
    trained: dict[str, Any],
    options: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_export(tmp_path, trained, "--precision", "int8", *options) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_int8_export_of_damaged_calibration_images_is_an_error_with_a_fix(
    tmp_path: Path, trained: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(16):
        (tmp_path / f"{number}.png").write_bytes(b"no image")
    options = ["--calibration-data", str(tmp_path), "--calibration-images", "16"]
    assert run_export(tmp_path, trained, "--precision", "int8", *options) == 2
    error = capsys.readouterr().err
    assert f"{tmp_path}: only 0 of 16 calibration images can be decoded, expected at least 16" in error
    assert "Replace the damaged images, or set a larger --calibration-images" in error
    assert not (tmp_path / "inference").exists()


def test_quantize_with_a_full_temporary_folder_is_an_error(tmp_path: Path, trained: dict[str, Any]) -> None:
    """The kernel cuts files at a limit, as a full disk does. ONNX Runtime does not notice it."""
    assert run_export(tmp_path, trained) == 0
    file = tmp_path / "inference/inference.onnx"
    model = file.read_bytes()
    images = [np.zeros((1, 3, 32, 32), np.float32)]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(model) // 2, before[1]))
        with pytest.raises(UserError, match=r"may not fit; set TMPDIR to a folder on another disk"):
            quantize(file, "WideResNet", "x", images, "minmax")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert file.read_bytes() == model


def test_int8_export_without_training_images_is_an_error(
    tmp_path: Path, trained: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    tree = {key: section for key, section in trained.items() if key != "DataLoader"}
    assert run_export(tmp_path, tree, "--precision", "int8") == 2
    assert (
        "--precision int8 needs training images for calibration: the config has no DataLoader.Train; pass "
        "images with --calibration-data FOLDER, or use --precision float16"
    ) in capsys.readouterr().err


def test_export_that_loses_accuracy_is_not_written(
    tmp_path: Path,
    trained: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(export_module, "compare_accuracy", lambda *_: comparison(0.9, 0.89))
    assert run_export(tmp_path, trained, "--precision", "float16", "--max-accuracy-loss", "0.9") == 2
    assert "float16 WideResNet loses 1.00 percentage points of accuracy" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def comparison(before: float | None, after: float | None) -> Comparison:
    return Comparison(
        source="list.txt",
        images=1000,
        trained_accuracy=before,
        exported_accuracy=after,
        agreement=0.9,
        largest_difference=0.1,
    )


def test_check_accuracy_accepts_the_limit_and_rejects_more() -> None:
    check_accuracy(comparison(0.75, 0.745), "int8 Net", 0.51, "more images")
    check_accuracy(comparison(0.75, 0.8), "int8 Net", 0.0, "more images")
    check_accuracy(comparison(None, None), "int8 Net", 0.0, "more images")
    with pytest.raises(
        UserError,
        match=r"0\.50 percentage points .* 1,000 images of list\.txt \(0\.7500 .* Try more images, or a",
    ):
        check_accuracy(comparison(0.75, 0.745), "int8 Net", 0.4, "more images")


class Constant:
    """An `InferenceModel` that returns the same outputs for any images."""

    def __init__(self, outputs: Any) -> None:
        self.outputs = np.asarray(outputs, np.float32)

    def run(self, images: Any) -> Any:
        return self.outputs


def describe(postprocess: object) -> ModelDescription:
    name = SimpleNamespace(model_name="Net")
    return cast(ModelDescription, SimpleNamespace(Global=name, postprocess=postprocess))


@pytest.mark.parametrize(
    ("postprocess", "exported", "trained", "labels", "expected"),
    [
        (Topk(), [[0.9, 0.1], [0.4, 0.6]], [[0.8, 0.2], [0.6, 0.4]], [0, 0], (1.0, 0.5, 0.5, 0.2)),
        (
            MultiLabelThreshOutput(threshold=0.5),
            [[0.9, 0.1], [0.4, 0.6]],
            [[0.8, 0.2], [0.6, 0.4]],
            [[1, 0], [1, 1]],
            (0.75, 0.75, 0.5, 0.2),
        ),
        (None, [[1, 0], [0, 1], [0, 1]], [[1, 0], [1, 0], [0, 1]], [7, 7, 8], (2 / 3, 1 / 3, 2 / 3, 1.0)),
    ],
    ids=["classes", "labels", "embeddings"],
)
def test_compare_accuracy_counts_decisions(
    postprocess: object, exported: Any, trained: Any, labels: Any, expected: tuple[float, ...]
) -> None:
    batches = [(np.zeros(1, np.float32), np.asarray(labels))]
    model, truth = Constant(exported), Constant(trained)
    found = compare_accuracy(model, truth.run, describe(postprocess), batches, "list.txt")
    numbers = (found.trained_accuracy, found.exported_accuracy, found.agreement, found.largest_difference)
    assert numbers == pytest.approx(expected)


def test_compare_accuracy_infinite_output_is_an_error() -> None:
    batches = [(np.zeros(1, np.float32), None)]
    with pytest.raises(UserError, match="Net: the exported model returns NaN or infinite values"):
        compare_accuracy(Constant([[np.nan]]), Constant([[1.0]]).run, describe(Topk()), batches, "random")


def test_quantize_model_without_int8_form_is_an_error(tmp_path: Path) -> None:
    shapes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 4]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Erf", ["x"], ["y"], "erf")], "g", shapes[:1], shapes[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    file = tmp_path / "inference.onnx"
    file.write_bytes(model.SerializeToString())
    with pytest.raises(UserError, match=r"Net.*use --precision float16 or float32"):
        quantize(file, "Net", "x", [np.ones((2, 4), np.float32)], "minmax")
    assert file.read_bytes() == model.SerializeToString()


def test_quantize_transformer_keeps_attention_and_sums_in_float32(tmp_path: Path) -> None:
    """With all operators in int8, probabilities of a DeiT changed by up to 0.9, otherwise by 0.03."""
    weights = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    stored = {"scale": np.ones(8, np.float32), "shift": np.zeros(8, np.float32), "weights": weights}
    nodes = [
        helper.make_node("LayerNormalization", ["x", "scale", "shift"], ["normal"], "normalize"),
        helper.make_node("MatMul", ["normal", "weights"], ["values"], "layer"),
        helper.make_node("Transpose", ["values"], ["keys"], "turn", perm=[0, 2, 1]),
        helper.make_node("MatMul", ["values", "keys"], ["products"], "attention"),
        helper.make_node("Softmax", ["products"], ["shares"], "shares"),
        helper.make_node("MatMul", ["shares", "values"], ["mixed"], "mix"),
        helper.make_node("Add", ["x", "mixed"], ["y"], "sum"),
    ]
    shapes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 4, 8]) for name in ("x", "y")]
    tensors = [onnx.numpy_helper.from_array(values, name) for name, values in stored.items()]
    graph = helper.make_graph(nodes, "g", shapes[:1], shapes[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    file = tmp_path / "inference.onnx"
    file.write_bytes(model.SerializeToString())
    images = [np.random.default_rng(1).normal(size=(16, 4, 8)).astype(np.float32)]
    found = quantize(file, "Net", "x", images, "minmax")
    assert found.int8 == {"MatMul": 1}
    assert {"Add", "LayerNormalization", "MatMul", "Softmax"} <= set(found.float32)


def test_export_without_the_quantizer_names_the_packages(
    tmp_path: Path,
    trained: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime.quantization", None)
    assert run_export(tmp_path, trained, "--precision", "int8") == 2
    assert "pip install 'onnx>=1.16' 'ml_dtypes>=0.5'" in capsys.readouterr().err
