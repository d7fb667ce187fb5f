"""Formats of exported models: checks of the required packages and precisions, and loading for comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ppcls.deploy.export.onnx import need_converter
from ppcls.deploy.export.openvino import need_openvino
from ppcls.deploy.export.precision import need_precision_tools
from ppcls.deploy.models.description import ModelDescription, Precision
from ppcls.deploy.models.openvino import OpenVinoModel, supports_bfloat16
from ppcls.deploy.models.paddle_inference import PaddleInferenceModel, find_precision
from ppcls.deploy.predictor import InferenceModel
from ppcls.errors import UserError
from ppcls.runtime.hardware import usable_cores
from ppcls.runtime.start import Runtime

ExportFormat = Literal["paddle", "onnx", "openvino"]

_PADDLE_DEVICES = {
    "float16": "a GPU",
    "bfloat16": "a GPU of compute capability 8.0 or higher, or a CPU with AVX-512",
}
_NO_COMPARISON = "so the exported model cannot be compared with the trained one; nothing was written"


def check_format(kind: ExportFormat, precision: Precision, runtime: Runtime) -> None:
    """Checks that this machine can export to a format, and can run the exported model in a precision.

    Args:
        kind: Format of the exported model.
        precision: Precision of the exported model.
        runtime: Device on which Paddle Inference runs.

    Raises:
        UserError: A package is missing, or the format or the device does not support the precision.
    """
    if kind == "paddle":
        _check_paddle(precision, runtime)
        return
    need_converter()
    if kind == "openvino":
        need_openvino(precision)
        if precision == "bfloat16" and not supports_bfloat16():
            raise UserError(
                "--precision bfloat16: OpenVINO needs a CPU with AVX-512, which this CPU lacks, "
                f"{_NO_COMPARISON}. Export on another machine, or use --precision int8"
            )
    elif precision == "bfloat16":
        raise UserError(
            "--precision bfloat16 needs --format paddle or openvino: ONNX Runtime has no convolutions in "
            "bfloat16"
        )
    else:
        need_precision_tools(precision)


def _check_paddle(precision: Precision, runtime: Runtime) -> None:
    if precision == "int8":
        raise UserError(
            "--precision int8 needs --format onnx or openvino, got paddle, which has no usable int8"
        )
    if precision == "float32" or find_precision(precision, runtime) == precision:
        return
    raise UserError(
        f"--precision {precision}: Paddle Inference needs {_PADDLE_DEVICES[precision]}, but this run "
        f"uses the {runtime.device.upper()}, {_NO_COMPARISON}. Export on another device "
        "(-o Global.device=gpu), or use --format onnx --precision float16"
    )


def load_exported(file: Path, description: ModelDescription, runtime: Runtime) -> InferenceModel:
    """Loads a model that was just exported. ONNX and OpenVINO models run on the CPU."""
    if file.suffix == ".onnx":
        from ppcls.deploy.models.onnx import OnnxModel  # only this format needs onnxruntime

        return OnnxModel(file, description, "cpu", usable_cores())
    if file.suffix == ".xml":
        return OpenVinoModel(file, description, usable_cores())
    return PaddleInferenceModel(file, description, runtime, trust=True)
