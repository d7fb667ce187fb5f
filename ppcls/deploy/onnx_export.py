"""A model as ONNX, by paddle2onnx, and the proof that onnxruntime computes the same from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from packaging.specifiers import SpecifierSet

from ppcls.deploy.description import Description
from ppcls.errors import UserError

Array = NDArray[Any]

TOLERANCE = 1e-4
_OPSET = 17
_BATCHES = (1, 2, 5)
_LEAST = 1e-30  # scores below it count as it
# Each goes with one form of Paddle's programs.
_CONVERTERS = {True: ">=2.1,<2.2", False: ">=1.3,<2"}  # Paddle 3, and 2.6


def need_converter() -> None:
    """Makes sure that what turns this Paddle's programs into ONNX, and tries the result, is installed.

    Raises:
        UserError: It is not; the text says what to install.
    """
    wanted = {
        "paddle2onnx": _CONVERTERS[int(paddle.__version__.split(".")[0]) >= 3],
        "onnxruntime": ">=1.20,<2",
    }
    missing = [name for name, bounds in wanted.items() if not _fits(name, bounds)]
    if missing:
        found = ", ".join(f"{name} is {_installed(name) or 'not installed'}" for name in missing)
        cure = " ".join(f"'{name}{wanted[name]}'" for name in missing)
        raise UserError(f"ONNX with Paddle {paddle.__version__}: {found}; pip install {cure}")


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _fits(name: str, bounds: str) -> bool:
    names = [name, f"{name}-gpu"] if name == "onnxruntime" else [name]
    return any((found := _installed(each)) is not None and found in SpecifierSet(bounds) for each in names)


def convert(program: Path, name: str) -> bytes:
    """Turns a saved program into an ONNX model.

    Args:
        program: Its file; the weights lie beside it.
        name: Of the architecture, for messages.

    Raises:
        UserError: paddle2onnx can't.
    """
    import paddle2onnx

    reason, model = "", b""
    try:
        # To memory: what 2.x would do to a file first, it does by packages that it installs on its own.
        model = paddle2onnx.export(
            str(program), str(program.with_suffix(".pdiparams")), opset_version=_OPSET, verbose=False
        )
    except SystemExit:  # so 2.x reports; 1.x returns nothing
        pass
    except (OSError, RuntimeError, ValueError) as error:
        reason = f": {error}"
    if not model:
        raise UserError(
            f"paddle2onnx {version('paddle2onnx')} can't convert {name}; what it said is above{reason}"
        )
    return model


def check(file: Path, description: Description, expected: Callable[[Array], Array]) -> float:
    """Compares what onnxruntime computes with what Paddle computes, on random images.

    Args:
        file: The ONNX model.
        description: Of it.
        expected: Maps images to Paddle's scores [B, class_num].

    Returns:
        The largest difference of two logarithms of scores, relative to the largest of them, or to 1.

    Raises:
        UserError: It is more than `TOLERANCE`.
    """
    from ppcls.deploy.onnx_model import OnnxModel

    model = OnnxModel(file, description, "cpu", 1)
    worst = 0.0
    for images in _random_images(description):
        own, paddles = model.scores(images), expected(images)
        if own.shape != paddles.shape:
            raise UserError(f"ONNX gives {list(own.shape)} for {len(images)} images; nothing was written")
        difference = _difference(own, paddles)
        if not difference <= TOLERANCE:
            raise UserError(
                f"onnxruntime's scores of {description.Global.model_name} differ by {difference:.1e} from "
                f"Paddle's, more than {TOLERANCE:.0e}, with {len(images)} images; nothing was written"
            )
        worst = max(worst, difference)
    return worst


def _random_images(description: Description) -> Iterator[Array]:
    random = np.random.default_rng(0)
    for count in _BATCHES:
        yield random.standard_normal((count, *description.Input.shape[1:]), np.float32)


def _difference(own: Array, other: Array) -> float:
    logs = [np.log(np.maximum(each.astype(np.float64), _LEAST)) for each in (own, other)]
    return float(np.abs(logs[0] - logs[1]).max() / max(1.0, np.abs(logs[1]).max()))
