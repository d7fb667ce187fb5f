"""Runs an exported ``.onnx`` file with OpenVINO on a CPU, without Paddle."""

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
    """Returns whether OpenVINO runs an ``.onnx`` file: if it is selected, or if it is installed, on a CPU.

    Raises:
        UserError: If it is selected and not installed, or selected for a GPU.
    """
    engine, device = source.infer.engine, source.run.device
    if source.needs_paddle or engine == "onnxruntime":
        return False
    installed = find_spec("openvino") is not None
    if engine == "openvino" and not installed:
        raise UserError("Infer.engine=openvino: OpenVINO is not installed; pip install 'openvino>=2025'")
    if engine == "openvino" and device == "gpu":
        raise UserError("Infer.engine=openvino runs on CPUs only; set Global.device=cpu")
    if engine == "openvino":
        return True
    return installed and (device == "cpu" or (device == "auto" and not _onnxruntime_has_gpu()))


def _onnxruntime_has_gpu() -> bool:
    try:
        import onnxruntime
    except ImportError:
        return False
    return "CUDAExecutionProvider" in onnxruntime.get_available_providers()


class OpenVinoModel:
    """An `InferenceModel` of an ``.onnx`` file.

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

        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",  # by default bfloat16 on some CPUs
        }
        try:
            self._model = openvino.Core().compile_model(file, "CPU", settings)
        except RuntimeError as error:
            raise UserError(
                f"{file}: OpenVINO cannot load this model; set Infer.engine=onnxruntime: {_last_line(error)}"
            ) from None
        version = openvino.get_version().partition("-")[0]
        self.engine = f"OpenVINO {version} (CPU, {description.precision})"
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
