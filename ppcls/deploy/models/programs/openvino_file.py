"""Checks that an ``.xml`` file contains a network without control flow. Does not import OpenVINO.

A loop can run forever, and no thread can be stopped while it runs.
"""

from __future__ import annotations

import os
from pathlib import Path
from xml.parsers import expat

from ppcls.deploy.models.programs.parts import MAX_PROGRAM_BYTES
from ppcls.errors import UserError
from ppcls.files import open_regular

_LOOPS = frozenset({"if", "loop", "tensoriterator"})  # OpenVINO ignores the case
_BODIES = frozenset({"body", "then_body", "else_body"})  # elements with the layers of such a layer
_ENCODINGS = ("utf-8", "us-ascii")
_SHOWN = 64  # characters of a name


def check_openvino(file: Path) -> None:
    """Checks that a model is a network.

    Raises:
        UserError: The file cannot be read or is damaged, or a layer contains other layers.
    """
    try:
        with open_regular(file) as stream:
            if (size := os.fstat(stream.fileno()).st_size) > MAX_PROGRAM_BYTES:
                raise ValueError(f"expected at most {MAX_PROGRAM_BYTES:,} bytes, found {size:,}")
            _check(stream.read())
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from None
    except (ValueError, expat.ExpatError) as error:
        raise UserError(
            f"{file}: not an exported network: {error}; export the model again, or, if you trust its source, "
            "load it with --trust"
        ) from None


def _check(data: bytes) -> None:
    def check_element(name: str, attributes: dict[str, str]) -> None:
        kind = attributes.get("type", "") if name == "layer" else ""
        if name in _BODIES or kind.lower() in _LOOPS:
            shown = kind or name
            raise ValueError(f"the layer {shown[:_SHOWN]!r} contains layers; control flow is not supported")

    def reject_entities(*_: object) -> None:
        raise ValueError("a document type is not supported, because it can define texts of any length")

    def reject_encodings(_: str, encoding: str | None, __: int) -> None:
        if encoding is not None and encoding.lower() not in _ENCODINGS:
            raise ValueError(f"expected the encoding UTF-8, found {encoding[:_SHOWN]!r}")

    # OpenVINO has a parser of its own. Both read the same from UTF-8, but not from all other encodings.
    text = data.decode("utf-8")
    parser = expat.ParserCreate()
    parser.XmlDeclHandler = reject_encodings
    parser.StartElementHandler = check_element
    parser.StartDoctypeDeclHandler = reject_entities
    parser.Parse(text, True)
