"""Interprets pickles that contain only arrays, numbers, text, and containers of them.

`pickle.load` is not safe, because a pickle is a program. `pickletools` splits the file into its instructions.
This module interprets the instructions that describe such values. CPython's Lib/pickletools.py documents the
instructions. Constructors of NumPy and Python are recognized by name and never called. A file with any other
instruction is rejected.

A few bytes of instructions can describe gigabytes of values. So each instruction is charged to a `ReadBudget`
before it copies values or creates bytes.
"""

from __future__ import annotations

import pickletools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

_MAX_DEPTH = 32  # maximum nesting of containers
_MAX_OPERATIONS = 2_000_000
MAX_DIMENSIONS = 32  # limit of NumPy 1; NumPy 2 has 64
MAX_INTEGER = 1 << 63
_MAX_TYPE_NAME = 16  # maximum number of characters in the name of a dtype
_NUMBERS = frozenset(["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"])
_TYPE_NAME = re.compile(r"([<>|=]?)(.+)")

# Some functions have two entries, because NumPy 2 moved its functions, and Python 2 used another name for
# builtins.
_CONSTRUCTORS = {
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): "dtype",
    ("numpy.core.multiarray", "_reconstruct"): "array",
    ("numpy._core.multiarray", "_reconstruct"): "array",
    ("numpy.core.multiarray", "scalar"): "scalar",
    ("numpy._core.multiarray", "scalar"): "scalar",
    ("collections", "OrderedDict"): "dict",
    ("builtins", "tuple"): "tuple",
    ("__builtin__", "tuple"): "tuple",
    ("builtins", "bytes"): "bytes",
    ("__builtin__", "bytes"): "bytes",
    ("_codecs", "encode"): "encode",
}


class RejectedFileError(Exception):
    """The file contains something that is not allowed, or is too expensive to read. The message names it."""


class ReadBudget:
    """Limits the number of instructions and the memory that reading a file may use.

    Args:
        size: Size of the file in bytes. Decoded text and arrays may use at most twice this size.
    """

    def __init__(self, size: int) -> None:
        self._operations = _MAX_OPERATIONS
        self._bytes = 2 * size
        self._max_bytes = 2 * size

    def charge(self, operations: int, size: int = 0) -> None:
        """Reduces the budget.

        Args:
            operations: Number of instructions or copied values.
            size: Number of bytes that are created.

        Raises:
            RejectedFileError: The budget is exhausted.
        """
        self._operations -= operations
        self._bytes -= size
        if self._operations < 0:
            raise RejectedFileError(
                f"more than {_MAX_OPERATIONS} instructions and values; a repeated value counts each time"
            )
        if self._bytes < 0:
            raise RejectedFileError(f"more than {self._max_bytes} bytes of text and arrays")


@dataclass(frozen=True)
class PickledConstructor:
    """A constructor that the file refers to.

    Attributes:
        kind: One of the values of `_CONSTRUCTORS`.
    """

    kind: str


@dataclass
class _Type:
    """A dtype under construction.

    Attributes:
        code: NumPy's code of the dtype without byte order, such as ``f4``.
        order: Byte order.
    """

    code: str
    order: str = "="

    def numpy(self) -> np.dtype[Any] | None:
        """Returns NumPy's dtype if it is numeric, else None.

        Raises:
            RejectedFileError: The dtype is that of Python objects. NumPy would use the bytes as addresses.
        """
        if self.code in _NUMBERS:
            return np.dtype(self.order + self.code)
        if self.code.startswith("O"):
            raise RejectedFileError("an array of Python objects")
        return None


@dataclass
class _Array:
    """An array under construction. Its value remains None if the array is not numeric."""

    value: NDArray[Any] | None = None


class PickleInterpreter:
    """Interprets the instructions of a pickle.

    Args:
        budget: Limits of the work and memory for this pickle.
    """

    constructors: ClassVar[Mapping[tuple[str, str], str]] = _CONSTRUCTORS

    def __init__(self, budget: ReadBudget) -> None:
        self._budget = budget
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self, data: Any) -> Any:
        """Returns the object that the pickle describes.

        Args:
            data: Bytes of the pickle, or an open binary file.
        """
        for code, argument, _ in pickletools.genops(data):
            self._budget.charge(1)
            if code.name == "STOP":
                return self._finish(self.pop(), _MAX_DEPTH)
            if code.name == "BINPERSID":
                self.push(self.persistent_value(self.pop()))
            elif code.name in _INSTRUCTIONS:
                _INSTRUCTIONS[code.name](self, argument)
            else:
                raise RejectedFileError(f"the pickle instruction {code.name}")
        raise ValueError("expected the pickle instruction STOP at the end, found none")

    def _finish(self, value: Any, depth: int) -> Any:
        """Returns a value with complete arrays. Copies shared containers, so no container contains itself."""
        self._budget.charge(1)
        if isinstance(value, _Array):
            return value.value
        if isinstance(value, PickledConstructor | _Type):
            return None
        if not isinstance(value, dict | list | tuple):
            return value
        if not depth:
            raise RejectedFileError(f"containers that are nested more than {_MAX_DEPTH} levels deep")
        if isinstance(value, dict):
            return {key: self._finish(entry, depth - 1) for key, entry in value.items()}
        return type(value)(self._finish(entry, depth - 1) for entry in value)

    def pop(self) -> Any:
        """Removes and returns the top of the stack, which must be above the last mark."""
        if len(self._stack) <= (self._marks[-1] if self._marks else 0):
            raise ValueError("expected an operand for each pickle instruction, found none")
        return self._stack.pop()

    def top(self) -> Any:
        """Returns the top of the stack."""
        value = self.pop()
        self._stack.append(value)
        return value

    def skip(self, _: Any) -> None:
        """Does nothing."""

    def push(self, value: Any) -> None:
        """Puts a value on the stack."""
        self._stack.append(value)

    def mark(self, _: None) -> None:
        """Adds a mark at the top of the stack."""
        self._marks.append(len(self._stack))

    def pop_to_mark(self) -> list[Any]:
        """Removes the last mark and all values above it, and returns the values."""
        start = self._marks.pop()
        values = self._stack[start:]
        self._budget.charge(len(values))
        del self._stack[start:]
        return values

    def memoize(self, key: int | None) -> None:
        """Stores the top of the stack in the memo, under ``key`` or the next free number."""
        self._memo[len(self._memo) if key is None else key] = self.top()

    def recall(self, key: int) -> None:
        """Puts the value that the memo has under ``key`` on the stack."""
        self.push(self._memo[key])

    def append(self, values: list[Any]) -> None:
        """Appends values to the list at the top of the stack."""
        expect_type(list, self.top()).extend(values)

    def set_items(self, values: list[Any]) -> None:
        """Adds alternating keys and values to the dict at the top of the stack."""
        expect_type(dict, self.top()).update(_make_dict(values[::2], values[1::2]))

    def push_dict(self, _: None) -> None:
        """Replaces the alternating keys and values above the last mark by a dict."""
        values = self.pop_to_mark()
        self.push(_make_dict(values[::2], values[1::2]))

    def find_constructor(self, argument: str | None) -> None:
        """Puts a constructor on the stack.

        Args:
            argument: Module and attribute of the constructor, separated by a space; None if both are on the
                stack.
        """
        if argument is None:
            name = expect_type(str, self.pop())
            module = expect_type(str, self.pop())
        else:
            module, name = argument.split(" ", 1)
        if (module, name) not in self.constructors:
            raise RejectedFileError(f"a reference to {module[:100]}.{name[:100]}")
        self.push(PickledConstructor(self.constructors[module, name]))

    def reduce(self, _: None) -> None:
        """Replaces a constructor and its arguments on the stack by the result of the call."""
        arguments = expect_type(tuple, self.pop())
        self.push(self.construct(expect_type(PickledConstructor, self.pop()).kind, arguments))

    def persistent_value(self, _: Any) -> Any:
        """Returns the value for a persistent id.

        This base class rejects all ids, because Paddle's files have none.

        Raises:
            RejectedFileError: The id is not allowed.
        """
        raise RejectedFileError("the pickle instruction BINPERSID")

    def build(self, _: None) -> None:
        """Sets the state of an array or dtype. On the stack, the state is above this object."""
        state = self.pop()
        target = self.top()
        if isinstance(target, dict):
            return  # ignores attributes of a dict, such as PyTorch's versions of layers
        state = expect_type(tuple, state)
        if isinstance(target, _Array):
            _, shape, dtype, fortran, raw = state
            numeric = expect_type(_Type, dtype).numpy()
            target.value = self._make_array(numeric, expect_type(tuple, shape), bool(fortran), raw)
        else:
            order = expect_type(str, state[1])
            if order not in ("<", ">", "|", "="):
                raise ValueError(f"expected the byte order '<', '>', '|' or '=', found {order[:20]!r}")
            expect_type(_Type, target).order = order

    def construct(self, kind: str, arguments: tuple[Any, ...]) -> Any:
        """Returns the result of a constructor for arguments that occur in pickled arrays.

        Args:
            kind: One of the values of `_CONSTRUCTORS`.
            arguments: Arguments of the call.

        Raises:
            RejectedFileError: The arguments are unexpected.
        """
        if kind == "array":
            return _Array()
        if kind == "dtype":
            name = expect_type(str, arguments[0])
            match = _TYPE_NAME.fullmatch(name) if len(name) <= _MAX_TYPE_NAME else None
            if not match:
                raise ValueError(f"expected the name of a dtype, such as f4, found {name[:20]!r}")
            return _Type(match[2], match[1] or "=")
        if kind == "scalar":
            dtype, raw = arguments
            number = self._make_array(expect_type(_Type, dtype).numpy(), (), False, raw)
            return None if number is None else number[()]
        if kind == "dict":
            pairs = expect_type(list, arguments[0]) if arguments else []
            self._budget.charge(len(pairs))
            return _make_dict([pair[0] for pair in pairs], [pair[1] for pair in pairs])
        if kind == "tuple":
            (values,) = arguments
            if not isinstance(values, list):
                return expect_type(tuple, values)
            self._budget.charge(len(values))
            return tuple(values)
        if kind == "encode" and arguments[1] in ("latin1", "latin-1"):
            return self._encode(expect_type(str, arguments[0]))
        if kind == "bytes" and not arguments:
            return b""
        raise RejectedFileError(f"a call of {kind} with unexpected arguments")

    def _encode(self, text: str) -> bytes:
        self._budget.charge(1, len(text))
        return text.encode("latin-1")

    def _make_array(
        self, dtype: np.dtype[Any] | None, shape: tuple[Any, ...], fortran: bool, raw: Any
    ) -> NDArray[Any] | None:
        """Returns an array of the bytes in ``raw``, whose length must match the shape."""
        if dtype is None:
            return None
        if isinstance(raw, str):  # written by Python 2
            raw = self._encode(raw)
        if len(shape) > MAX_DIMENSIONS:
            raise ValueError(f"expected at most {MAX_DIMENSIONS} dimensions of an array, found {len(shape)}")
        size = dtype.itemsize
        for side in shape:
            if type(side) is not int or not 0 <= side < MAX_INTEGER:
                raise ValueError(
                    f"expected integers from 0 to 2**63 - 1 as an array's shape, found {describe_value(side)}"
                )
            size *= side
        if len(expect_type(bytes, raw)) != size:
            raise ValueError(f"expected {size} bytes for an array of its shape, found {len(raw)}")
        self._budget.charge(1, size)
        flat = np.frombuffer(raw, dtype) if raw else np.empty(0, dtype)
        return flat.reshape(shape, order="F" if fortran else "C")


def _push_constant(value: Any) -> Callable[[PickleInterpreter, Any], None]:
    return lambda interpreter, _: interpreter.push(value() if callable(value) else value)


def _push_tuple(count: int) -> Callable[[PickleInterpreter, Any], None]:
    return lambda interpreter, _: interpreter.push(tuple([interpreter.pop() for _ in range(count)][::-1]))


_VALUES = (
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
)

_INSTRUCTIONS: dict[str, Callable[[PickleInterpreter, Any], None]] = {
    **dict.fromkeys(("PROTO", "FRAME"), PickleInterpreter.skip),
    **dict.fromkeys(_VALUES, PickleInterpreter.push),
    "NONE": _push_constant(None),
    "NEWTRUE": _push_constant(True),
    "NEWFALSE": _push_constant(False),
    "EMPTY_LIST": _push_constant(list),
    "EMPTY_DICT": _push_constant(dict),
    "EMPTY_TUPLE": _push_constant(tuple),
    "TUPLE1": _push_tuple(1),
    "TUPLE2": _push_tuple(2),
    "TUPLE3": _push_tuple(3),
    "MARK": PickleInterpreter.mark,
    "TUPLE": lambda interpreter, _: interpreter.push(tuple(interpreter.pop_to_mark())),
    "LIST": lambda interpreter, _: interpreter.push(interpreter.pop_to_mark()),
    "DICT": PickleInterpreter.push_dict,
    "APPEND": lambda interpreter, _: interpreter.append([interpreter.pop()]),
    "APPENDS": lambda interpreter, _: interpreter.append(interpreter.pop_to_mark()),
    "SETITEM": lambda interpreter, _: interpreter.set_items([interpreter.pop(), interpreter.pop()][::-1]),
    "SETITEMS": lambda interpreter, _: interpreter.set_items(interpreter.pop_to_mark()),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), PickleInterpreter.memoize),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), PickleInterpreter.recall),
    **dict.fromkeys(("GLOBAL", "STACK_GLOBAL"), PickleInterpreter.find_constructor),
    **dict.fromkeys(("REDUCE", "NEWOBJ"), PickleInterpreter.reduce),
    "BUILD": PickleInterpreter.build,
}


def expect_type(kind: type, value: Any) -> Any:
    """Returns ``value``. Raises `ValueError` if its type is not ``kind``."""
    if not isinstance(value, kind):
        raise ValueError(f"expected {_type_name(kind)}, found {_type_name(type(value))}")
    return value


def describe_value(value: Any) -> str:
    """Returns a small integer in digits, or the kind of another value. Never formats a value of any size."""
    if type(value) is not int:
        return _type_name(type(value))
    return str(value) if abs(value) < MAX_INTEGER else f"an integer of {value.bit_length()} bits"


def _type_name(kind: type) -> str:
    return kind.__name__.strip("_").lower()


def _make_dict(keys: list[Any], values: list[Any]) -> dict[Any, Any]:
    """Returns a dict. Rejects keys that are not strings or small integers, such as nested tuples."""
    for key in keys:
        if not (isinstance(key, str) or (type(key) is int and abs(key) < MAX_INTEGER)):
            raise RejectedFileError(
                f"a dict with a key that is neither text nor a small integer: {describe_value(key)}"
            )
    return dict(zip(keys, values, strict=True))
