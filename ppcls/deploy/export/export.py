"""Export: a model with its weights, pre- and postprocessing, as a folder for other programs."""

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
from ppcls.deploy.export.in_graph import Preprocessing
from ppcls.deploy.export.onnx import convert, need_converter
from ppcls.deploy.export.parity import Array, check
from ppcls.deploy.models.description import DESCRIPTION, Description, describe
from ppcls.deploy.models.network import ending, load_network
from ppcls.deploy.models.onnx import OnnxModel
from ppcls.deploy.models.paddle_inference import PaddleInferenceModel
from ppcls.deploy.models.quiet import hushed
from ppcls.deploy.models.source import ONNX, Source, find_program, need_infer
from ppcls.deploy.predictor import Model
from ppcls.errors import UserError
from ppcls.files import new_folder, write_text
from ppcls.runtime.start import Runtime

Kind = Literal["paddle", "onnx"]
_STEM = "inference"


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        files: Name to bytes of each.
        description: Of the model.
        difference: Of its scores or embeddings from the trained model's, see `parity.check`;
            None where the program is Paddle's own, and nothing is added.
    """

    files: dict[str, int]
    description: Description
    difference: float | None = None


def export(source: Source, folder: Path, kind: Kind = "paddle", *, preprocess: bool = False) -> Exported:
    """Writes a trained model for inference, in float32, with a softmax or sigmoid at its end.

    A model of embeddings gives these, of length 1.

    Branches that have one convolution's effect, as RepVGG's, are written as one. The layout is NCHW whatever
    the config says: onnxruntime computes in it, and Paddle Inference's operators for CPUs fail on models in
    NHWC that add, split or join channels.

    Args:
        source: The model.
        folder: Appears whole, with ``inference.yml`` and, for Paddle Inference, ``inference.pdiparams`` and
            the program (``inference.json``, or ``inference.pdmodel`` on Paddle 2.6); else ``inference.onnx``.
        kind: For what program.
        preprocess: Whether the model takes RGB pixels [B, H, W, 3] uint8 of any size, and prepares them.

    Raises:
        UserError: The folder is there with something in it, or can't be made; or the weights can't be
            read or are another model's; or there is no ONNX of it, or no form of a transform in a graph; or
            the exported model gives others.
    """
    _refuse_taken(folder)
    if source.config is None:
        raise UserError(f"{source.file}: exported already; expected a checkpoint folder or a config")
    if kind == "onnx":
        need_converter()
    config = source.config.model_copy(update={"Arch": source.config.Arch.with_data_format("NCHW")})
    description = describe(config, need_infer(config), source.description.names)
    ops = description.chain()
    first = [Preprocessing([op.spec for op in ops])] if preprocess else []
    network = load_network(config, source.file)
    if isinstance(network, EmbeddingNetwork):
        description = description.with_width(network.size)
    model = nn.Sequential(network, ending(description.Output.activation))
    whole = nn.Sequential(*first, model)
    whole.eval()
    if preprocess:
        description = description.with_pixels()
    difference = None
    try:
        if folder.is_dir():
            folder.rmdir()  # it is empty
        with new_folder(folder) as temporary:
            write_text(temporary / DESCRIPTION, description.as_yaml())
            file = _write(whole, description, temporary, kind)
            if kind == "onnx" or preprocess:
                difference = check(_load(file, description), description, ops, partial(_run, model))
    except OSError as error:
        raise UserError(
            f"{folder}: can't write the inference model: {error.strerror or error}; "
            "set Global.save_inference_dir"
        ) from None
    files = {each.name: each.stat().st_size for each in sorted(folder.iterdir())}
    return Exported(files, description, difference)


@paddle.no_grad()  # type: ignore[untyped-decorator]
def _run(model: nn.Layer, images: Array) -> Array:
    answers: Array = model(paddle.to_tensor(images)).numpy()
    return answers


def _load(file: Path, description: Description) -> Model:
    """Loads what was written, on the CPU."""
    if file.name == ONNX:
        return OnnxModel(file, description, "cpu", 1)
    return PaddleInferenceModel(file, description, Runtime())


def _refuse_taken(folder: Path) -> None:
    try:
        empty = folder.is_dir() and not any(folder.iterdir())
    except OSError as error:
        raise UserError(
            f"{folder}: can't read this folder: {error.strerror}; set Global.save_inference_dir"
        ) from None
    if os.path.lexists(folder) and not empty:
        raise UserError(
            f"{folder}: exists already, and export overwrites nothing; "
            "remove it, or set Global.save_inference_dir"
        )


def _save(model: nn.Layer, description: Description, stem: Path) -> None:
    given = description.Input
    shape = [None if side == -1 else side for side in given.shape]
    spec = paddle.static.InputSpec(shape, given.dtype, name=given.name)
    with hushed():
        static = paddle.jit.to_static(model, input_spec=[spec], full_graph=True)
        paddle.jit.save(static, str(stem))


def _write(model: nn.Layer, description: Description, folder: Path, kind: Kind) -> Path:
    """Writes a model into a folder, and returns its program's file."""
    if kind == "paddle":
        _save(model, description, folder / _STEM)
        return find_program(folder)
    with tempfile.TemporaryDirectory() as elsewhere:
        _save(model, description, Path(elsewhere) / _STEM)
        with hushed():
            converted = convert(find_program(Path(elsewhere)), description.Global.model_name)
    (folder / ONNX).write_bytes(converted)
    return folder / ONNX
