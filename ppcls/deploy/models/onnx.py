"""Runs an exported model with onnxruntime, without Paddle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnxruntime.capi import onnxruntime_pybind11_state as native

from ppcls.deploy.models.description import ModelDescription, Precision
from ppcls.deploy.models.rejection import KNOWN_SCORE
from ppcls.errors import UserError

_ERRORS_ONLY = 3  # severity of ONNX Runtime: 0 verbose, 1 info, 2 warning, 3 error, 4 fatal
RUN_ERRORS = (native.Fail, native.RuntimeException, native.InvalidArgument)
LOAD_ERRORS = (*RUN_ERRORS, native.InvalidGraph, native.InvalidProtobuf, native.NotImplemented)


onnxruntime.disable_telemetry_events()


class OnnxModel:
    """An `InferenceModel` that runs an ``.onnx`` file.

    Args:
        file: File of the model.
        description: Description of the model.
        device: ``auto``, ``cpu``, ``gpu``, or ``tensorrt`` for a GPU with TensorRT. A GPU needs the package
            onnxruntime-gpu.
        threads: Number of CPU threads.

    Attributes:
        engine: Name of the engine, with its version, device and precision.
        on_cpu: Whether the model runs on the CPU.

    Raises:
        UserError: onnxruntime cannot load the model, TensorRT or CUDA.
    """

    def __init__(self, file: Path, description: ModelDescription, device: str, threads: int) -> None:
        if not file.stat().st_size:
            raise UserError(f"{file}: the file is empty; export the model again")
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = threads
        settings.log_severity_level = _ERRORS_ONLY
        # Threads spin for 50 µs, which is longer than the time between two operators. With the default of 1
        # ms, spinning threads occupy busy cores, which slows down threads that have work.
        settings.add_session_config_entry("session.intra_op.spin_duration_us", "50")
        providers = _providers(device, description.precision)
        try:
            self._session = onnxruntime.InferenceSession(str(file), settings, providers)
        except LOAD_ERRORS as error:
            raise UserError(f"{file}: onnxruntime cannot load this model: {error}") from None
        provider = self._session.get_providers()[0].removesuffix("ExecutionProvider")
        if device == "tensorrt" and provider != "Tensorrt":
            raise UserError(
                f"{file}: onnxruntime {onnxruntime.__version__} cannot load TensorRT, and would use "
                f"{provider} instead; install the versions of TensorRT and CUDA that it needs, or "
                "remove Infer.engine=tensorrt"
            )
        self.engine = f"ONNX Runtime {onnxruntime.__version__} ({provider}, {description.precision})"
        self.on_cpu = provider == "CPU"
        self._file = file
        self._input = description.Input.name
        self._dtype = description.Input.dtype
        # The model of a bundle has more outputs.
        self._outputs = [self._session.get_outputs()[0].name]
        if description.Rejection is not None and description.Rejection.needs_output:
            self._outputs.append(KNOWN_SCORE)
        available = [output.name for output in self._session.get_outputs()]
        if missing := [name for name in self._outputs if name not in available]:
            raise UserError(
                f"{file}: expected the output {missing[0]}, because inference.yml has Rejection, found "
                f"{', '.join(available)}; export the bundle again"
            )
        self._one_by_one = self._session.get_inputs()[0].shape[:1] == [1]
        inputs = [tensor.name for tensor in self._session.get_inputs()]
        if inputs != [self._input]:
            names = ", ".join(inputs)
            raise UserError(
                f"{file}: expected the input {self._input} as in inference.yml, but the model has {names}; "
                "export the model again"
            )

    def run(self, images: Any) -> NDArray[Any]:
        """See `ppcls.deploy.predictor.InferenceModel`."""
        images = np.ascontiguousarray(images, self._dtype)
        if self._one_by_one and len(images) > 1:  # some tools export models for one image
            return np.concatenate([self.run(images[row : row + 1]) for row in range(len(images))])
        try:
            answers = self._session.run(self._outputs, {self._input: images})
        except RUN_ERRORS as error:
            raise UserError(f"{self._file}: onnxruntime cannot run this model: {error}") from None
        return np.column_stack(answers) if len(answers) > 1 else np.asarray(answers[0])


def _providers(device: str, precision: Precision) -> list[Any]:
    """Returns the execution providers to use, in order of preference, some with options.

    Raises:
        UserError: A GPU is requested, but the installed onnxruntime does not support GPUs.
    """
    if device == "tensorrt":
        options = {"trt_fp16_enable": precision == "float16", "trt_int8_enable": precision == "int8"}
        return [("TensorrtExecutionProvider", options), "CUDAExecutionProvider", "CPUExecutionProvider"]
    cuda = "CUDAExecutionProvider"
    available = cuda in onnxruntime.get_available_providers()
    if device == "gpu" and not available:
        raise UserError(
            "Global.device is gpu, but the installed onnxruntime supports only CPUs; "
            "install onnxruntime-gpu instead, or set Global.device=cpu"
        )
    return [*([cuda] if available and device != "cpu" else []), "CPUExecutionProvider"]
