"""A model as ONNX, by paddle2onnx."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import paddle
from packaging.specifiers import SpecifierSet

from ppcls.errors import UserError

_OPSET = 17
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
