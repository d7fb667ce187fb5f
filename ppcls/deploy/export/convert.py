"""Converts models that other tools exported to ONNX: programs of Paddle, and ``.onnx`` files."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ppcls.data.transforms.numpy_ops import run_on_pixels
from ppcls.data.transforms.specs import Op
from ppcls.deploy.export.formats import find_exporter
from ppcls.deploy.export.parity import compare
from ppcls.deploy.models.description import DESCRIPTION, ExportRecord, ModelDescription
from ppcls.deploy.models.programs.check import read_program
from ppcls.deploy.models.programs.onnx_file import check_onnx
from ppcls.deploy.models.source import ONNX, ModelSource
from ppcls.deploy.predictor import Predictor
from ppcls.errors import UserError
from ppcls.files import new_folder, write_text
from ppcls.files.temporary import temporary_folder
from ppcls.runtime.start import Runtime
from ppcls.weights.manifest import read_record

if TYPE_CHECKING:
    from ppcls.deploy.export.export import ExportResult

Array = NDArray[Any]
_OPSET = 17  # as `ppcls.deploy.export.onnx` writes


def export_converted(source: ModelSource, folder: Path, runtime: Runtime) -> ExportResult:
    """Writes ``inference.onnx`` and ``inference.yml`` of an exported model to a new folder.

    Args:
        source: Model of another tool, or of ``ppcls export`` without preprocessing.
        folder: New folder.
        runtime: Device of the original model, with which the result is compared.

    Raises:
        UserError: See `convert`; or the folder cannot be written.
    """
    from ppcls.deploy.export.export import ExportResult

    try:
        with new_folder(folder) as temporary:
            description, difference = convert(source, temporary, runtime)
            write_text(temporary / DESCRIPTION, description.as_yaml())
    except OSError as error:
        raise UserError(
            f"{folder}: cannot write the model: {error.strerror or error}; choose another --output"
        ) from None
    files = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
    return ExportResult(files, description, difference)


def convert(source: ModelSource, folder: Path, runtime: Runtime) -> tuple[ModelDescription, float]:
    """Writes ``inference.onnx`` of an exported model to a folder, in float32 and for any batch size.

    Logits of classifiers are converted to probabilities inside the model.

    Returns:
        The description of the written model, and its difference from the original model, see
        `ppcls.deploy.export.parity.compare`.

    Raises:
        UserError: The model contains its preprocessing, cannot be converted, or its outputs differ.
    """
    description = source.description
    name = description.Global.model_name
    if description.PreProcess.in_graph:
        raise UserError(
            f"{source.file}: the model prepares images itself; convert the checkpoint or the model without "
            "--preprocess"
        )
    if source.file.suffix == ".xml":
        raise UserError(f"{source.file}: OpenVINO's format cannot be converted; convert the original model")
    find_exporter("onnx").check("float32", runtime)
    predictor = Predictor(source, runtime=runtime)
    _check_size(source, predictor.chain)
    is_onnx = source.file.suffix == ".onnx"
    data = source.file.read_bytes() if is_onnx else _convert_program(source.file, name, trust=source.trust)
    file = folder / ONNX
    file.write_bytes(_standardize(data, description, source.file))
    check_onnx(file)
    output = description.Output.model_copy(update={"normalized": True})
    if description.postprocess is None:
        output = description.Output
    record = ExportRecord(precision="float32", files={file.name: read_record(file)})
    converted = description.model_copy(update={"Output": output}).with_record(record)

    def run_original(images: Array) -> Array:
        # One by one, because the original may accept only batches of one image.
        outputs = np.concatenate([predictor.model.run(image[None]) for image in images])
        return description.normalize(outputs) if output.normalized else outputs

    loaded = find_exporter("onnx").load(file, converted, Runtime())
    return converted, compare(loaded, converted, predictor.chain, run_original)


def _check_size(source: ModelSource, chain: tuple[Op, ...]) -> None:
    """Checks that the transforms return images of the size that the model expects."""
    image = run_on_pixels(chain, np.zeros((300, 400, 3), np.uint8))
    expected = source.description.Input.shape[1:]
    if any(side not in (-1, actual) for side, actual in zip(expected, image.shape, strict=True)):
        raise UserError(
            f"{source.file}: Infer.transforms return images of shape {list(image.shape)}, but the model "
            f"expects {list(expected)}; correct {DESCRIPTION}, or set -o Infer.transforms=…"
        )


def _convert_program(program: Path, name: str, *, trust: bool) -> bytes:
    """Returns the ONNX model of a program of Paddle, of which only what was checked is converted."""
    from ppcls.deploy.export.onnx import convert as convert_program
    from ppcls.deploy.models.paddle_inference import capture_native_output

    weights = program.with_suffix(".pdiparams")
    with temporary_folder("program") as folder:  # paddle2onnx writes further files beside the program
        copy = folder / program.name
        copy.write_bytes(program.read_bytes() if trust else read_program(program, weights))
        shutil.copyfile(weights, folder / weights.name)
        with capture_native_output():
            return convert_program(copy, name)


def _standardize(data: bytes, description: ModelDescription, file: Path) -> bytes:
    """Returns a model with the operators of `_OPSET`, any batch size, and probabilities."""
    import onnx

    model = onnx.load_from_string(data)
    version = next((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), 1)
    if version < _OPSET:
        try:
            model = onnx.version_converter.convert_version(model, _OPSET)
        except RuntimeError as error:
            raise UserError(
                f"{file}: the operators of opset {version} cannot be converted to opset {_OPSET}: {error}; "
                f"export the model with opset {_OPSET}"
            ) from None
    graph = model.graph
    stored = {tensor.name for tensor in graph.initializer}
    # Older files list weights as inputs, too.
    inputs = [tensor for tensor in graph.input if tensor.name not in stored]
    del graph.input[:]
    graph.input.extend(inputs)
    output = graph.output[0]
    if not description.Output.normalized and description.postprocess is not None:
        axis = {"axis": -1} if description.Output.activation == "softmax" else {}
        kind = description.Output.activation.capitalize()
        scores = f"{output.name}/probabilities"
        graph.node.append(onnx.helper.make_node(kind, [output.name], [scores], **axis))
        output.name = scores
    for tensor in (*graph.input, output):
        tensor.type.tensor_type.shape.dim[0].dim_param = "N"
    del graph.value_info[:]  # their shapes may contain the old batch size
    return bytes(model.SerializeToString())
