"""Reads what Paddle pickled without unpickling it: a pickle is a program, and here none runs.

`pickletools` splits the file into its instructions. Those that describe arrays, numbers, text, and containers
of them are followed on a stack of our own (CPython's Lib/pickletools.py describes the language); numpy's and
Python's constructors are recognised by their names, never called. Any other instruction refuses the file.
"""

from __future__ import annotations

import mmap
import pickletools
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.errors import UserError

_DEEPEST = 32  # containers within each other
_MOST_VALUES = 1_000_000
_MOST_KEY = 1 << 63
_CONTAINERS = (dict, list, tuple)
_NUMBERS = frozenset(["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"])
_TYPE = re.compile(r"([<>|=]?)(.+)")

# numpy 2 moved its functions, and Python 2 called the builtins otherwise: files have either spelling.
_ADMITTED = {
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

# What reading a file's instructions raises where they are none.
_DAMAGED = (OSError, ArithmeticError, LookupError, MemoryError, TypeError, ValueError, struct.error)


class _RefusedError(Exception):
    """The file asks for more than arrays."""


@dataclass(frozen=True)
class _Name:
    """What the file calls a constructor by; of `_ADMITTED`."""

    means: str


@dataclass
class _Type:
    """A dtype in the making: numpy's code for it, and its byte order once it is known."""

    code: str
    order: str = "="

    def numpy(self) -> np.dtype[Any] | None:
        """Returns the dtype of numbers; None for any other.

        Raises:
            _RefusedError: It is that of Python objects, whose bytes would be taken for addresses.
        """
        if self.code in _NUMBERS:
            return np.dtype(self.order + self.code)
        if self.code.startswith("O"):
            raise _RefusedError("it has an array of Python objects")
        return None


@dataclass
class _Array:
    """An array in the making; None for one that holds no numbers."""

    value: NDArray[Any] | None = None


def unpickle(path: Path) -> Any:
    """Reads what Paddle pickled, running none of the file's code.

    Returns:
        Dicts, lists, tuples, text, bytes, numbers, None; numpy arrays and scalars of numbers, read-only. An
        array of anything else is None.

    Raises:
        UserError: The file is missing, damaged, or asks for more than that.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Plain()(_Machine().run(data))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except _RefusedError as error:
        raise UserError(f"{path}: refused, since a file of weights holds arrays only, and {error}") from None
    except LookupError:  # its text would be a bare number
        raise UserError(
            f"{path}: damaged, or not a {path.suffix} file: it uses what it has not described"
        ) from None
    except _DAMAGED as error:
        raise UserError(f"{path}: damaged, or not a {path.suffix} file: {str(error)[:200]}") from None


class _Machine:
    """Follows the instructions of a pickle."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, data: Any) -> Any:
        """Returns what the pickle describes, arrays still in the making."""
        for code, argument, _ in pickletools.genops(data):
            if code.name == "STOP":
                return self.pop()
            if code.name not in _INSTRUCTIONS:
                raise _RefusedError(f"it has the instruction {code.name}")
            _INSTRUCTIONS[code.name](self, argument)
        raise ValueError("it does not end")

    def pop(self) -> Any:
        """Takes one off the stack, but nothing from below the last mark."""
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise ValueError("an instruction lacks its operand")
        return self.stack.pop()

    def top(self) -> Any:
        """Returns what `pop` would take."""
        value = self.pop()
        self.stack.append(value)
        return value

    def skip(self, _: Any) -> None:
        """Does nothing."""

    def push(self, value: Any) -> None:
        """Puts one on the stack."""
        self.stack.append(value)

    def mark(self, _: None) -> None:
        """Remembers where the stack is."""
        self.marks.append(len(self.stack))

    def above_mark(self) -> list[Any]:
        """Takes all above the last mark off the stack."""
        begin = self.marks.pop()
        values = self.stack[begin:]
        del self.stack[begin:]
        return values

    def put(self, key: int | None) -> None:
        """Remembers the top of the stack."""
        self.memo[len(self.memo) if key is None else key] = self.top()

    def get(self, key: int) -> None:
        """Puts on the stack what was remembered."""
        self.push(self.memo[key])

    def append(self, values: list[Any]) -> None:
        """Adds to the list on top."""
        _of(list, self.top()).extend(values)

    def set(self, values: list[Any]) -> None:
        """Adds keys and values, in turns, to the dict on top."""
        _of(dict, self.top()).update(_pairs(values[::2], values[1::2]))

    def make_dict(self, _: None) -> None:
        """Makes a dict of all above the last mark."""
        values = self.above_mark()
        self.push(_pairs(values[::2], values[1::2]))

    def name(self, argument: str | None) -> None:
        """Looks at a name of a module, and of something in it."""
        if argument is None:
            name, module = _of(str, self.pop()), _of(str, self.pop())
        else:
            module, name = argument.split(" ", 1)
        if (module, name) not in _ADMITTED:
            raise _RefusedError(f"it asks for {module}.{name}"[:200])
        self.push(_Name(_ADMITTED[module, name]))

    def reduce(self, _: None) -> None:
        """Makes what a call of an admitted constructor would make."""
        arguments = _of(tuple, self.pop())
        self.push(_made(_of(_Name, self.pop()).means, arguments))

    def build(self, _: None) -> None:
        """Gives an array or a dtype its state, as numpy writes it."""
        state = _of(tuple, self.pop())
        target = self.top()
        if isinstance(target, _Array):
            _, shape, dtype, fortran, raw = state
            target.value = _array(_of(_Type, dtype).numpy(), _of(tuple, shape), bool(fortran), raw)
        else:
            order = state[1]
            if order not in ("<", ">", "|", "="):
                raise ValueError("an unknown byte order")
            _of(_Type, target).order = order


def _constant(value: Any) -> Callable[[_Machine, Any], None]:
    return lambda machine, _: machine.push(value() if callable(value) else value)


def _tuple_of(count: int) -> Callable[[_Machine, Any], None]:
    return lambda machine, _: machine.push(tuple([machine.pop() for _ in range(count)][::-1]))


_INSTRUCTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    **dict.fromkeys(("PROTO", "FRAME"), _Machine.skip),
    **dict.fromkeys(("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4"), _Machine.push),
    **dict.fromkeys(("FLOAT", "BINFLOAT", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE"), _Machine.push),
    **dict.fromkeys(("BINUNICODE8", "STRING", "BINSTRING", "SHORT_BINSTRING"), _Machine.push),
    **dict.fromkeys(("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"), _Machine.push),
    "NONE": _constant(None),
    "NEWTRUE": _constant(True),
    "NEWFALSE": _constant(False),
    "EMPTY_LIST": _constant(list),
    "EMPTY_DICT": _constant(dict),
    "EMPTY_TUPLE": _constant(tuple),
    "TUPLE1": _tuple_of(1),
    "TUPLE2": _tuple_of(2),
    "TUPLE3": _tuple_of(3),
    "MARK": _Machine.mark,
    "TUPLE": lambda machine, _: machine.push(tuple(machine.above_mark())),
    "LIST": lambda machine, _: machine.push(machine.above_mark()),
    "DICT": _Machine.make_dict,
    "APPEND": lambda machine, _: machine.append([machine.pop()]),
    "APPENDS": lambda machine, _: machine.append(machine.above_mark()),
    "SETITEM": lambda machine, _: machine.set([machine.pop(), machine.pop()][::-1]),
    "SETITEMS": lambda machine, _: machine.set(machine.above_mark()),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), _Machine.put),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _Machine.get),
    **dict.fromkeys(("GLOBAL", "STACK_GLOBAL"), _Machine.name),
    "REDUCE": _Machine.reduce,
    "BUILD": _Machine.build,
}


def _of(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"expected a {kind.__name__.strip('_').lower()}, got {type(value).__name__}")
    return value


def _pairs(keys: list[Any], values: list[Any]) -> dict[Any, Any]:
    """Returns a dict, of keys that are found in constant time and print in a line."""
    for key in keys:
        if not (isinstance(key, str) or (type(key) is int and abs(key) < _MOST_KEY)):
            raise _RefusedError(f"it has a {type(key).__name__} as a key")
    return dict(zip(keys, values, strict=True))


def _made(means: str, arguments: tuple[Any, ...]) -> Any:
    """Returns what a constructor of `_ADMITTED` makes of arguments as pickles have them."""
    if means == "array":
        return _Array()
    if means == "dtype":
        match = _TYPE.fullmatch(_of(str, arguments[0]))
        if not match:
            raise ValueError("a dtype without a name")
        return _Type(match[2], match[1] or "=")
    if means == "scalar":
        dtype, raw = arguments
        number = _array(_of(_Type, dtype).numpy(), (), False, raw)
        return None if number is None else number[()]
    if means == "dict":
        pairs = _of(list, arguments[0]) if arguments else []
        return _pairs(*([each[place] for each in pairs] for place in (0, 1)))
    if means == "tuple":
        (values,) = arguments
        return tuple(values) if isinstance(values, list) else _of(tuple, values)
    if means == "encode" and arguments[1] in ("latin1", "latin-1"):
        return _of(str, arguments[0]).encode("latin-1")
    if means == "bytes" and not arguments:
        return b""
    raise _RefusedError(f"it calls {means} with other arguments than arrays need")


def _array(
    dtype: np.dtype[Any] | None, shape: tuple[Any, ...], fortran: bool, raw: Any
) -> NDArray[Any] | None:
    """Returns the array that lies in ``raw``, which must be as long as the shape says."""
    if dtype is None:
        return None
    if isinstance(raw, str):  # Python 2's
        raw = raw.encode("latin-1")
    size = dtype.itemsize
    for side in shape:
        if type(side) is not int or side < 0:
            raise ValueError("a shape of other than whole numbers")
        size *= side
    if len(_of(bytes, raw)) != size:
        raise ValueError(f"an array has {len(raw)} of {size} bytes")
    flat = np.frombuffer(raw, dtype) if raw else np.empty(0, dtype)
    return flat.reshape(shape, order="F" if fortran else "C")


class _Plain:
    """Makes the arrays of what was read; what stands in several places is copied, so none holds itself."""

    def __init__(self) -> None:
        self._values = 0

    def __call__(self, value: Any, depth: int = _DEEPEST) -> Any:
        """Returns the value with its arrays made, containers of at most ``depth`` levels."""
        self._values += 1
        if self._values > _MOST_VALUES:
            raise _RefusedError(f"it has more than {_MOST_VALUES} values, what is repeated counted each time")
        if isinstance(value, _Array):
            return value.value
        if isinstance(value, _Name | _Type):
            return None
        if not isinstance(value, _CONTAINERS):
            return value
        if not depth:
            raise _RefusedError(f"it has containers within each other, deeper than {_DEEPEST}")
        if isinstance(value, dict):
            return {key: self(each, depth - 1) for key, each in value.items()}
        return type(value)(self(each, depth - 1) for each in value)
