"""Reads what Paddle pickled without running it: a pickle is a program, so `pickle.load` is not safe.

`pickletools` splits the file into its instructions. This module interprets those that describe arrays,
numbers, text and containers of them (CPython's Lib/pickletools.py documents the language). Constructors of
NumPy and Python are recognized by name and never called. Any other instruction makes the file invalid.

A few bytes of instructions can describe gigabytes of values. Every instruction is therefore charged to a
`Budget` for the values that it copies and the bytes that it creates, before it does so.
"""

from __future__ import annotations

import mmap
import pickletools
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ppcls.errors import UserError
from ppcls.files import open_regular

_MAX_DEPTH = 32  # nested containers
_MAX_OPERATIONS = 2_000_000
_MAX_DIMENSIONS = 32
_MAX_INTEGER = 1 << 63
_MAX_TYPE_NAME = 16  # characters
_NUMBERS = frozenset(["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"])
_TYPE_NAME = re.compile(r"([<>|=]?)(.+)")

# NumPy 2 moved its functions, and Python 2 named the builtins differently.
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

# Exceptions of reading a file that is not a pickle, or a damaged one.
DAMAGED_FILE_ERRORS = (
    OSError,
    ArithmeticError,
    LookupError,
    MemoryError,
    TypeError,
    ValueError,
    struct.error,
)


class RejectedFileError(Exception):
    """The file contains more than arrays."""


class ReadBudget:
    """Limits the work and memory that a file may cost.

    Args:
        size: Size of the file in bytes. Decoded text may have as many bytes, and so may
            all arrays together.
    """

    def __init__(self, size: int) -> None:
        self._operations, self._bytes = _MAX_OPERATIONS, 2 * size

    def charge(self, operations: int, size: int = 0) -> None:
        """Charges instructions or copied values, and newly created bytes.

        Raises:
            RejectedFileError: The budget is used up.
        """
        self._operations -= operations
        self._bytes -= size
        if self._operations < 0:
            raise RejectedFileError(
                f"it has more than {_MAX_OPERATIONS} instructions and values; repeated values count each time"
            )
        if self._bytes < 0:
            raise RejectedFileError("its arrays have more bytes than the file")


@dataclass(frozen=True)
class PickledConstructor:
    """A constructor that the file refers to; ``kind`` is one of the values of `_CONSTRUCTORS`."""

    kind: str


@dataclass
class _Type:
    """A dtype under construction: NumPy's code, and the byte order once it is known."""

    code: str
    order: str = "="

    def numpy(self) -> np.dtype[Any] | None:
        """Returns the dtype if it is numeric, else None.

        Raises:
            RejectedFileError: It is the dtype of Python objects, whose bytes would be used as addresses.
        """
        if self.code in _NUMBERS:
            return np.dtype(self.order + self.code)
        if self.code.startswith("O"):
            raise RejectedFileError("it has an array of Python objects")
        return None


@dataclass
class _Array:
    """An array under construction; its value stays None if it is not numeric."""

    value: NDArray[Any] | None = None


def unpickle(path: Path) -> Any:
    """Reads what Paddle pickled, without running any code of the file.

    Returns:
        Dicts, lists, tuples, text, bytes, numbers and None; NumPy arrays and scalars of numbers, read-only.
        An array of anything else becomes None.

    Raises:
        UserError: The file is missing or damaged, contains anything else, or is expensive to read.
    """
    with (
        reading_weights(path),
        open_regular(path) as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        return PickleInterpreter(ReadBudget(len(data))).run(data)


def unpickle_bytes(data: bytes, path: Path) -> Any:
    """Returns what `unpickle` returns for a file with these bytes.

    Args:
        path: File that they are from, for messages.

    Raises:
        UserError: As `unpickle`.
    """
    with reading_weights(path, "a data set"):
        return PickleInterpreter(ReadBudget(len(data))).run(data)


@contextmanager
def reading_weights(path: Path, kind: str = "a file of weights") -> Iterator[None]:
    """Turns errors of reading a file into `UserError`.

    Args:
        kind: What the file is, for messages.
    """
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except RejectedFileError as error:
        raise UserError(f"{path}: rejected: {kind} contains only arrays, but {error}") from None
    except LookupError:  # its text would be a bare number
        raise UserError(
            f"{path}: damaged, or not a {path.suffix} file: it uses a value that it does not define"
        ) from None
    except DAMAGED_FILE_ERRORS as error:
        raise UserError(f"{path}: damaged, or not a {path.suffix} file: {str(error)[:200]}") from None


class PickleInterpreter:
    """Interprets the instructions of a pickle.

    Args:
        budget: Charged for each instruction.
    """

    constructors: ClassVar[Mapping[tuple[str, str], str]] = _CONSTRUCTORS

    def __init__(self, budget: ReadBudget) -> None:
        self._budget = budget
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self, data: Any) -> Any:
        """Returns what the pickle describes."""
        for code, argument, _ in pickletools.genops(data):
            self._budget.charge(1)
            if code.name == "STOP":
                return self._finish(self.pop(), _MAX_DEPTH)
            if code.name == "BINPERSID":
                self.push(self.persistent_value(self.pop()))
            elif code.name in _INSTRUCTIONS:
                _INSTRUCTIONS[code.name](self, argument)
            else:
                raise RejectedFileError(f"it has the instruction {code.name}")
        raise ValueError("the end is missing")

    def _finish(self, value: Any, depth: int) -> Any:
        """Returns a value with its arrays. Shared containers are copied, so no container contains itself."""
        self._budget.charge(1)
        if isinstance(value, _Array):
            return value.value
        if isinstance(value, PickledConstructor | _Type):
            return None
        if not isinstance(value, dict | list | tuple):
            return value
        if not depth:
            raise RejectedFileError(f"its containers are nested deeper than {_MAX_DEPTH}")
        if isinstance(value, dict):
            return {key: self._finish(entry, depth - 1) for key, entry in value.items()}
        return type(value)(self._finish(entry, depth - 1) for entry in value)

    def pop(self) -> Any:
        """Removes and returns the top of the stack, which must be above the last mark."""
        if len(self._stack) <= (self._marks[-1] if self._marks else 0):
            raise ValueError("an instruction lacks its operand")
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
        """Marks the top of the stack."""
        self._marks.append(len(self._stack))

    def pop_to_mark(self) -> list[Any]:
        """Removes and returns everything above the last mark."""
        start = self._marks.pop()
        values = self._stack[start:]
        self._budget.charge(len(values))
        del self._stack[start:]
        return values

    def memoize(self, key: int | None) -> None:
        """Stores the top of the stack in the memo."""
        self._memo[len(self._memo) if key is None else key] = self.top()

    def recall(self, key: int) -> None:
        """Puts a value of the memo on the stack."""
        self.push(self._memo[key])

    def append(self, values: list[Any]) -> None:
        """Appends to the list on top."""
        expect_type(list, self.top()).extend(values)

    def set_items(self, values: list[Any]) -> None:
        """Adds alternating keys and values to the dict on top."""
        expect_type(dict, self.top()).update(_make_dict(values[::2], values[1::2]))

    def push_dict(self, _: None) -> None:
        """Makes a dict of the alternating keys and values above the last mark."""
        values = self.pop_to_mark()
        self.push(_make_dict(values[::2], values[1::2]))

    def find_constructor(self, argument: str | None) -> None:
        """Puts the constructor that is named by a module and an attribute on the stack."""
        if argument is None:
            name, module = expect_type(str, self.pop()), expect_type(str, self.pop())
        else:
            module, name = argument.split(" ", 1)
        if (module, name) not in self.constructors:
            raise RejectedFileError(f"it asks for {module[:100]}.{name[:100]}")
        self.push(PickledConstructor(self.constructors[module, name]))

    def reduce(self, _: None) -> None:
        """Replaces a constructor and its arguments by what the call would return."""
        arguments = expect_type(tuple, self.pop())
        self.push(self.construct(expect_type(PickledConstructor, self.pop()).kind, arguments))

    def persistent_value(self, _: Any) -> Any:
        """Returns the value for a persistent id. Paddle's files have none."""
        raise RejectedFileError("it has the instruction BINPERSID")

    def build(self, _: None) -> None:
        """Sets the state of an array or a dtype, in NumPy's format."""
        state, target = self.pop(), self.top()
        if isinstance(target, dict):
            return  # attributes of a dict, such as PyTorch's versions of layers
        state = expect_type(tuple, state)
        if isinstance(target, _Array):
            _, shape, dtype, fortran, raw = state
            numeric = expect_type(_Type, dtype).numpy()
            target.value = self._make_array(numeric, expect_type(tuple, shape), bool(fortran), raw)
        else:
            order = state[1]
            if order not in ("<", ">", "|", "="):
                raise ValueError("unknown byte order")
            expect_type(_Type, target).order = order

    def construct(self, kind: str, arguments: tuple[Any, ...]) -> Any:
        """Returns what a constructor returns for arguments as they occur in pickled arrays."""
        if kind == "array":
            return _Array()
        if kind == "dtype":
            name = expect_type(str, arguments[0])
            match = _TYPE_NAME.fullmatch(name) if len(name) <= _MAX_TYPE_NAME else None
            if not match:
                raise ValueError("a dtype has no valid name")
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
        raise RejectedFileError(f"it calls {kind} with unexpected arguments")

    def _encode(self, text: str) -> bytes:
        self._budget.charge(1, len(text))
        return text.encode("latin-1")

    def _make_array(
        self, dtype: np.dtype[Any] | None, shape: tuple[Any, ...], fortran: bool, raw: Any
    ) -> NDArray[Any] | None:
        """Returns the array in ``raw``, whose length must agree with the shape."""
        if dtype is None:
            return None
        if isinstance(raw, str):  # written by Python 2
            raw = self._encode(raw)
        if len(shape) > _MAX_DIMENSIONS:
            raise ValueError(f"an array has {len(shape)} dimensions")
        size = dtype.itemsize
        for side in shape:
            if type(side) is not int or not 0 <= side < _MAX_INTEGER:
                raise ValueError("an array's shape has a value that is not a whole number >= 0")
            size *= side
        if len(expect_type(bytes, raw)) != size:
            raise ValueError(f"an array has {len(raw)} bytes; its shape needs {size}")
        self._budget.charge(1, size)
        flat = np.frombuffer(raw, dtype) if raw else np.empty(0, dtype)
        return flat.reshape(shape, order="F" if fortran else "C")


def _push_constant(value: Any) -> Callable[[PickleInterpreter, Any], None]:
    return lambda interpreter, _: interpreter.push(value() if callable(value) else value)


def _push_tuple(count: int) -> Callable[[PickleInterpreter, Any], None]:
    return lambda interpreter, _: interpreter.push(tuple([interpreter.pop() for _ in range(count)][::-1]))


_INSTRUCTIONS: dict[str, Callable[[PickleInterpreter, Any], None]] = {
    **dict.fromkeys(("PROTO", "FRAME"), PickleInterpreter.skip),
    **dict.fromkeys(
        ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4"), PickleInterpreter.push
    ),
    **dict.fromkeys(
        ("FLOAT", "BINFLOAT", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE"), PickleInterpreter.push
    ),
    **dict.fromkeys(("BINUNICODE8", "STRING", "BINSTRING", "SHORT_BINSTRING"), PickleInterpreter.push),
    **dict.fromkeys(("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"), PickleInterpreter.push),
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
    "REDUCE": PickleInterpreter.reduce,
    "BUILD": PickleInterpreter.build,
}


def expect_type(kind: type, value: Any) -> Any:
    """Returns ``value``, which must be a ``kind``."""
    if not isinstance(value, kind):
        raise ValueError(f"expected {kind.__name__.strip('_').lower()}, got {type(value).__name__}")
    return value


def _make_dict(keys: list[Any], values: list[Any]) -> dict[Any, Any]:
    """Returns a dict; its keys can be hashed in constant time and printed in one line."""
    for key in keys:
        if not (isinstance(key, str) or (type(key) is int and abs(key) < _MAX_INTEGER)):
            raise RejectedFileError(f"it has a {type(key).__name__} as a key")
    return dict(zip(keys, values, strict=True))
