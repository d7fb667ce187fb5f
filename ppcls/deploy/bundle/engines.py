"""Runs the model of a bundle with ONNX Runtime or OpenVINO, and returns the output of each stage."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ppcls.deploy.bundle.schema import BundleModel
from ppcls.errors import UserError

Array = NDArray[Any]
EngineName = Literal["onnxruntime", "openvino"]
_ERRORS_ONLY = 3


class StageModel(Protocol):
    """A loaded model of a bundle.

    Attributes:
        name: Name of the engine, with its version.
        outputs: Names of the outputs.
    """

    name: str
    outputs: list[str]

    def run(self, pixels: Array) -> Mapping[str, Array]:
        """Returns the outputs of the model by their names.

        Args:
            pixels: RGB images, [N, H, W, 3] uint8.
        """


class OnnxStages:
    """A `StageModel` that ONNX Runtime runs on the CPU.

    Args:
        file: The model. It must not refer to other files.
        optimize: Whether ONNX Runtime optimizes the graph, which can change the last digits.

    Raises:
        UserError: onnxruntime cannot load the model.
    """

    def __init__(self, file: Path, *, optimize: bool = True) -> None:
        import onnxruntime

        from ppcls.deploy.models.onnx import LOAD_ERRORS

        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = _ERRORS_ONLY
        if not optimize:
            settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            self._session = onnxruntime.InferenceSession(str(file), settings, ["CPUExecutionProvider"])
        except LOAD_ERRORS as error:
            raise UserError(f"{file}: onnxruntime cannot load this model: {error}") from None
        self._input = self._session.get_inputs()[0].name
        self.outputs = [output.name for output in self._session.get_outputs()]
        self._file = file
        self.name = f"ONNX Runtime {onnxruntime.__version__}"

    def run(self, pixels: Array) -> Mapping[str, Array]:
        """See `StageModel.run`."""
        from ppcls.deploy.models.onnx import RUN_ERRORS

        try:
            values = self._session.run(self.outputs, {self._input: np.ascontiguousarray(pixels)})
        except RUN_ERRORS as error:
            raise UserError(f"{self._file}: onnxruntime cannot run this model: {error}") from None
        return dict(zip(self.outputs, map(np.asarray, values), strict=True))


class OpenVinoStages:
    """A `StageModel` that OpenVINO runs on the CPU.

    Args:
        file: The model. It must not refer to other files.

    Raises:
        UserError: OpenVINO is not installed, or cannot load the model.
    """

    def __init__(self, file: Path) -> None:
        try:
            import openvino
        except ImportError:
            raise UserError("OpenVINO is not installed; pip install 'openvino>=2025'") from None
        core = openvino.Core()
        try:
            self._model = core.compile_model(str(file), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        except RuntimeError as error:
            raise UserError(f"{file}: OpenVINO cannot load this model: {error}") from None
        # OpenVINO removes copies, so an output can have further names.
        self._positions = {
            name: position for position, output in enumerate(self._model.outputs) for name in output.names
        }
        self.outputs = list(self._positions)
        self._file = file
        self.name = f"OpenVINO {openvino.get_version().partition('-')[0]}"

    def run(self, pixels: Array) -> Mapping[str, Array]:
        """See `StageModel.run`."""
        try:
            results = self._model([np.ascontiguousarray(pixels)])
        except RuntimeError as error:
            raise UserError(f"{self._file}: OpenVINO cannot run this model: {error}") from None
        return {name: np.array(results[position]) for name, position in self._positions.items()}


def load_stages(file: Path, model: BundleModel, engine: EngineName) -> StageModel:
    """Loads the model of a bundle, and checks that it has the outputs that ``bundle.json`` names.

    Raises:
        UserError: The engine cannot load the model, the model refers to other files, or an output is missing.
    """
    from ppcls.deploy.models.programs.onnx_file import check_onnx

    check_onnx(file)
    loaded = OpenVinoStages(file) if engine == "openvino" else OnnxStages(file)
    names = (model.probabilities, model.logits, model.prepared, model.known_score)
    needed = [name for name in names if name is not None]
    if missing := [name for name in needed if name not in loaded.outputs]:
        raise UserError(
            f"{file}: expected the output {missing[0]}, which bundle.json names, found "
            f"{', '.join(loaded.outputs)}; export the bundle again"
        )
    return loaded
