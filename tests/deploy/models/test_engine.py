"""Choice of the program that runs a model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import yaml
from paths import ROOT

from ppcls.deploy.models import engine
from ppcls.deploy.models.description import read_description
from ppcls.deploy.models.onnx import OnnxModel
from ppcls.deploy.models.source import find_source
from ppcls.deploy.predictor import Predictor
from ppcls.errors import UserError

CPU = ("CPUExecutionProvider",)
CUDA = ("CUDAExecutionProvider", *CPU)
TENSORRT = ("TensorrtExecutionProvider", *CUDA)


def write_model(folder: Path, file: str) -> Path:
    """Writes a description beside an empty file of a model, which only its name describes."""
    description = {
        "Global": {"model_name": "Net"},
        "Input": {"name": "x", "shape": [-1, 3, 8, 8], "dtype": "float32", "layout": "NCHW"},
        "PreProcess": {
            "transform_ops": [
                {"DecodeImage": None},
                {"ResizeImage": {"size": 8}},
                {"NormalizeImage": None},
                {"ToCHWImage": None},
            ]
        },
        "Output": {"shape": [-1, 3], "dtype": "float32", "activation": "l2_norm"},
        "PostProcess": None,
    }
    (folder / "inference.yml").write_text(yaml.safe_dump(description))
    (folder / file).touch()
    return folder / file


def choose(
    folder: Path,
    file: str,
    overrides: list[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    packages: tuple[str, ...] = (),
    providers: tuple[str, ...] = CPU,
) -> engine.Engine:
    installed = (*packages, "onnxruntime") if providers else packages
    monkeypatch.setattr(engine, "find_spec", lambda name: object() if name in installed else None)
    monkeypatch.setattr(engine, "onnxruntime_providers", lambda: providers)
    return engine.choose_engine(find_source(write_model(folder, file), overrides))


@pytest.mark.parametrize(
    ("file", "overrides", "packages", "providers", "expected"),
    [
        ("inference.onnx", [], ("openvino",), CPU, "openvino"),
        ("inference.onnx", [], ("openvino",), CUDA, "onnxruntime"),
        ("inference.onnx", [], (), CPU, "onnxruntime"),
        ("inference.onnx", [], ("tensorrt_libs",), TENSORRT, "onnxruntime"),
        ("inference.onnx", ["Global.device=cpu"], ("openvino",), CUDA, "openvino"),
        ("inference.onnx", ["Global.device=gpu"], ("openvino",), CUDA, "onnxruntime"),
        ("inference.onnx", ["Infer.engine=onnxruntime"], ("openvino",), CPU, "onnxruntime"),
        ("inference.onnx", ["Infer.engine=openvino"], ("openvino",), CUDA, "openvino"),
        ("inference.onnx", ["Infer.engine=tensorrt"], ("tensorrt_libs",), TENSORRT, "tensorrt"),
        ("inference.xml", [], ("openvino",), CUDA, "openvino"),
        ("inference.pdmodel", [], ("openvino",), CPU, "paddle"),
    ],
)
def test_choose_engine_returns_the_selected_or_the_fastest_installed_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    overrides: list[str],
    packages: tuple[str, ...],
    providers: tuple[str, ...],
    expected: str,
) -> None:
    chosen = choose(tmp_path, file, overrides, monkeypatch, packages=packages, providers=providers)
    assert chosen == expected


@pytest.mark.parametrize(
    ("file", "overrides", "packages", "providers", "message"),
    [
        ("inference.onnx", ["Infer.engine=openvino"], (), CPU, "OpenVINO is not installed; pip install"),
        (
            "inference.onnx",
            ["Infer.engine=openvino", "Global.device=gpu"],
            ("openvino",),
            CUDA,
            "Infer.engine=openvino: OpenVINO runs on CPUs only; set Global.device=cpu",
        ),
        ("inference.onnx", [], (), (), r"inference\.onnx: ONNX Runtime is not installed; pip install"),
        (
            "inference.onnx",
            ["Infer.engine=onnxruntime"],
            ("openvino",),
            (),
            r"inference\.onnx: ONNX Runtime is not installed; pip install",
        ),
        ("inference.xml", [], (), CPU, r"inference\.xml: OpenVINO is not installed; pip install"),
        (
            "inference.xml",
            ["Infer.engine=tensorrt"],
            ("openvino",),
            TENSORRT,
            "only OpenVINO can run this file",
        ),
        (
            "inference.pdmodel",
            ["Infer.engine=onnxruntime"],
            (),
            CPU,
            "only Paddle can run this model, got Infer",
        ),
        (
            "inference.onnx",
            ["Infer.engine=tensorrt"],
            (),
            (),
            "onnxruntime is not installed; pip install onnxruntime-gpu tensorrt",
        ),
        ("inference.onnx", ["Infer.engine=tensorrt"], (), CUDA, "onnxruntime does not support TensorRT; pip"),
        ("inference.onnx", ["Infer.engine=tensorrt"], (), TENSORRT, "libraries are not installed; pip"),
        (
            "inference.onnx",
            ["Infer.engine=tensorrt", "Global.device=cpu"],
            ("tensorrt",),
            TENSORRT,
            "runs on GPUs only; remove Global.device=cpu",
        ),
    ],
)
def test_choose_engine_names_what_is_missing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    overrides: list[str],
    packages: tuple[str, ...],
    providers: tuple[str, ...],
    message: str,
) -> None:
    with pytest.raises(UserError, match=message):
        choose(tmp_path, file, overrides, monkeypatch, packages=packages, providers=providers)


def test_predictor_of_a_paddle_model_with_another_engine_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"only Paddle can run this model, got Infer\.engine=openvino"):
        Predictor(write_model(tmp_path, "inference.pdmodel"), overrides=["Infer.engine=openvino"])


@pytest.mark.skipif(
    TENSORRT[0] in onnxruntime.get_available_providers(), reason="this onnxruntime supports TensorRT"
)
def test_onnx_model_that_tensorrt_cannot_run_is_an_error(tmp_path: Path) -> None:
    from onnx import TensorProto, helper

    file = write_model(tmp_path, "inference.onnx")
    shapes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 3]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", shapes[:1], shapes[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    file.write_bytes(model.SerializeToString())
    description = read_description(tmp_path)
    on_cpu = OnnxModel(file, description, "cpu", 1)
    np.testing.assert_array_equal(on_cpu.run(np.array([[-1, 0, 2]])), [[0, 0, 2]])
    with pytest.raises(UserError, match="cannot load TensorRT, and would use CPU instead"):
        OnnxModel(file, description, "tensorrt", 1)


@pytest.mark.parametrize("program", ["import ppcls.deploy.models.onnx", "PREDICT"])
def test_onnx_runtime_writes_nothing_into_the_home_folder(program: str, tmp_path: Path) -> None:
    predict = ROOT / "ppcls" / "deploy" / "bundle" / "programs" / "python" / "predict.py"
    code = program.replace("PREDICT", f"import runpy; runpy.run_path({str(predict)!r}, run_name='program')")
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=environment | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    assert not (tmp_path / ".cache" / "Microsoft").exists()
