"""Exports a model with its weights, preprocessing and postprocessing to a folder for other programs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import paddle
from paddle import nn

from ppcls.arch.embedding import EmbeddingNetwork
from ppcls.config.schema import Config
from ppcls.data.transforms.specs import Op
from ppcls.deploy.export.accuracy import check_accuracy, compare_accuracy
from ppcls.deploy.export.formats import ExportFormat, check_format, load_exported
from ppcls.deploy.export.in_graph import PreprocessingLayer
from ppcls.deploy.export.onnx import convert
from ppcls.deploy.export.openvino import quantize_with_nncf, store_weights_in_float16, write_openvino
from ppcls.deploy.export.parity import Array, compare
from ppcls.deploy.export.precision import (
    CALIBRATION_METHODS,
    FEWEST_CALIBRATION_IMAGES,
    CalibrationMethod,
    QuantizedOperators,
    quantize,
    to_float16,
)
from ppcls.deploy.export.samples import BATCH, ImageSamples, read_files, read_split
from ppcls.deploy.models.description import (
    DESCRIPTION,
    Calibration,
    Comparison,
    ExportRecord,
    ModelDescription,
    Precision,
    describe_model,
)
from ppcls.deploy.models.paddle_inference import capture_native_output
from ppcls.deploy.models.source import ONNX, OPENVINO, ModelSource, find_program, need_infer
from ppcls.deploy.models.trained import build_activation, load_network
from ppcls.deploy.predictor import InferenceModel
from ppcls.errors import UserError
from ppcls.files import new_folder, write_text
from ppcls.runtime.hardware import usable_cores
from ppcls.runtime.start import Runtime

_STEM = "inference"
_PROBE_BYTES = 1 << 16  # more than remains of a disk on which a file was cut off
_RANDOM_BATCHES = 4  # that are compared if there are no evaluation images


@dataclass(frozen=True)
class PrecisionSettings:
    """How an exported model computes, and how much accuracy that may cost.

    Attributes:
        precision: Precision of the model. The input and the output are float32 in any case.
        calibration: How ONNX Runtime chooses the range of an int8 tensor from calibration images.
        calibration_images: Number of calibration images.
        calibration_data: Files, folders and patterns of calibration images, instead of ``DataLoader.Train``.
        evaluation_images: Maximum number of images of ``DataLoader.Eval`` that are compared.
        max_accuracy_loss: Percentage points of accuracy that the exported model may lose.
    """

    precision: Precision = "float32"
    calibration: CalibrationMethod = "percentile"
    calibration_images: int = 256
    calibration_data: tuple[Path, ...] = ()
    evaluation_images: int = 1000
    max_accuracy_loss: float = 0.5


@dataclass(frozen=True)
class ExportResult:
    """An exported model.

    Attributes:
        files: Sizes of the files in bytes, by name.
        description: Description of the model.
        difference: Difference of its float32 outputs from those of the trained model, see `parity.compare`.
            None for Paddle Inference on a GPU.
        quantized: Operators of an int8 model, otherwise None.
        no_evaluation: Why no evaluation images were compared. None if they were.
    """

    files: dict[str, int]
    description: ModelDescription
    difference: float | None = None
    quantized: QuantizedOperators | None = None
    no_evaluation: str | None = None


def export_model(
    source: ModelSource,
    folder: Path,
    kind: ExportFormat = "paddle",
    *,
    preprocess: bool = False,
    settings: PrecisionSettings | None = None,
    runtime: Runtime | None = None,
) -> ExportResult:
    """Exports a trained model that ends in softmax, sigmoid or embeddings of length 1.

    Parallel branches that equal one convolution, as in RepVGG, are merged. The layout is always NCHW:
    onnxruntime computes in it, and the CPU operators of Paddle Inference fail on NHWC models that add, split
    or concatenate channels.

    Args:
        source: The trained model.
        folder: Output folder, which appears when it is complete. It contains ``inference.yml`` and either
            ``inference.onnx``, or ``inference.xml`` and ``inference.bin`` for OpenVINO, or, for Paddle
            Inference, ``inference.pdiparams`` and the program (``inference.json``, or
            ``inference.pdmodel`` with Paddle 2.6).
        kind: Format of the model.
        preprocess: Whether the model expects RGB pixels [B, H, W, 3] uint8 of any size, and prepares them.
        settings: Precision, by default float32.
        runtime: Device on which the exported model is compared with the trained one, by default a CPU.

    Raises:
        UserError: If the folder is not empty or cannot be written, if the weights cannot be read or belong to
            another model, if the model or a transform cannot be converted, if the device does not support
            the precision, if there are too few calibration images, or if the outputs or the accuracy differ
            too much.
    """
    settings, runtime = settings or PrecisionSettings(), runtime or Runtime()
    _check_empty(folder)
    if preprocess and settings.precision != "float32":
        raise UserError(
            f"--preprocess needs --precision float32, got {settings.precision}: pixels are computed exactly "
            "in float32 only; export without --preprocess"
        )
    check_format(kind, settings.precision, runtime)
    if source.config is None:
        raise UserError(f"{source.file}: is exported already; expected a checkpoint folder or a config")
    config = source.config.model_copy(update={"Arch": source.config.Arch.with_data_format("NCHW")})
    temperature = source.description.Output.temperature
    description = describe_model(config, need_infer(config), source.description.names, temperature)
    ops = description.chain()
    calibration = _read_calibration(config, settings)
    layers = [PreprocessingLayer([op.spec for op in ops])] if preprocess else []
    network = load_network(config, source.file)
    if isinstance(network, EmbeddingNetwork):
        description = description.with_width(network.size)
    trained = nn.Sequential(network, build_activation(description.Output.activation, temperature))
    model = nn.Sequential(*layers, trained)
    model.eval()
    if preprocess:
        description = description.with_pixel_input()
    difference, quantized = None, None
    try:
        if folder.is_dir():
            folder.rmdir()  # it is empty
        with new_folder(folder) as temporary:
            file = _write_model(model, description, temporary, kind)
            run_trained = partial(_run, trained)
            # On a GPU, the trained model may compute in TF32.
            is_exact = kind != "paddle" or preprocess or runtime.device == "cpu"
            if is_exact:
                exported = load_exported(file, description, Runtime())
                difference = compare(exported, description, ops, run_trained)
            record = ExportRecord(precision=settings.precision)
            if settings.precision == "float16":
                _convert_to_float16(file)
            if calibration is not None:
                quantized, ranges = _quantize(file, description, ops, calibration, settings.calibration)
                record = record.model_copy(update={"calibration": ranges})
            comparison, evaluation, reason = None, None, None
            if not preprocess:
                evaluation, reason = _read_evaluation(config, settings)
            if evaluation is not None or settings.precision != "float32" or not is_exact:
                exported = load_exported(file, description.with_record(record), runtime)
                comparison = _compare(exported, run_trained, description, ops, evaluation)
                _check_loss(comparison, settings, description, kind)
            description = description.with_record(record.model_copy(update={"comparison": comparison}))
            write_text(temporary / DESCRIPTION, description.as_yaml())
    except OSError as error:
        raise UserError(
            f"{folder}: cannot write the inference model: {error.strerror or error}; "
            "set Global.save_inference_dir"
        ) from None
    files = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
    return ExportResult(files, description, difference, quantized, reason)


def _read_calibration(config: Config, settings: PrecisionSettings) -> ImageSamples | None:
    """Returns the calibration images of an int8 model, otherwise None.

    Raises:
        UserError: If there are fewer than requested.
    """
    if settings.precision != "int8":
        return None
    if settings.calibration_data:
        samples = read_files(settings.calibration_data)
    else:
        try:
            samples = read_split(config, config.DataLoader.Train, "Train")
        except UserError as error:
            raise UserError(
                f"--precision int8 needs training images for calibration: {error}; name some with "
                "--calibration-data FOLDER, or use --precision float16"
            ) from None
    count = settings.calibration_images
    if len(samples) < count:
        fix = f"set --calibration-images {len(samples)}, or add images"
        if len(samples) < FEWEST_CALIBRATION_IMAGES:
            fix = f"add images, at least {FEWEST_CALIBRATION_IMAGES}"
        raise UserError(
            f"{samples.source}: expected {count:,} calibration images, found {len(samples):,}; {fix}"
        )
    return samples.spread(count)


def _quantize(
    file: Path,
    description: ModelDescription,
    ops: Sequence[Op],
    samples: ImageSamples,
    method: CalibrationMethod,
) -> tuple[QuantizedOperators, Calibration]:
    batches = [images for images, _ in samples.batches(ops, usable_cores(), "calibration")]
    count = sum(map(len, batches))
    if count < FEWEST_CALIBRATION_IMAGES:
        raise UserError(
            f"{samples.source}: only {count} of {len(samples)} calibration images can be decoded, expected "
            f"at least {FEWEST_CALIBRATION_IMAGES}; nothing was written"
        )
    name = description.Global.model_name
    if file.suffix == ".xml":
        operators = quantize_with_nncf(file, name, batches)
        return operators, Calibration(method="nncf", images=count, source=samples.source)
    operators = quantize(file, name, description.Input.name, batches, method)
    return operators, Calibration(method=method, images=count, source=samples.source)


def _convert_to_float16(file: Path) -> None:
    """Converts a model in place. Paddle Inference converts its programs when it loads them."""
    if file.suffix == ".onnx":
        file.write_bytes(to_float16(file.read_bytes()))
    elif file.suffix == ".xml":
        store_weights_in_float16(file)


def _read_evaluation(config: Config, settings: PrecisionSettings) -> tuple[ImageSamples | None, str | None]:
    """Returns evaluation images, or the reason why there are none."""
    key, split = next(iter(config.DataLoader.evaluated.items()), ("Eval", None))
    try:
        return read_split(config, split, key).spread(settings.evaluation_images), None
    except UserError as error:
        return None, str(error)


def _compare(
    exported: InferenceModel,
    trained: Callable[[Array], Array],
    description: ModelDescription,
    ops: Sequence[Op],
    evaluation: ImageSamples | None,
) -> Comparison:
    if evaluation is not None:
        batches = evaluation.batches(ops, usable_cores(), "comparison")
        return compare_accuracy(exported, trained, description, batches, evaluation.source)
    random = np.random.default_rng(1)
    shape = (BATCH, *description.Input.shape[1:])
    images = [(random.standard_normal(shape, np.float32), None) for _ in range(_RANDOM_BATCHES)]
    return compare_accuracy(exported, trained, description, images, "random")


def _check_loss(
    comparison: Comparison, settings: PrecisionSettings, description: ModelDescription, kind: ExportFormat
) -> None:
    advice = "--precision float32"
    if settings.precision == "int8":
        advice = f"--calibration-images {2 * settings.calibration_images}, --precision float16"
        if kind == "onnx":
            methods = " or ".join(method for method in CALIBRATION_METHODS if method != settings.calibration)
            advice = f"--calibration {methods}, {advice}"
    model = f"{settings.precision} {description.Global.model_name}"
    check_accuracy(comparison, model, settings.max_accuracy_loss, advice)


@paddle.no_grad()  # type: ignore[untyped-decorator]
def _run(model: nn.Layer, images: Array) -> Array:
    outputs: Array = model(paddle.to_tensor(images)).numpy()
    return outputs


def _check_empty(folder: Path) -> None:
    try:
        empty = folder.is_dir() and not any(folder.iterdir())
    except OSError as error:
        raise UserError(
            f"{folder}: cannot read this folder: {error.strerror}; set Global.save_inference_dir"
        ) from None
    if os.path.lexists(folder) and not empty:
        raise UserError(
            f"{folder}: exists already, and export does not overwrite it; "
            "remove it, or set Global.save_inference_dir"
        )


def _write_model(model: nn.Layer, description: ModelDescription, folder: Path, kind: ExportFormat) -> Path:
    """Writes a model to a folder, and returns the file of its program."""
    if kind == "paddle":
        _save_program(model, description, folder / _STEM)
        return find_program(folder)
    with tempfile.TemporaryDirectory() as temporary:
        _save_program(model, description, Path(temporary) / _STEM)
        with capture_native_output():
            converted = convert(find_program(Path(temporary)), description.Global.model_name)
        if kind == "openvino":
            onnx = Path(temporary) / ONNX
            onnx.write_bytes(converted)
            write_openvino(onnx, folder / OPENVINO)
            return folder / OPENVINO
    (folder / ONNX).write_bytes(converted)
    return folder / ONNX


def _check_disk(folder: Path) -> None:
    """Checks that the disk is not full, because Paddle then writes an incomplete file without an error.

    Raises:
        OSError: If it is.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(_PROBE_BYTES))
        file.flush()
        os.fsync(file.fileno())


def _save_program(model: nn.Layer, description: ModelDescription, stem: Path) -> None:
    tensor = description.Input
    shape = [None if side == -1 else side for side in tensor.shape]
    spec = paddle.static.InputSpec(shape, tensor.dtype, name=tensor.name)
    with capture_native_output():
        static = paddle.jit.to_static(model, input_spec=[spec], full_graph=True)
        paddle.jit.save(static, str(stem))
    _check_disk(stem.parent)
