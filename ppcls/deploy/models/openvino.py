"""Runs an exported ``.onnx`` or ``.xml`` file with OpenVINO on a CPU, without Paddle."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ppcls.deploy.models.description import ModelDescription
from ppcls.errors import UserError

if TYPE_CHECKING:
    from ppcls.deploy.models.source import ModelSource


def uses_openvino(source: ModelSource) -> bool:
    """Returns whether OpenVINO runs an exported model.

    It runs ``.xml`` files, and ``.onnx`` files if it is selected, or if it is installed, on a CPU.

    Raises:
        UserError: If it is needed and not installed, or needed on a GPU, or if another engine is selected for
            its own format.
    """
    engine, device = source.infer.engine, source.run.device
    if source.needs_paddle:
        return False
    is_own = source.file.suffix == ".xml"
    if is_own and engine not in ("auto", "openvino"):
        raise UserError(
            f"{source.file}: only OpenVINO runs this file; remove Infer.engine={engine}, or export with "
            "--format onnx"
        )
    if engine == "onnxruntime":
        return False
    installed = find_spec("openvino") is not None
    if is_own or engine == "openvino":
        name = str(source.file) if is_own else "Infer.engine=openvino"
        if not installed:
            raise UserError(f"{name}: OpenVINO is not installed; pip install 'openvino>=2025'")
        if device == "gpu":
            raise UserError(f"{name}: OpenVINO runs on CPUs only; set Global.device=cpu")
        return True
    return installed and (device == "cpu" or (device == "auto" and not _onnxruntime_has_gpu()))


def supports_bfloat16() -> bool:
    """Returns whether OpenVINO, which must be installed, computes in bfloat16 on this CPU."""
    import openvino

    return "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def _onnxruntime_has_gpu() -> bool:
    try:
        import onnxruntime
    except ImportError:
        return False
    return "CUDAExecutionProvider" in onnxruntime.get_available_providers()


class OpenVinoModel:
    """An `InferenceModel` of an ``.onnx`` or ``.xml`` file.

    Args:
        file: The model.
        description: Description of the model.
        threads: Number of CPU threads.

    Attributes:
        engine: The program that runs the model, with its version, device and precision.

    Raises:
        UserError: If OpenVINO cannot load the model.
    """

    def __init__(self, file: Path, description: ModelDescription, threads: int) -> None:
        import openvino

        weights = file.with_suffix(".bin")
        if file.suffix == ".xml" and not weights.is_file():
            raise UserError(f"{weights}: no such file; expected the weights beside {file.name}")
        core, precision = openvino.Core(), description.precision
        if precision == "bfloat16" and not supports_bfloat16():
            precision = "float32"
        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "bf16" if precision == "bfloat16" else "f32",
        }
        try:
            self._model = core.compile_model(file, "CPU", settings)
        except RuntimeError as error:
            raise UserError(
                f"{file}: OpenVINO cannot load this model: {_last_line(error)}; export the model again, or "
                "set Infer.engine=onnxruntime for an .onnx file"
            ) from None
        version = openvino.get_version().partition("-")[0]
        self.engine = f"OpenVINO {version} (CPU, {precision})"
        self._file, self._dtype = file, description.Input.dtype

    def run(self, images: Any) -> NDArray[Any]:
        """See `ppcls.deploy.predictor.InferenceModel`."""
        try:
            results = self._model(np.ascontiguousarray(images, self._dtype), share_inputs=True)
        except RuntimeError as error:
            raise UserError(f"{self._file}: OpenVINO cannot run this model: {_last_line(error)}") from None
        return np.array(results[0])  # a copy, because the next call overwrites the result


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1]
