"""Export: a model with its weights, pre- and postprocessing, as a folder for Paddle Inference."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paddle
import yaml
from paddle import nn

from ppcls.arch.reparameterize import reparameterize
from ppcls.config.schema import Config
from ppcls.config.sections import Infer
from ppcls.data.transforms import NormalizeImage, plan_chain
from ppcls.engine.state import build_network
from ppcls.engine.weights import fill_model, read_weights
from ppcls.errors import UserError
from ppcls.files import new_folder, write_text

INPUT = "x"
_STEM = "inference"


def export(
    config: Config, settings: Infer, names: Sequence[str] | None, source: Path, folder: Path
) -> dict[str, int]:
    """Writes the inference model of a config, in float32, with a softmax at its end.

    Branches that have one convolution's effect, as RepVGG's, are written as one.

    Args:
        config: The whole config.
        settings: Its section ``Infer``.
        names: [class_num] of the classes; None where nothing tells them.
        source: The weights, as `ppcls.engine.weights.read_weights` takes them.
        folder: Appears whole, with ``inference.pdiparams``, the program (``inference.json``, or
            ``inference.pdmodel`` on Paddle 2.6) and ``inference.yml``.

    Returns:
        Name to bytes of each file.

    Raises:
        UserError: The folder is there with something in it, or can't be made; or the weights can't be
            read or are another model's.
    """
    _refuse_taken(folder)
    model = build_network(config)
    fill_model(model, read_weights(source), source)
    reparameterize(model)
    try:
        if folder.is_dir():
            folder.rmdir()  # it is empty
        with new_folder(folder) as temporary:
            _save(nn.Sequential(model, nn.Softmax()), input_shape(config), temporary / _STEM)
            tree = describe(config, settings, names)
            write_text(temporary / f"{_STEM}.yml", yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))
    except OSError as error:
        raise UserError(
            f"{folder}: can't write the inference model: {error.strerror or error}; "
            "set Global.save_inference_dir"
        ) from None
    return {each.name: each.stat().st_size for each in sorted(folder.iterdir())}


def input_shape(config: Config) -> list[int]:
    """Returns the exported model's input shape, [-1, C, H, W] or [-1, H, W, C]; -1 is any batch size."""
    channels, height, width = config.Global.image_shape
    if config.Arch.data_format == "NHWC":
        return [-1, height, width, channels]
    return [-1, channels, height, width]


def describe(config: Config, settings: Infer, names: Sequence[str] | None) -> dict[str, Any]:
    """Returns what ``inference.yml`` says: how to make the input, and how to read the output.

    ``PreProcess`` and ``PostProcess`` have PaddleClas's form. The chain ends in the layout of the
    input, so each transform sees HWC but the last, and NormalizeImage says so.
    """
    layout = config.Arch.data_format
    chain = [op.spec for op in plan_chain(settings.transforms, "CHW" if layout == "NCHW" else "HWC")]
    ops = [
        spec.model_copy(update={"order": ""}) if isinstance(spec, NormalizeImage) else spec for spec in chain
    ]
    labels = {"label_list": list(names)} if names is not None else {}
    return {
        "Global": {"model_name": config.Arch.name},
        "Input": {"name": INPUT, "shape": input_shape(config), "dtype": "float32", "layout": layout},
        "PreProcess": {"transform_ops": [{spec.kind: spec.model_dump(mode="json")} for spec in ops]},
        "Output": {"shape": [-1, config.Arch.class_num], "dtype": "float32", "activation": "softmax"},
        "PostProcess": {"Topk": {"topk": settings.PostProcess.topk, **labels}},
    }


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
