"""Checks that an ``.onnx`` file contains one network, and does not refer to other files.

Reads only the structure of the file, not its weights. Field numbers are those of onnx.proto:
github.com/onnx/onnx/blob/main/onnx/onnx.proto.

Decisions:
- Paths are rejected here. New versions of ONNX Runtime check them. OpenVINO, and older versions of ONNX
  Runtime, read any file.
- Operators that contain graphs are rejected: If, Loop, Scan, SequenceMap and the generators of texts. A loop
  can run forever, and no thread can be stopped while it runs. Networks that classify images have none.
- ONNX Runtime replaces each call of a function by the nodes of the function. Functions that call functions
  can describe 2^64 nodes in a few hundred bytes, so the nodes are counted before.
"""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from ppcls.data.records.messages import ProtobufError, fields
from ppcls.errors import UserError
from ppcls.files import open_regular

# Messages in fields of each message
_CHILDREN = {
    "Model": {7: "Graph", 20: "Training", 25: "Function"},
    "Training": {1: "Graph", 2: "Graph"},
    "Function": {7: "Node", 11: "Attribute"},
    "Graph": {1: "Node", 5: "Tensor", 15: "SparseTensor"},
    "Node": {5: "Attribute"},
    "Attribute": {5: "Tensor", 10: "Tensor", 22: "SparseTensor", 23: "SparseTensor"},
    "SparseTensor": {1: "Tensor", 2: "Tensor"},
    "Tensor": {},
}
# Fields with the domain and the name of an operator, and of a function. Functions that differ only in the
# field `overload` count as one, because only new versions of ONNX Runtime read this field.
_NAME_FIELDS = {"Node": (7, 4), "Function": (10, 1)}
_GRAPHS = (6, 11)  # fields of an attribute
_ENGINE_CONTEXT = "EPContext"  # node with the compiled engine of a device, or with its path
_EXTERNAL = (13, 14)  # fields of a tensor: path, offset and length in another file; where the values are
_MAX_FIELDS = 1_000_000
_MAX_NODES = 50_000  # after functions are replaced by their nodes; ONNX Runtime loads 1,500 nodes per second
_SHOWN = 64  # characters of a name

_Name = tuple[str, str]  # domain and name


def check_onnx(file: Path) -> None:
    """Checks that a model is a network, and complete in one file. An empty file is not an error here.

    Raises:
        UserError: The file cannot be read, is damaged, refers to other files, or contains control flow.
    """
    try:
        if not file.stat().st_size:
            return
        with open_regular(file) as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            _Checker(data).check()
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from None
    except (ValueError, ProtobufError) as error:
        raise UserError(
            f"{file}: not an exported network: {error}; export the model again, or, if you trust its source, "
            "load it with --trust"
        ) from None


class _Checker:
    """Checks the messages of a file.

    Args:
        data: Bytes of the file.
    """

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._functions: dict[_Name, Counter[_Name]] = {}

    def check(self) -> None:
        """Checks all messages.

        Raises:
            ValueError: See `check_onnx`.
            ProtobufError: The file is damaged.
        """
        nodes: Counter[_Name] = Counter()
        self._check("Model", 0, len(self._data), nodes)
        _check_expansion(nodes, self._functions)

    def _check(self, kind: str, begin: int, end: int, nodes: Counter[_Name], owner: str = "") -> None:
        """Checks a message and its parts.

        Args:
            kind: Kind of the message.
            begin: Position of its first byte.
            end: Position after its last byte.
            nodes: Number of the nodes of each operator, to which those of the message are added.
            owner: Name of the operator or function that contains the message.
        """
        if kind in _NAME_FIELDS:
            name = self._read_name(kind, begin, end)
            owner = name[1][:_SHOWN]
            if kind == "Node":
                if owner == _ENGINE_CONTEXT:
                    raise ValueError(f"the operator {_ENGINE_CONTEXT} contains code for a device")
                nodes[name] += 1
            else:
                nodes = self._functions.setdefault(name, Counter())
        children = _CHILDREN[kind]
        for number, start, stop in fields(self._data, begin, end, _MAX_FIELDS):
            if number in children:
                self._check(children[number], start, stop, nodes, owner)
            elif kind == "Attribute" and number in _GRAPHS:
                raise ValueError(f"the operator {owner!r} contains a graph; control flow is not supported")
            elif kind == "Tensor" and number in _EXTERNAL and any(self._data[start:stop]):
                raise ValueError("weights in other files are not supported; store them in the .onnx file")

    def _read_name(self, kind: str, begin: int, end: int) -> _Name:
        parts = {
            number: self._data[start:stop].decode("utf-8", "backslashreplace")
            for number, start, stop in fields(self._data, begin, end, _MAX_FIELDS)
            if number in _NAME_FIELDS[kind]
        }
        domain, name = (parts.get(number, "") for number in _NAME_FIELDS[kind])
        return ("" if domain == "ai.onnx" else domain), name


def _check_expansion(nodes: Mapping[_Name, int], functions: Mapping[_Name, Mapping[_Name, int]]) -> None:
    """Checks the number of nodes that remain after all functions are replaced by their nodes.

    Args:
        nodes: Number of the nodes of each operator outside functions.
        functions: The same for the nodes of each function.

    Raises:
        ValueError: There are too many nodes, or a function calls itself.
    """
    sizes: dict[_Name, int] = {}  # of functions

    def count(parts: Mapping[_Name, int]) -> int:
        total = sum(number * sizes.get(name, 1) for name, number in parts.items())
        if total > _MAX_NODES:
            raise ValueError(f"expected at most {_MAX_NODES:,} nodes, found more in nested functions")
        return total

    calls = {name: [part for part in parts if part in functions] for name, parts in functions.items()}
    try:
        for name in TopologicalSorter(calls).static_order():
            sizes[name] = count(functions[name])
    except CycleError as error:
        raise ValueError(f"damaged: the function {error.args[1][0][1][:_SHOWN]!r} calls itself") from None
    count(nodes)
