"""Export: a model with its weights, pre- and postprocessing, as a folder for other programs."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import paddle
from paddle import nn

from ppcls.arch.reparameterize import reparameterize
from ppcls.config.postprocess import Activation
from ppcls.config.schema import Config
from ppcls.deploy.description import DESCRIPTION, Description, describe
from ppcls.deploy.onnx_export import Array, check, convert, need_converter
from ppcls.deploy.source import ONNX, PROGRAMS, Source, need_infer
from ppcls.engine.distillation import read_inferred
from ppcls.engine.state import build_network
from ppcls.engine.weights import fill_model
from ppcls.errors import UserError
from ppcls.files import new_folder, write_text

Kind = Literal["paddle", "onnx"]
_STEM = "inference"
_SCORING = {"softmax": nn.Softmax, "sigmoid": nn.Sigmoid}


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        files: Name to bytes of each.
        description: Of the model.
        difference: Of ONNX's scores from Paddle's, see `ppcls.deploy.onnx_export.check`; None without ONNX.
    """

    files: dict[str, int]
    description: Description
    difference: float | None = None


def export(source: Source, folder: Path, kind: Kind = "paddle") -> Exported:
    """Writes a trained model for inference, in float32, with a softmax or sigmoid at its end.

    Branches that have one convolution's effect, as RepVGG's, are written as one. The layout is NCHW whatever
    the config says: onnxruntime computes in it, and Paddle Inference's operators for CPUs fail on models in
    NHWC that add, split or join channels.

    Args:
        source: The model.
        folder: Appears whole, with ``inference.yml`` and, for Paddle Inference, ``inference.pdiparams`` and
            the program (``inference.json``, or ``inference.pdmodel`` on Paddle 2.6); else ``inference.onnx``.
        kind: For what program. ONNX is checked with onnxruntime.

    Raises:
        UserError: The folder is there with something in it, or can't be made; or the weights can't be
            read or are another model's; or there is no ONNX of it.
    """
    _refuse_taken(folder)
    if source.config is None:
        raise UserError(f"{source.file}: exported already; expected a checkpoint folder or a config")
    if kind == "onnx":
        need_converter()
    config = source.config.model_copy(update={"Arch": source.config.Arch.in_layout("NCHW")})
    description = describe(config, need_infer(config), source.description.names)
    model = _build(config, source.file, description.Output.activation)
    try:
        if folder.is_dir():
            folder.rmdir()  # it is empty
        with new_folder(folder) as temporary:
            write_text(temporary / DESCRIPTION, description.as_yaml())
            difference = None
            if kind == "onnx":
                difference = _write_onnx(model, description, temporary / ONNX)
            else:
                _save(model, description, temporary / _STEM)
    except OSError as error:
        raise UserError(
            f"{folder}: can't write the inference model: {error.strerror or error}; "
            "set Global.save_inference_dir"
        ) from None
    files = {each.name: each.stat().st_size for each in sorted(folder.iterdir())}
    return Exported(files, description, difference)


def _build(config: Config, weights: Path, activation: Activation) -> nn.Layer:
    model = build_network(config)
    fill_model(model, read_inferred(config, weights), weights)
    reparameterize(model)
    whole = nn.Sequential(model, _SCORING[activation]())
    whole.eval()
    return whole


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
    with _hushed():
        static = paddle.jit.to_static(model, input_spec=[spec], full_graph=True)
        paddle.jit.save(static, str(stem))


def _write_onnx(model: nn.Layer, description: Description, file: Path) -> float:
    """Writes an ONNX model, and returns how far its scores are from Paddle's."""
    with tempfile.TemporaryDirectory() as folder:
        stem = Path(folder) / _STEM
        _save(model, description, stem)
        program = next(each for name in PROGRAMS if (each := stem.with_name(name)).is_file())
        with _hushed():
            file.write_bytes(convert(program, description.Global.model_name))

    @paddle.no_grad()  # type: ignore[untyped-decorator]
    def scores(images: Array) -> Array:
        result: Array = model(paddle.to_tensor(images)).numpy()
        return result

    return check(file, description, scores)


@contextmanager
def _hushed() -> Iterator[None]:
    """Keeps from the screen what C++ says of its own working; a failure brings it back, on standard error."""
    with tempfile.TemporaryFile() as said, ExitStack() as screens:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for number in (1, 2):
            screen = os.dup(number)
            screens.callback(os.close, screen)
            screens.callback(os.dup2, screen, number)
            os.dup2(said.fileno(), number)
        try:
            yield
        except BaseException:
            screens.close()
            said.seek(0)
            os.write(2, said.read())
            raise
