"""The formats of exported models: one class per format, which writes, converts and loads its files.

Decisions:
- A format is one class, like a loss or a sampler. `export_model` and ``--format`` find the formats here, so a
  new format is a change of this file.
- Paddle and the packages of a format are imported inside the methods, because ``ppcls export --help`` lists
  the formats and must appear at once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ppcls.errors import UserError

if TYPE_CHECKING:  # these modules import Paddle
    from numpy.typing import NDArray

    from ppcls.arch.distillation_model import AnyArch
    from ppcls.deploy.export.precision import Activations, CalibrationMethod, QuantizedOperators
    from ppcls.deploy.models.description import ModelDescription, Precision, Preprocess
    from ppcls.deploy.predictor import InferenceModel
    from ppcls.runtime.start import Runtime
    from ppcls.weights.files import Arrays

EXPORTERS: dict[str, Exporter] = {}
_STEM = "inference"  # name of the files of a program
_PADDLE_DEVICES = {
    "float16": "a GPU",
    "bfloat16": "a GPU of compute capability 8.0 or higher, or a CPU with AVX-512",
}
_NO_COMPARISON = "so the exported model cannot be compared with the trained one; nothing was written"


@dataclass(frozen=True)
class ModelToWrite:
    """A trained model in float32, which a format writes.

    Attributes:
        name: Name of the architecture, for messages.
        save_program: Function that saves the model as Paddle's program under a path without a suffix.
        read_weights: Function that returns the weights of the network by name.
    """

    name: str
    save_program: Callable[[Path], None]
    read_weights: Callable[[], Arrays]


class Exporter:
    """Base class of formats. A subclass registers itself under its ``name``.

    Attributes:
        name: Name of the format on the command line.
        description: Description of the format in the help.
        uses_gpu: Whether an exported model is loaded on the run's device. Otherwise, it runs on the CPU.
        has_gpu_form: Whether float16 models of some networks are exported as a `GpuNetwork`.
        calibrations: Methods by which users can choose the ranges of int8 tensors.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    uses_gpu: ClassVar[bool] = False
    has_gpu_form: ClassVar[bool] = False
    calibrations: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        EXPORTERS[cls.name] = cls()

    def check(self, precision: Precision, runtime: Runtime) -> None:
        """Checks that this machine can export to the format, and can run the exported model.

        Args:
            precision: Precision of the exported model.
            runtime: Device on which the exported model is compared, if it `uses_gpu`.

        Raises:
            UserError: A package is missing, or the format or the device does not support the precision.
        """
        raise NotImplementedError

    def check_calibration(self, method: CalibrationMethod, activations: Activations) -> None:
        """Checks that the format supports a method to choose ranges, and a type of activations in int8.

        Raises:
            UserError: It does not support it.
        """

    def check_preprocess(self, preprocess: Preprocess | None) -> None:
        """Checks that exported models can contain transforms.

        Raises:
            UserError: They cannot.
        """

    def adapt_arch(self, arch: AnyArch) -> AnyArch:
        """Returns the section of the network to export, in the layout of the format.

        Raises:
            UserError: The format does not support the architecture.
        """
        return arch.with_data_format("NCHW")

    def complete_description(self, description: ModelDescription, arch: AnyArch) -> ModelDescription:  # noqa: ARG002
        """Returns the description of the model with what only this format needs."""
        return description

    def write(self, model: ModelToWrite, folder: Path) -> Path:
        """Writes a model in float32 to an existing folder, and returns its file.

        Raises:
            UserError: The program cannot be converted.
        """
        raise NotImplementedError

    def to_float16(self, file: Path, name: str) -> None:
        """Converts a model to float16, in place.

        Args:
            file: Model in float32.
            name: Name of the architecture, for messages.

        Raises:
            UserError: The model cannot be converted.
        """
        raise NotImplementedError

    def quantize(
        self,
        file: Path,
        description: ModelDescription,
        batches: Sequence[NDArray[Any]],
        method: CalibrationMethod,
        activations: Activations,
    ) -> tuple[QuantizedOperators, str]:
        """Converts a model to int8, in place.

        Args:
            file: Model in float32.
            description: Description of the model.
            batches: Inputs of the model, from which the ranges of tensors are computed.
            method: Method that chooses the ranges.
            activations: Type of the activations.

        Returns:
            The operators of the int8 model, and the name of the method for its description.

        Raises:
            UserError: The model cannot be quantized.
        """
        raise NotImplementedError

    def load(self, file: Path, description: ModelDescription, runtime: Runtime) -> InferenceModel:
        """Loads a model that was just exported."""
        raise NotImplementedError


def find_exporter(name: str) -> Exporter:
    """Returns the format with a name.

    Raises:
        UserError: There is no such format.
    """
    if name not in EXPORTERS:
        raise UserError(f"format: expected one of {', '.join(EXPORTERS)}, got '{name}'")
    return EXPORTERS[name]


class PaddleExporter(Exporter):
    """Programs of Paddle Inference."""

    name = "paddle"
    description = "for Paddle Inference"
    uses_gpu = True
    has_gpu_form = True

    def check(self, precision: Precision, runtime: Runtime) -> None:
        """See `Exporter.check`."""
        from ppcls.deploy.models.paddle_inference import find_precision

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

    def write(self, model: ModelToWrite, folder: Path) -> Path:
        """See `Exporter.write`."""
        from ppcls.deploy.models.source import find_program

        model.save_program(folder / _STEM)
        return find_program(folder)

    def to_float16(self, file: Path, name: str) -> None:
        """Does nothing: programs contain float16 already, or are converted when they are loaded."""

    def load(self, file: Path, description: ModelDescription, runtime: Runtime) -> InferenceModel:
        """See `Exporter.load`."""
        from ppcls.deploy.models.paddle_inference import PaddleInferenceModel

        return PaddleInferenceModel(file, description, runtime, trust=True)


class PpclsExporter(Exporter):
    """Networks that ppcls builds itself: a description names the architecture, a file has the weights."""

    name = "ppcls"
    description = "for ppcls, the fastest on GPUs"
    uses_gpu = True

    def check(self, precision: Precision, runtime: Runtime) -> None:  # noqa: ARG002
        """See `Exporter.check`."""
        if precision == "int8":
            raise UserError("--precision int8 needs --format onnx or openvino, got ppcls")

    def check_preprocess(self, preprocess: Preprocess | None) -> None:
        """See `Exporter.check_preprocess`."""
        if preprocess is not None:
            raise UserError(
                f"--preprocess {preprocess}: ppcls prepares the images of --format ppcls itself; remove this "
                "option"
            )

    def adapt_arch(self, arch: AnyArch) -> AnyArch:
        """See `Exporter.adapt_arch`. The fused kernels need NHWC."""
        from ppcls.zoo import ZOO

        entry = ZOO.get(arch.exported.name)
        if entry is None:
            raise UserError(
                f"--format ppcls: Arch.name: {arch.exported.name} is not part of ppcls, so an exported model "
                "would need its code; use --format paddle or onnx, or the folder of the run"
            )
        return arch.with_data_format("NCHW" if entry.fixed_input else "NHWC")

    def complete_description(self, description: ModelDescription, arch: AnyArch) -> ModelDescription:
        """See `Exporter.complete_description`."""
        return description.with_arch(arch.inferred)

    def write(self, model: ModelToWrite, folder: Path) -> Path:
        """See `Exporter.write`."""
        from ppcls.deploy.models.exported_network import write_weights
        from ppcls.deploy.models.programs.formats import NETWORK

        file = folder / NETWORK
        write_weights(file, model.read_weights())
        return file

    def to_float16(self, file: Path, name: str) -> None:
        """See `Exporter.to_float16`."""
        from ppcls.deploy.models.exported_network import to_float16

        to_float16(file, name)

    def load(self, file: Path, description: ModelDescription, runtime: Runtime) -> InferenceModel:
        """See `Exporter.load`."""
        from ppcls.deploy.models.exported_network import load_exported_network
        from ppcls.engine.core.settings import ExecutionSettings

        return load_exported_network(file, description, ExecutionSettings(), runtime)


class OnnxExporter(Exporter):
    """ONNX models, which Paddle2ONNX converts from a program."""

    name = "onnx"
    description = "for ONNX Runtime and other engines"
    calibrations = ("percentile", "entropy", "minmax")

    def check(self, precision: Precision, runtime: Runtime) -> None:  # noqa: ARG002
        """See `Exporter.check`."""
        from ppcls.deploy.export.onnx import need_converter
        from ppcls.deploy.export.precision import need_precision_tools

        need_converter()
        if precision == "bfloat16":
            raise UserError(
                "--precision bfloat16 needs --format paddle or openvino: ONNX Runtime has no convolutions in "
                "bfloat16"
            )
        need_precision_tools(precision)

    def write(self, model: ModelToWrite, folder: Path) -> Path:
        """See `Exporter.write`."""
        from ppcls.deploy.models.source import ONNX

        file = folder / ONNX
        file.write_bytes(convert_to_onnx(model.save_program, folder, model.name))
        return file

    def to_float16(self, file: Path, name: str) -> None:
        """Converts a model to float16, in place."""
        from ppcls.deploy.export.precision import to_float16

        to_float16(file, name)

    def quantize(
        self,
        file: Path,
        description: ModelDescription,
        batches: Sequence[NDArray[Any]],
        method: CalibrationMethod,
        activations: Activations,
    ) -> tuple[QuantizedOperators, str]:
        """See `Exporter.quantize`."""
        from ppcls.deploy.export.precision import quantize

        name = description.Global.model_name
        return quantize(file, name, description.Input.name, batches, method, activations), method

    def load(self, file: Path, description: ModelDescription, runtime: Runtime) -> InferenceModel:  # noqa: ARG002
        """See `Exporter.load`."""
        from ppcls.deploy.models.onnx import OnnxModel
        from ppcls.runtime.hardware import usable_cores

        return OnnxModel(file, description, "cpu", usable_cores())


class OpenVinoExporter(Exporter):
    """Models of OpenVINO, which are converted from ONNX."""

    name = "openvino"
    description = "for OpenVINO on CPUs"

    def check(self, precision: Precision, runtime: Runtime) -> None:  # noqa: ARG002
        """See `Exporter.check`."""
        from ppcls.deploy.export.onnx import need_converter
        from ppcls.deploy.export.openvino import need_openvino
        from ppcls.deploy.models.openvino import supports_bfloat16

        need_converter()
        need_openvino(precision)
        if precision == "bfloat16" and not supports_bfloat16():
            raise UserError(
                "--precision bfloat16: OpenVINO needs a CPU with AVX-512, which this CPU lacks, "
                f"{_NO_COMPARISON}. Export on another machine, or use --precision int8"
            )

    def check_calibration(self, method: CalibrationMethod, activations: Activations) -> None:
        """See `Exporter.check_calibration`."""
        for option, value, default in (
            ("--calibration", method, "percentile"),
            ("--int8-activations", activations, "unsigned"),
        ):
            if value != default:
                raise UserError(
                    f"{option} {value} needs --format onnx, got openvino, for which NNCF chooses the ranges; "
                    "remove it"
                )

    def write(self, model: ModelToWrite, folder: Path) -> Path:
        """See `Exporter.write`."""
        from ppcls.deploy.export.openvino import write_openvino
        from ppcls.deploy.models.source import ONNX, OPENVINO

        file = folder / OPENVINO
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            onnx = Path(temporary) / ONNX
            onnx.write_bytes(convert_to_onnx(model.save_program, folder, model.name))
            write_openvino(onnx, file)
        return file

    def to_float16(self, file: Path, name: str) -> None:  # noqa: ARG002
        """Stores the weights of a model in float16, in place."""
        from ppcls.deploy.export.openvino import store_weights_in_float16

        store_weights_in_float16(file)

    def quantize(
        self,
        file: Path,
        description: ModelDescription,
        batches: Sequence[NDArray[Any]],
        method: CalibrationMethod,  # noqa: ARG002 - NNCF has its own
        activations: Activations,  # noqa: ARG002 - as above
    ) -> tuple[QuantizedOperators, str]:
        """See `Exporter.quantize`."""
        from ppcls.deploy.export.openvino import quantize_with_nncf

        return quantize_with_nncf(file, description.Global.model_name, batches), "nncf"

    def load(self, file: Path, description: ModelDescription, runtime: Runtime) -> InferenceModel:  # noqa: ARG002
        """See `Exporter.load`."""
        from ppcls.deploy.models.openvino import OpenVinoModel
        from ppcls.runtime.hardware import usable_cores

        return OpenVinoModel(file, description, usable_cores())


def convert_to_onnx(save_program: Callable[[Path], None], folder: Path, name: str) -> bytes:
    """Returns the ONNX model of a program, which is saved in ``folder`` for the time of the conversion."""
    from ppcls.deploy.export.onnx import convert
    from ppcls.deploy.models.paddle_inference import capture_native_output
    from ppcls.deploy.models.source import find_program

    with tempfile.TemporaryDirectory(dir=folder) as temporary:  # the hint of a full disk names this folder
        save_program(Path(temporary) / _STEM)
        with capture_native_output():
            return convert(find_program(Path(temporary)), name)
