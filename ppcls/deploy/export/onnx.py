"""Converts a saved program to ONNX with paddle2onnx."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import paddle
from packaging.specifiers import SpecifierSet

from ppcls.errors import UserError

_OPSET = 17  # the first with LayerNormalization, which opset 16 divides into nine operators
# Programs of Paddle 3 and of Paddle 2.6 need different versions of paddle2onnx.
_CONVERTERS = {True: ">=2.1,<2.2", False: ">=1.3,<2"}  # Paddle 3, Paddle 2.6


def need_converter() -> None:
    """Checks that paddle2onnx for this version of Paddle, and onnxruntime, are installed.

    Raises:
        UserError: A package is missing. The message contains the command that installs it.
    """
    required = {
        "paddle2onnx": _CONVERTERS[int(paddle.__version__.split(".")[0]) >= 3],
        "onnxruntime": ">=1.20,<2",
    }
    missing = [name for name, bounds in required.items() if not _is_installed(name, bounds)]
    if missing:
        versions = ", ".join(f"{name} is {_installed_version(name) or 'not installed'}" for name in missing)
        packages = " ".join(f"'{name}{required[name]}'" for name in missing)
        raise UserError(
            f"export to ONNX with Paddle {paddle.__version__}: {versions}; pip install {packages}"
        )


def _installed_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _is_installed(name: str, bounds: str) -> bool:
    names = [name, f"{name}-gpu"] if name == "onnxruntime" else [name]
    versions = map(_installed_version, names)
    return any(version is not None and version in SpecifierSet(bounds) for version in versions)


def convert(program: Path, name: str) -> bytes:
    """Returns the ONNX model of a saved program.

    Args:
        program: File of the program. The weights are in the same folder.
        name: Name of the architecture, for messages.

    Raises:
        UserError: paddle2onnx cannot convert the program.
    """
    import paddle2onnx

    reason = ""
    model = b""
    weights = program.with_suffix(".pdiparams")
    file = str(weights) if weights.exists() else ""  # Paddle writes no weights for a program without any
    try:
        # No output file is passed: with one, 2.x would install further packages and modify the model.
        model = paddle2onnx.export(str(program), file, opset_version=_OPSET, verbose=False)
    except SystemExit:  # raised by 2.x after a failure; 1.x returns nothing
        pass
    except (OSError, RuntimeError, ValueError) as error:
        reason = f": {error}"
    if not model:
        raise UserError(
            f"paddle2onnx {version('paddle2onnx')} cannot convert {name}; see its output above{reason}"
        )
    return model
