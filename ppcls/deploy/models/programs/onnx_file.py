"""Checks that an ``.onnx`` file does not refer to other files. Reads only its structure, not its weights.

New versions of ONNX Runtime check such paths. OpenVINO, and older versions of ONNX Runtime, read any file.
Field numbers are those of onnx.proto: github.com/onnx/onnx/blob/main/onnx/onnx.proto.
"""

from __future__ import annotations

import mmap
from pathlib import Path

from ppcls.data.records.messages import Bytes, ProtobufError, fields
from ppcls.errors import UserError
from ppcls.files import open_regular

# Messages in fields of each message
_CHILDREN = {
    "Model": {7: "Graph", 25: "Function"},
    "Function": {7: "Node", 11: "Attribute"},
    "Graph": {1: "Node", 5: "Tensor", 15: "SparseTensor"},
    "Node": {5: "Attribute"},
    "Attribute": {5: "Tensor", 6: "Graph", 10: "Tensor", 11: "Graph", 22: "SparseTensor", 23: "SparseTensor"},
    "SparseTensor": {1: "Tensor", 2: "Tensor"},
    "Tensor": {},
}
_OP_TYPE = 4  # of a node
_ENGINE_CONTEXT = b"EPContext"  # node with the compiled engine of a device, or with its path
_EXTERNAL = (13, 14)  # fields of a tensor: path, offset and length in another file; where the values are
_MAX_DEPTH = 16  # of graphs in attributes of nodes
_MAX_FIELDS = 1_000_000


def check_onnx(file: Path) -> None:
    """Checks that a model is complete in one file. An empty file is not an error here.

    Raises:
        UserError: The file cannot be read, is damaged, or refers to other files.
    """
    try:
        if not file.stat().st_size:
            return
        with open_regular(file) as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            _check("Model", data, 0, len(data), 0)
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from None
    except (ValueError, ProtobufError) as error:
        raise UserError(
            f"{file}: not an exported network: {error}; export the model again, or, if you trust its source, "
            "load it with --trust"
        ) from None


def _check(kind: str, data: Bytes, begin: int, end: int, depth: int) -> None:
    if depth > _MAX_DEPTH * 3:  # a graph in a node is three messages deeper
        raise ValueError(f"graphs are nested more than {_MAX_DEPTH} levels deep")
    children = _CHILDREN[kind]
    for number, start, stop in fields(data, begin, end, _MAX_FIELDS):
        if number in children:
            _check(children[number], data, start, stop, depth + 1)
        elif kind == "Node" and number == _OP_TYPE and bytes(data[start:stop]) == _ENGINE_CONTEXT:
            raise ValueError("the operator EPContext contains code for a device")
        elif kind == "Tensor" and number in _EXTERNAL and any(data[start:stop]):
            raise ValueError("weights in other files are not supported; store them in the .onnx file")
