"""Runs an exported ``.onnx`` or ``.xml`` file with OpenVINO on a CPU, without Paddle."""

from __future__ import annotations

from pathlib import Path
from threading import local
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.deploy.models.description import ModelDescription
from ppcls.deploy.models.rejection import KNOWN_SCORE
from ppcls.errors import UserError


def supports_bfloat16() -> bool:
    """Returns whether OpenVINO can compute in bfloat16 on this CPU. OpenVINO must be installed."""
    import openvino

    return "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


class OpenVinoModel:
    """An `InferenceModel` that runs an ``.onnx`` or ``.xml`` file.

    Args:
        file: File of the model.
        description: Description of the model.
        threads: Number of CPU threads.
        streams: Number of threads that can call `run` at the same time. They share the CPU threads.
        batch: Number of images of each batch, which OpenVINO uses to plan its memory; -1 for any number.

    Attributes:
        engine: Name of the engine, with its version, device and precision.
        on_cpu: Whether the model runs on the CPU.

    Raises:
        UserError: OpenVINO cannot load the model, or its input has another name.
    """

    on_cpu = True

    def __init__(
        self, file: Path, description: ModelDescription, threads: int, streams: int = 1, batch: int = -1
    ) -> None:
        import openvino

        weights = file.with_suffix(".bin")
        if file.suffix == ".xml" and not weights.is_file():
            raise UserError(f"{weights}: no such file; expected the weights in the folder of {file.name}")
        core = openvino.Core()
        precision = description.precision
        if precision == "bfloat16" and not supports_bfloat16():
            precision = "float32"
        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": streams,
            # Without this hint, OpenVINO computes in bfloat16 on all CPUs that support it, so scores would
            # depend on the machine.
            "INFERENCE_PRECISION_HINT": "bf16" if precision == "bfloat16" else "f32",
        }
        try:
            model = core.read_model(file)
            shape = description.Input.shape[1:]
            images = model.inputs[0].partial_shape[0]
            self._one_by_one = images.is_static and images.get_length() == 1
            if batch > 0 and min(shape) > 0 and not self._one_by_one:
                model.reshape([batch, *shape])
            self._model = core.compile_model(model, "CPU", settings)
        except RuntimeError as error:
            raise UserError(
                f"{file}: OpenVINO cannot load this model: {_last_line(error)}; export the model again, or "
                "set Infer.engine=onnxruntime for an .onnx file"
            ) from None
        names = [each.any_name for each in model.inputs]
        expected = description.Input.name
        if names != [expected]:
            raise UserError(
                f"{file}: expected the input {expected} as in inference.yml, but the model has "
                f"{', '.join(names)}; export the model again"
            )
        # OpenVINO removes copies, so an output can have further names.
        positions = {name: at for at, output in enumerate(self._model.outputs) for name in output.names}
        self._positions = [0]
        if description.Rejection is not None and description.Rejection.needs_output:
            if KNOWN_SCORE not in positions:
                raise UserError(
                    f"{file}: expected the output {KNOWN_SCORE}, because inference.yml has Rejection, found "
                    f"{', '.join(positions)}; export the bundle again"
                )
            self._positions.append(positions[KNOWN_SCORE])
        version = openvino.get_version().partition("-")[0]
        self.engine = f"OpenVINO {version} (CPU, {precision})"
        self._file = file
        self._dtype = description.Input.dtype
        self._requests = local()

    def run(self, images: Any) -> NDArray[Any]:
        """See `ppcls.deploy.predictor.InferenceModel`."""
        if self._one_by_one and len(images) > 1:  # some tools export models for one image
            return np.concatenate([self.run(images[row : row + 1]) for row in range(len(images))])
        try:
            # A request that a thread uses rejects the calls of others.
            if not hasattr(self._requests, "of_thread"):
                self._requests.of_thread = self._model.create_infer_request()
            images = np.ascontiguousarray(images, self._dtype)
            results = self._requests.of_thread.infer(images, share_inputs=True)
        except RuntimeError as error:
            raise UserError(f"{self._file}: OpenVINO cannot run this model: {_last_line(error)}") from None
        if len(self._positions) > 1:
            return np.column_stack([results[position] for position in self._positions])
        return np.array(results[0])  # a copy, because the next call overwrites the result


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1]
