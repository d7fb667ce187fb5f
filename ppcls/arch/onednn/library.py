"""Loads oneDNN and executes its primitives on Paddle's tensors (https://uxlfoundation.github.io/oneDNN/).

The constants and functions are those of oneDNN's C interface, version 3.

Decisions:
- All threads share primitives, because models of the same architecture and image size need the same ones, and
  because it takes milliseconds to create one. A primitive keeps the addresses of its operands while it is
  executed, so a lock admits one thread at a time.
- The memory for intermediate results belongs to the call. That of the library belongs to the thread that
  created the primitive, and another thread would use none.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from functools import cache, lru_cache
from pathlib import Path

import paddle
from paddle import Tensor

from ppcls.arch.kernels.errors import KernelsUnavailableError

_MAJOR = 3  # version 2 has other functions
_CPU = 1  # dnnl_cpu
_IN_ORDER = 1  # dnnl_stream_in_order
_FLOAT32 = 3  # dnnl_f32
_ANY_TAG = 1  # dnnl_format_tag_any
_KEPT_PRIMITIVES = 1024  # of each kind; more than one forward pass needs, and less than 100 batch sizes
_USER_SCRATCHPAD = 1  # dnnl_scratchpad_mode_user
NHWC = "acdb"  # order of axes of NHWC images, see `tensor_format`
_LIBRARIES = ("libdnnl.so*", "libmkldnn.so*", "libdnnl*.dylib", "mkldnn.dll")

Handle = ctypes.c_void_p


class OneDnnUnavailableError(KernelsUnavailableError):
    """Raised when the library is missing, or a call of oneDNN fails."""


class Argument(IntEnum):
    """Operands of a primitive (``DNNL_ARG_*``)."""

    SOURCE = 1
    TARGET = 17
    WEIGHTS = 33
    BIAS = 41
    MEAN = 49
    VARIANCE = 50
    SCALE = 51
    SHIFT = 52
    WORKSPACE = 64
    SCRATCHPAD = 80
    SOURCE_GRADIENT = 129
    TARGET_GRADIENT = 145
    WEIGHTS_GRADIENT = 161
    BIAS_GRADIENT = 169
    SCALE_GRADIENT = 255
    SHIFT_GRADIENT = 256


# dnnl_query_t of an operand's memory format
_QUERIES = {
    Argument.SOURCE: 129,
    Argument.SOURCE_GRADIENT: 130,
    Argument.WEIGHTS: 131,
    Argument.WEIGHTS_GRADIENT: 132,
    Argument.TARGET: 133,
    Argument.TARGET_GRADIENT: 134,
    Argument.WORKSPACE: 135,
    Argument.SCRATCHPAD: 136,
}


# Keeps the primitives of the shapes that were used last. A server has batches of many sizes.
keep_primitives = lru_cache(maxsize=_KEPT_PRIMITIVES)


class _Version(ctypes.Structure):
    """The C struct ``dnnl_version_t``."""

    _fields_ = (
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
        ("patch", ctypes.c_int),
        ("hash", ctypes.c_char_p),
        ("cpu_runtime", ctypes.c_uint),
        ("gpu_runtime", ctypes.c_uint),
    )


class _ArgumentMemory(ctypes.Structure):
    """The C struct ``dnnl_exec_arg_t``."""

    _fields_ = (("argument", ctypes.c_int), ("memory", ctypes.c_void_p))


class Library:
    """The oneDNN library with an engine and a stream for the CPU.

    Attributes:
        version: Version of the library.
        lock: Lock that a thread holds while it executes a primitive.

    Raises:
        OneDnnUnavailableError: Paddle has no oneDNN of version 3.
    """

    def __init__(self) -> None:
        self._library = _load()
        self._library.dnnl_version.restype = ctypes.POINTER(_Version)
        version = self._library.dnnl_version().contents
        self.version = (version.major, version.minor, version.patch)
        if version.major != _MAJOR:
            raise OneDnnUnavailableError(f"expected oneDNN {_MAJOR}, got {version.major}.{version.minor}")
        self._library.dnnl_primitive_desc_query_md.restype = ctypes.c_void_p
        self._library.dnnl_memory_desc_get_size.restype = ctypes.c_size_t
        self.lock = threading.Lock()
        self.engine = Handle()
        self.stream = Handle()
        self.attributes = Handle()
        self.call("dnnl_engine_create", ctypes.byref(self.engine), _CPU, ctypes.c_size_t(0))
        self.call("dnnl_stream_create", ctypes.byref(self.stream), self.engine, _IN_ORDER)
        self.call("dnnl_primitive_attr_create", ctypes.byref(self.attributes))
        self.call("dnnl_primitive_attr_set_scratchpad_mode", self.attributes, _USER_SCRATCHPAD)

    def call(self, name: str, *arguments: object) -> None:
        """Calls the function ``name``.

        Raises:
            OneDnnUnavailableError: The function returned an error.
        """
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            raise OneDnnUnavailableError(f"{name} failed with status {status} of oneDNN")

    def query_format(self, description: Handle, argument: Argument) -> Handle:
        """Returns the memory format that a primitive has chosen for an operand."""
        return Handle(self._library.dnnl_primitive_desc_query_md(description, _QUERIES[argument], 0))

    def size(self, memory_format: Handle) -> int:
        """Returns the size of a memory format in bytes."""
        return int(self._library.dnnl_memory_desc_get_size(memory_format))

    def equal(self, first: Handle, second: Handle) -> bool:
        """Returns whether two memory formats have the same shape and order."""
        return bool(self._library.dnnl_memory_desc_equal(first, second))


def _load() -> ctypes.CDLL:
    folder = Path(paddle.__file__).parent / "libs"
    for pattern in _LIBRARIES:
        for file in sorted(folder.glob(pattern)):
            try:
                return ctypes.CDLL(str(file))
            except OSError:
                continue
    raise OneDnnUnavailableError(f"{folder} has no oneDNN library")


@cache
def library() -> Library:
    """Returns the library, which is loaded at the first call.

    Raises:
        OneDnnUnavailableError: Paddle has no oneDNN of version 3.
    """
    return Library()


def tensor_format(shape: Sequence[int], order: str | None) -> Handle:
    """Returns the memory format of a float32 tensor.

    Args:
        shape: Shape in oneDNN's order of axes: images are [B, C, H, W], also if the memory order is NHWC.
        order: Letters of the axes from the slowest to the fastest, such as ``acdb`` for NHWC; None to let the
            primitive choose.
    """
    result = Handle()
    sides = integers(shape)
    arguments = ctypes.byref(result), len(shape), sides, _FLOAT32
    if order is None:
        library().call("dnnl_memory_desc_create_with_tag", *arguments, _ANY_TAG)
    else:
        library().call("dnnl_memory_desc_create_with_string_tag", *arguments, order.encode())
    return result


def integers(values: Iterable[int]) -> ctypes.Array[ctypes.c_int64]:
    """Returns values as a C array of ``dnnl_dim_t``."""
    array = list(values)
    return (ctypes.c_int64 * len(array))(*array)


def describe_primitive(create: str, *arguments: object) -> Handle:
    """Returns a new description of a primitive, which has chosen formats and an implementation.

    Args:
        create: Name of the operation in ``dnnl_*_primitive_desc_create``.
        arguments: Arguments of that function, without the first two and the last one, the attributes.
    """
    description = Handle()
    name = f"dnnl_{create}_primitive_desc_create"
    library().call(name, ctypes.byref(description), library().engine, *arguments, library().attributes)
    return description


class Primitive:
    """A compiled operation of oneDNN.

    Args:
        description: Result of `describe_primitive`, which is freed together with the primitive.
        formats: Memory formats of all operands.
    """

    def __init__(self, description: Handle, formats: Mapping[Argument, Handle]) -> None:
        self._primitive = Handle()
        library().call("dnnl_primitive_create", ctypes.byref(self._primitive), description)
        self._memories: dict[Argument, Handle] = {}
        for argument, memory_format in formats.items():
            memory = Handle()
            library().call("dnnl_memory_create", ctypes.byref(memory), memory_format, library().engine, None)
            self._memories[argument] = memory
        scratchpad = library().query_format(description, Argument.SCRATCHPAD)
        self._scratchpad_size = library().size(scratchpad) if scratchpad else 0
        if self._scratchpad_size:
            memory = Handle()
            library().call("dnnl_memory_create", ctypes.byref(memory), scratchpad, library().engine, None)
            self._memories[Argument.SCRATCHPAD] = memory
        pairs = [_ArgumentMemory(argument, memory) for argument, memory in self._memories.items()]
        self._arguments = (_ArgumentMemory * len(pairs))(*pairs)
        owned = {
            "dnnl_primitive_destroy": [self._primitive],
            "dnnl_memory_destroy": [*self._memories.values()],
            "dnnl_primitive_desc_destroy": [description],
        }
        weakref.finalize(self, _destroy, library(), owned).atexit = False

    def run(self, tensors: Mapping[Argument, Tensor]) -> None:
        """Computes the results.

        Args:
            tensors: Contiguous tensors with the memory of all operands.
        """
        call = library().call
        operands = dict(tensors)
        if self._scratchpad_size:
            operands[Argument.SCRATCHPAD] = paddle.empty([self._scratchpad_size], dtype="uint8")
        count = len(self._arguments)
        with library().lock:
            for argument, memory in self._memories.items():
                call("dnnl_memory_set_data_handle", memory, Handle(operands[argument].data_ptr()))
            call("dnnl_primitive_execute", self._primitive, library().stream, count, self._arguments)


def _destroy(onednn: Library, owned: Mapping[str, Iterable[Handle]]) -> None:
    """Frees the memory of an unused primitive, by the functions for its objects."""
    for function, handles in owned.items():
        for handle in handles:
            onednn.call(function, handle)


class Reorder:
    """Copies a tensor to another memory format.

    Args:
        source: Format of the tensor.
        target: Format of the copy.
    """

    def __init__(self, source: Handle, target: Handle) -> None:
        self._primitive: Primitive | None = None
        self._target_size = library().size(target)
        if library().equal(source, target):
            return
        engine = library().engine
        description = Handle()
        arguments = (source, engine, target, engine, library().attributes)
        library().call("dnnl_reorder_primitive_desc_create", ctypes.byref(description), *arguments)
        formats = {Argument.SOURCE: source, Argument.TARGET: target}
        self._primitive = Primitive(description, formats)

    def copy(self, tensor: Tensor) -> Tensor:
        """Returns a copy in the target format, or the tensor itself if the formats are equal."""
        if self._primitive is None:
            return tensor
        target = paddle.empty([self._target_size // 4])
        self._primitive.run({Argument.SOURCE: tensor, Argument.TARGET: target})
        return target
