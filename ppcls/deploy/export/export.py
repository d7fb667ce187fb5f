"""Exports a model with its weights, preprocessing and postprocessing to a folder for other programs."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import paddle
from paddle import nn

from ppcls.arch.embedding import EmbeddingNetwork
from ppcls.deploy.export.in_graph import PreprocessingLayer
from ppcls.deploy.export.onnx import convert, need_converter
from ppcls.deploy.export.parity import Array, compare
from ppcls.deploy.models.description import DESCRIPTION, ModelDescription, describe_model
from ppcls.deploy.models.onnx import OnnxModel
from ppcls.deploy.models.paddle_inference import PaddleInferenceModel, capture_native_output
from ppcls.deploy.models.source import ONNX, ModelSource, find_program, need_infer
from ppcls.deploy.models.trained import build_activation, load_network
from ppcls.errors import UserError
from ppcls.files import new_folder, write_text
from ppcls.runtime.start import Runtime

ExportFormat = Literal["paddle", "onnx"]
_STEM = "inference"


@dataclass(frozen=True)
class ExportResult:
    """An exported model.

    Attributes:
        files: Sizes of the files in bytes, by name.
        description: Description of the model.
        difference: Difference of its outputs from those of the trained model, see `parity.compare`. None if
            it was not measured, because Paddle itself wrote the program and nothing was added.
    """

    files: dict[str, int]
    description: ModelDescription
    difference: float | None = None


def export_model(
    source: ModelSource, folder: Path, kind: ExportFormat = "paddle", *, preprocess: bool = False
) -> ExportResult:
    """Exports a trained model in float32, ending in softmax, sigmoid or embeddings of length 1.

    Parallel branches that equal one convolution, as in RepVGG, are merged. The layout is always NCHW:
    onnxruntime computes in it, and the CPU operators of Paddle Inference fail on NHWC models that add, split
    or concatenate channels.

    Args:
        source: The trained model.
        folder: Output folder, which appears when it is complete. It contains ``inference.yml`` and either
            ``inference.onnx`` or, for Paddle Inference, ``inference.pdiparams`` and the program
            (``inference.json``, or ``inference.pdmodel`` with Paddle 2.6).
        kind: Format of the model.
        preprocess: Whether the model expects RGB pixels [B, H, W, 3] uint8 of any size, and prepares them.

    Raises:
        UserError: If the folder is not empty or cannot be written, if the weights cannot be read or belong to
            another model, if the model or a transform cannot be converted, or if the outputs differ.
    """
    _check_empty(folder)
    if source.config is None:
        raise UserError(f"{source.file}: is exported already; expected a checkpoint folder or a config")
    if kind == "onnx":
        need_converter()
    config = source.config.model_copy(update={"Arch": source.config.Arch.with_data_format("NCHW")})
    description = describe_model(config, need_infer(config), source.description.names)
    ops = description.chain()
    layers = [PreprocessingLayer([op.spec for op in ops])] if preprocess else []
    network = load_network(config, source.file)
    if isinstance(network, EmbeddingNetwork):
        description = description.with_width(network.size)
    trained = nn.Sequential(network, build_activation(description.Output.activation))
    model = nn.Sequential(*layers, trained)
    model.eval()
    if preprocess:
        description = description.with_pixel_input()
    difference = None
    try:
        if folder.is_dir():
            folder.rmdir()  # it is empty
        with new_folder(folder) as temporary:
            write_text(temporary / DESCRIPTION, description.as_yaml())
            file = _write_model(model, description, temporary, kind)
            if kind == "onnx":
                difference = compare(
                    OnnxModel(file, description, "cpu", 1), description, ops, partial(_run, trained)
                )
            elif preprocess:
                exported = PaddleInferenceModel(file, description, Runtime())
                difference = compare(exported, description, ops, partial(_run, trained))
    except OSError as error:
        raise UserError(
            f"{folder}: cannot write the inference model: {error.strerror or error}; "
            "set Global.save_inference_dir"
        ) from None
    files = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
    return ExportResult(files, description, difference)


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
    (folder / ONNX).write_bytes(converted)
    return folder / ONNX


def _save_program(model: nn.Layer, description: ModelDescription, stem: Path) -> None:
    tensor = description.Input
    shape = [None if side == -1 else side for side in tensor.shape]
    spec = paddle.static.InputSpec(shape, tensor.dtype, name=tensor.name)
    with capture_native_output():
        static = paddle.jit.to_static(model, input_spec=[spec], full_graph=True)
        paddle.jit.save(static, str(stem))
