"""Exports a model with its weights, preprocessing and postprocessing to a folder for other programs."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import paddle
from paddle import nn

from ppcls.arch.distillation_model import AnyArch
from ppcls.arch.embedding import EmbeddingNetwork
from ppcls.data.section import DataLoader, Split
from ppcls.data.transforms.base import Transform
from ppcls.data.transforms.numpy_ops import run_on_pixels
from ppcls.data.transforms.specs import Op, ToCHWImage, plan_chain, split_chain
from ppcls.deploy.export.accuracy import check_accuracy, compare_accuracy
from ppcls.deploy.export.formats import Exporter, ModelToWrite, find_exporter
from ppcls.deploy.export.gpu_network import GpuNetwork, has_gpu_form
from ppcls.deploy.export.parity import Array, compare
from ppcls.deploy.export.precision import (
    FEWEST_CALIBRATION_IMAGES,
    Activations,
    CalibrationMethod,
    QuantizedOperators,
)
from ppcls.deploy.export.samples import BATCH, ImageSamples, read_files, read_split
from ppcls.deploy.in_graph.layer import PreprocessingLayer
from ppcls.deploy.models.description import (
    DESCRIPTION,
    Calibration,
    Comparison,
    ExportRecord,
    ModelDescription,
    Precision,
    Preprocess,
    describe_model,
)
from ppcls.deploy.models.paddle_inference import capture_native_output
from ppcls.deploy.models.rejection import RejectionRule
from ppcls.deploy.models.source import ModelSource, need_infer
from ppcls.deploy.models.trained import build_activation, load_network
from ppcls.deploy.predictor import InferenceModel
from ppcls.engine.core.networks import Losses, build_network, read_inferred
from ppcls.engine.evaluation.labels import label_by_names, warn_of_labels
from ppcls.errors import UserError, counted
from ppcls.files import new_folder, print_error, write_text
from ppcls.files.home import writable_home
from ppcls.runtime.hardware import usable_cores
from ppcls.runtime.start import Runtime
from ppcls.weights.files import Arrays, fill_model
from ppcls.weights.manifest import read_record
from ppcls.zoo import ZOO

_PROBE_BYTES = 1 << 16  # size of a test file, which does not fit on a full disk
_RANDOM_BATCHES = 4  # number of random batches to compare if there are no evaluation images


@dataclass(frozen=True)
class PrecisionSettings:
    """Precision of an exported model, and the allowed loss of accuracy.

    Attributes:
        precision: Precision of the model. The input and the output are always float32.
        calibration: Method by which ONNX Runtime chooses the ranges of int8 tensors from calibration images.
        calibration_images: Number of calibration images.
        calibration_data: Files, folders and patterns of calibration images; empty to use
            ``DataLoader.Train``.
        evaluation_images: Maximum number of images of ``DataLoader.Eval`` that are compared.
        max_accuracy_loss: Maximum loss of accuracy in percentage points.
        activations: Type of int8 activations in ONNX; see `precision.quantize`.
    """

    precision: Precision = "float32"
    calibration: CalibrationMethod = "percentile"
    calibration_images: int = 256
    calibration_data: tuple[Path, ...] = ()
    evaluation_images: int = 1000
    max_accuracy_loss: float = 0.5
    activations: Activations = "unsigned"


@dataclass(frozen=True)
class ExportResult:
    """Result of an export.

    Attributes:
        files: Size in bytes of each written file, keyed by file name.
        description: Description of the exported model.
        difference: Difference between the float32 outputs of the exported and the trained model; see
            `parity.compare`. None for Paddle Inference and ppcls on a GPU.
        quantized: Operators of an int8 model; None for other precisions.
        no_evaluation: Reason why the models were not compared on evaluation images; None if they were.
    """

    files: dict[str, int]
    description: ModelDescription
    difference: float | None = None
    quantized: QuantizedOperators | None = None
    no_evaluation: str | None = None


def export_model(
    source: ModelSource,
    folder: Path,
    kind: str = "paddle",
    *,
    preprocess: Preprocess | None = None,
    settings: PrecisionSettings | None = None,
    runtime: Runtime | None = None,
) -> ExportResult:
    """Exports a trained model.

    The outputs of the exported model are probabilities (softmax or sigmoid) or embeddings of length 1.

    Parallel branches that are equivalent to one convolution, as in RepVGG, are merged. The layout is NCHW,
    because onnxruntime computes in this layout, and because the CPU operators of Paddle Inference fail on
    NHWC models that add, split or concatenate channels. It is NHWC inside a `GpuNetwork`, and for ppcls
    itself, which merges branches when it loads the model.

    Args:
        source: Trained model.
        folder: Output folder, which is created when all files are complete. It contains ``inference.yml``
            and the model. The model is ``inference.onnx`` for ONNX, ``inference.xml`` and ``inference.bin``
            for OpenVINO, ``inference.safetensors`` for ppcls itself, or ``inference.json`` and
            ``inference.pdiparams`` for Paddle Inference. With Paddle 2.6, ``inference.pdmodel`` replaces
            ``inference.json``.
        kind: Format of the exported model.
        preprocess: Transforms that the exported model contains. It then expects RGB pixels [B, H, W, 3]
            uint8. With ``all``, images can have any size. With ``normalize``, the model only normalizes them,
            so they must have been resized and cropped before.
        settings: Precision; float32 by default.
        runtime: Device on which the exported model is compared with the trained model; a CPU by default.

    Raises:
        UserError: The folder is not empty or cannot be written; the weights cannot be read or are those of
            another model; the model or a transform cannot be converted; the device does not support the
            precision; there are too few calibration images; or outputs or accuracy differ too much.
    """
    exporter = find_exporter(kind)
    settings = settings or PrecisionSettings()
    runtime = runtime or Runtime()
    _check_empty(folder)
    if preprocess == "all" and settings.precision != "float32":
        raise UserError(
            f"--preprocess all needs --precision float32, got {settings.precision}: only float32 computes "
            "pixels exactly; use --preprocess normalize"
        )
    if settings.calibration_data and settings.precision != "int8":
        raise UserError(
            f"--calibration-data needs --precision int8, got {settings.precision}; remove it, or export int8"
        )
    if settings.activations != "unsigned" and settings.precision != "int8":
        raise UserError(
            f"--int8-activations {settings.activations} needs --precision int8, got {settings.precision}; "
            "remove it, or export int8"
        )
    exporter.check_calibration(settings.calibration, settings.activations)
    exporter.check(settings.precision, runtime)
    exporter.check_preprocess(preprocess)
    if source.config is None:
        raise UserError(
            f"{source.file}: this model is already exported; expected a checkpoint folder or a config"
        )
    config = source.config
    arch = exporter.adapt_arch(config.Arch)
    losses = config.Loss.Train
    temperature = source.description.Output.temperature
    description = describe_model(arch, need_infer(config.Infer), source.description.names, temperature)
    description = description.with_rejection(_exported_rule(source))
    ops = description.chain()
    calibration = _read_calibration(
        config.DataLoader.Train, None if arch.embeds else arch.class_num, source.unread, settings
    )
    network = load_network(arch, losses, source.file)
    if isinstance(network, EmbeddingNetwork):
        description = description.with_width(network.size)
    description = exporter.complete_description(description, arch)
    activation = build_activation(description.Output.activation, temperature)
    trained = nn.Sequential(network, activation)
    trained.eval()
    _compute_weights(trained, description)
    model = trained
    finish = None
    gpu_network = None
    if exporter.has_gpu_form and settings.precision == "float16":  # `check` allows this only on a GPU
        gpu_network = _load_gpu_network(arch, losses, source.file, transpose=preprocess is None)
    if gpu_network is not None:
        model = nn.Sequential(gpu_network, activation)
    if preprocess is not None:
        specs: Sequence[Transform] = [op.spec for op in ops]
        description = description.with_pixel_input(preprocess)
        if preprocess == "normalize":
            specs = split_chain(specs)[1]
            ops = description.chain()
            finish = plan_chain(specs, "CHW")
        if gpu_network is not None:
            specs = [spec for spec in specs if not isinstance(spec, ToCHWImage)]
        model = nn.Sequential(PreprocessingLayer(specs), model)
    model.eval()
    difference = None
    quantized = None
    try:
        if folder.is_dir():
            # `new_folder` renames the complete folder to this name, and replaces nothing.
            folder.rmdir()  # _check_empty has checked that it is empty
        with new_folder(folder) as temporary:
            # A copy, because to_static of Paddle 2.6 replaces the forward functions by slow ones.
            run_trained = partial(_run, copy.deepcopy(trained), finish)
            original = ModelToWrite(
                description.Global.model_name,
                partial(save_program, model, description),
                partial(_read_weights, arch, losses, source.file),
            )
            file = exporter.write(original, temporary)
            # On a GPU, the trained model may compute in TF32.
            is_exact = not exporter.uses_gpu or preprocess == "all" or runtime.device == "cpu"
            if is_exact:
                exported = exporter.load(file, description, Runtime())
                difference = compare(exported, description, ops, run_trained)
            record = ExportRecord(
                precision=settings.precision, device="gpu" if gpu_network is not None else None
            )
            if settings.precision == "float16":
                exporter.to_float16(file, description.Global.model_name)
            if calibration is not None:
                batches = _calibration_batches(calibration, ops)
                quantized, method = exporter.quantize(
                    file, description, batches, settings.calibration, settings.activations
                )
                ranges = Calibration(method=method, images=sum(map(len, batches)), source=calibration.source)
                record = record.model_copy(update={"calibration": ranges})
            comparison = None
            evaluation = None
            reason = None
            if preprocess != "all":
                count = settings.evaluation_images
                evaluation, reason = read_evaluation(
                    config.DataLoader, arch, source.file, count, source.unread
                )
            if evaluation is not None or settings.precision != "float32" or not is_exact:
                exported = exporter.load(file, description.with_record(record), runtime)
                comparison = _compare(exported, run_trained, description, ops, evaluation)
                _check_loss(comparison, settings, description, exporter)
            written = {file.name: read_record(file) for file in sorted(temporary.iterdir())}
            record = record.model_copy(update={"comparison": comparison, "files": written})
            description = description.with_record(record)
            write_text(temporary / DESCRIPTION, description.as_yaml())
    except OSError as error:
        raise UserError(
            f"{folder}: cannot write the inference model: {error.strerror or error}; "
            "choose another folder with --output (Global.save_inference_dir)"
        ) from None
    files = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
    return ExportResult(files, description, difference, quantized, reason)


def _read_weights(arch: AnyArch, losses: Losses, weights: Path) -> Arrays:
    """Returns the weights of the network that is exported, whose parallel branches are not merged.

    Loading a model merges them, so the names are those of a checkpoint. An embedding model has no head.
    """
    network = build_network(arch)
    fill_model(network, read_inferred(arch, losses, weights), weights)
    if isinstance(network, EmbeddingNetwork):
        network.head = None
    return {name: tensor.numpy() for name, tensor in network.state_dict().items()}


def _exported_rule(source: ModelSource) -> RejectionRule | None:
    """Returns the rule for the answer unknown, if the exported model can follow it."""
    rule = source.description.Rejection
    if rule is None or not rule.needs_output:
        return rule
    print_error(
        f"warning: {source.file}: the exported model does not answer unknown, because it does not return the "
        f"score {rule.score}; use --format bundle, or ppcls calibrate --unknown --score max_probability"
    )
    return None


def _load_gpu_network(arch: AnyArch, losses: Losses, weights: Path, *, transpose: bool) -> GpuNetwork | None:
    """Returns the network in the form for GPUs; None if it has no such form."""
    entry = ZOO.get(arch.exported.name)
    if entry is None or entry.fixed_input:  # the user's own architectures may not support NHWC
        return None
    network = load_network(arch.with_data_format("NHWC"), losses, weights)
    return GpuNetwork(network, transpose=transpose) if has_gpu_form(network) else None


def _read_calibration(
    split: Split | None, classes: int | None, unread: Sequence[str], settings: PrecisionSettings
) -> ImageSamples | None:
    """Returns the calibration images for int8, or None for other precisions.

    Raises:
        UserError: The images cannot be read, or there are fewer than requested.
    """
    if settings.precision != "int8":
        return None
    if settings.calibration_data:
        samples = read_files(settings.calibration_data)
    else:
        try:
            samples = read_split(split, "Train", classes, unread)
        except UserError as error:
            raise UserError(
                f"--precision int8 needs training images for calibration: {error}; pass images with "
                "--calibration-data FOLDER, or use --precision float16"
            ) from None
    count = settings.calibration_images
    if len(samples) < count:
        fix = f"set --calibration-images {len(samples)}, or add images"
        if len(samples) < FEWEST_CALIBRATION_IMAGES:
            fix = f"add images, at least {FEWEST_CALIBRATION_IMAGES}"
        raise UserError(
            f"{samples.source}: expected {counted(count, 'calibration image')}, found {len(samples):,}; {fix}"
        )
    return samples.spread(count)


def _calibration_batches(samples: ImageSamples, ops: Sequence[Op]) -> list[Array]:
    """Returns the calibration images, prepared for the model.

    Raises:
        UserError: Too few images can be decoded.
    """
    batches = [images for images, _ in samples.batches(ops, usable_cores(), "calibration")]
    count = sum(map(len, batches))
    if count < FEWEST_CALIBRATION_IMAGES:
        raise UserError(
            f"{samples.source}: only {count} of {counted(len(samples), 'calibration image')} can be decoded, "
            f"expected at least {FEWEST_CALIBRATION_IMAGES}; nothing was written. Replace the damaged "
            "images, or "
            "set a larger --calibration-images"
        )
    return batches


def read_evaluation(
    data: DataLoader, arch: AnyArch, weights: Path, count: int, unread: Sequence[str] = ()
) -> tuple[ImageSamples | None, str | None]:
    """Returns at most ``count`` evaluation images, or the reason why there are none.

    Args:
        data: Data sets of the model.
        arch: Architecture of the model.
        weights: Checkpoint of the model.
        count: Maximum number of images.
        unread: See `ModelSource`.
    """
    try:
        data, notes = label_by_names(data, arch.class_num, weights)
        warn_of_labels(notes)
        key, split = next(iter(data.evaluated.items()), ("Eval", None))
        classes = None if arch.embeds else arch.class_num
        return read_split(split, key, classes, unread).spread(count), None
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
    images = [(description.random_images(BATCH, random), None) for _ in range(_RANDOM_BATCHES)]
    return compare_accuracy(exported, trained, description, images, "random")


def _check_loss(
    comparison: Comparison, settings: PrecisionSettings, description: ModelDescription, exporter: Exporter
) -> None:
    advice = "--precision float32"
    if settings.precision == "int8":
        advice = f"--calibration-images {2 * settings.calibration_images}, --precision float16"
        others = [method for method in exporter.calibrations if method != settings.calibration]
        if others:
            methods = " or ".join(others)
            advice = f"--calibration {methods}, {advice}"
    model = f"{settings.precision} {description.Global.model_name}"
    check_accuracy(comparison, model, settings.max_accuracy_loss, advice)


@paddle.no_grad()  # type: ignore[untyped-decorator]
def _run(model: nn.Layer, finish: Sequence[Op] | None, images: Array) -> Array:
    """Runs the trained model on images, which ``finish`` converts from pixels if it is not None."""
    if finish is not None:
        images = np.stack([run_on_pixels(finish, image) for image in images]).astype(np.float32)
    outputs: Array = model(paddle.to_tensor(images)).numpy()
    return outputs


@paddle.no_grad()  # type: ignore[untyped-decorator]
def _compute_weights(model: nn.Layer, description: ModelDescription) -> None:
    """Runs a model once, so that hooks such as that of `nn.utils.weight_norm` compute weights from others.

    A program contains the weights of the last call. Before the first one, they are those of the new model.
    """
    model(paddle.to_tensor(description.random_images(1, np.random.default_rng(0))))


def _check_empty(folder: Path) -> None:
    try:
        empty = folder.is_dir() and not any(folder.iterdir())
    except OSError as error:
        raise UserError(
            f"{folder}: cannot read this folder: {error.strerror}; set Global.save_inference_dir"
        ) from None
    if os.path.lexists(folder) and not empty:
        raise UserError(
            f"{folder}: exists already and is not overwritten; "
            "delete it, or choose another folder (--output, Global.save_inference_dir)"
        )


def _check_disk(folder: Path) -> None:
    """Checks that the disk is not full. On a full disk, Paddle writes an incomplete file without an error.

    Raises:
        OSError: The disk is full.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(_PROBE_BYTES))
        file.flush()
        os.fsync(file.fileno())


def save_program(model: nn.Layer, description: ModelDescription, stem: Path) -> None:
    """Saves a model as a program of Paddle.

    Args:
        model: The model.
        description: Description of its input.
        stem: Path of the files without a suffix.

    Raises:
        OSError: The files cannot be written.
    """
    tensor = description.Input
    shape = [None if side == -1 else side for side in tensor.shape]
    spec = paddle.static.InputSpec(shape, tensor.dtype, name=tensor.name)
    with capture_native_output(), writable_home(stem.parent):
        static = paddle.jit.to_static(model, input_spec=[spec], full_graph=True)
        paddle.jit.save(static, str(stem))
    _check_disk(stem.parent)
