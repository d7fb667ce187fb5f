"""Export: a model with its weights, pre- and postprocessing, as a folder for Paddle Inference."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import paddle
from paddle import nn

from ppcls.arch.reparameterize import reparameterize
from ppcls.deploy.description import DESCRIPTION, INPUT
from ppcls.deploy.source import Source
from ppcls.engine.state import build_network
from ppcls.engine.weights import fill_model, read_weights
from ppcls.errors import UserError
from ppcls.files import new_folder, write_text

_STEM = "inference"
_SCORING = {"softmax": nn.Softmax, "sigmoid": nn.Sigmoid}


def export(source: Source, folder: Path) -> dict[str, int]:
    """Writes a trained model for inference, in float32, with a softmax or sigmoid at its end.

    Branches that have one convolution's effect, as RepVGG's, are written as one.

    Args:
        source: The model.
        folder: Appears whole, with ``inference.pdiparams``, the program (``inference.json``, or
            ``inference.pdmodel`` on Paddle 2.6) and ``inference.yml``.

    Returns:
        Name to bytes of each file.

    Raises:
        UserError: The folder is there with something in it, or can't be made; or the weights can't be
            read or are another model's.
    """
    _refuse_taken(folder)
    if source.config is None:
        raise UserError(f"{source.file}: exported already; expected a checkpoint folder or a config")
    model = build_network(source.config)
    fill_model(model, read_weights(source.file), source.file)
    reparameterize(model)
    try:
        if folder.is_dir():
            folder.rmdir()  # it is empty
        with new_folder(folder) as temporary:
            scoring = _SCORING[source.description.Output.activation]()
            shape = source.description.Input.shape
            _save(nn.Sequential(model, scoring), shape, temporary / _STEM)
            write_text(temporary / DESCRIPTION, source.description.as_yaml())
    except OSError as error:
        raise UserError(
            f"{folder}: can't write the inference model: {error.strerror or error}; "
            "set Global.save_inference_dir"
        ) from None
    return {each.name: each.stat().st_size for each in sorted(folder.iterdir())}


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


def _save(model: nn.Layer, shape: Sequence[int], stem: Path) -> None:
    model.eval()
    spec = paddle.static.InputSpec([None, *shape[1:]], "float32", name=INPUT)
    with _hushed():
        static = paddle.jit.to_static(model, input_spec=[spec], full_graph=True)
        paddle.jit.save(static, str(stem))


@contextmanager
def _hushed() -> Iterator[None]:
    """Keeps from the screen what Paddle's C++ says of its own working; a failure brings it back."""
    sys.stderr.flush()
    screen = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        done = False
        try:
            yield
            done = True
        finally:
            os.dup2(screen, 2)
            os.close(screen)
            if not done:
                said.seek(0)
                os.write(2, said.read())
