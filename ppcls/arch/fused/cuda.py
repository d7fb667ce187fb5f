"""Compiles CUDA kernels at run time with NVRTC, and loads the CUDA libraries that Paddle also uses."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import paddle
from numpy.typing import NDArray
from paddle import Tensor

from ppcls.arch.fused.amp import name_of
from ppcls.arch.kernels.errors import KernelsUnavailableError
from ppcls.files import atomic_write, read_regular
from ppcls.zoo import cache_folder

# CUdevice_attribute of cuda.h
_MULTIPROCESSORS = 16
_MAJOR = 75
_MINOR = 76
# CUfunction_attribute of cuda.h: a block needs it for more than 48 KiB of dynamic shared memory
_MOST_SHARED = 8
_FREE_SHARED = 48 << 10
_DIGEST = hashlib.sha256().digest_size  # bytes
_ELEMENTS = {
    paddle.float32: (0, 4),
    paddle.float16: (1, 8),
    paddle.bfloat16: (2, 8),
}  # ELEMENT, values per vector


class CudaUnavailableError(KernelsUnavailableError):
    """Raised when a CUDA library is missing or a call of CUDA fails."""


def load_library(names: Sequence[str]) -> ctypes.CDLL:
    """Loads the first library that exists on the system's library path or in NVIDIA's Python packages.

    Raises:
        CudaUnavailableError: None of the libraries can be loaded.
    """
    spec = find_spec("nvidia")
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()] if spec is not None else []
    files = [file for name in names for folder in folders for file in folder.glob(f"*/lib/{name}")]
    for name in (*names, *map(str, files)):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise CudaUnavailableError(
        f"none of the libraries {', '.join(names)} can be loaded from the library path or NVIDIA's packages"
    )


def vector_length(dtype: Any) -> int:
    """Returns the number of values in 16 bytes; 0 if the kernels do not support the dtype."""
    return _ELEMENTS.get(dtype, (0, 0))[1]


def fills_vectors(channels: int, dtype: Any) -> bool:
    """Returns whether the kernels can process NHWC images with this number of channels."""
    return find_vector_problem(channels, dtype) is None


def find_vector_problem(channels: int, dtype: Any) -> str | None:
    """Returns why the kernels can't process images with this number of channels; None if they can."""
    length = vector_length(dtype)
    name = name_of(dtype)
    if length == 0:
        return f"the kernels have no {name}"
    if channels % length != 0:
        return f"the kernels need a multiple of {length} channels in {name}, got {channels}"
    return None


def contiguous(tensor: Tensor) -> Tensor:
    """Returns the tensor itself if it is contiguous, otherwise a contiguous copy."""
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def with_zeros(tensor: Tensor, axis: int, count: int) -> Tensor:
    """Returns the tensor with ``count`` zeros appended along ``axis``."""
    shape = list(tensor.shape)
    shape[axis] = count
    return paddle.concat([tensor, paddle.zeros(shape, tensor.dtype)], axis=axis)


def address(tensor: Tensor | None) -> ctypes.c_void_p:
    """Returns the address of a contiguous tensor; null for None."""
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def copy_to_gpu(target: Tensor, begin: int, source: NDArray[Any]) -> None:
    """Copies an array to a part of a tensor on the GPU, in Paddle's stream.

    Args:
        target: Contiguous tensor on the GPU.
        begin: Offset in ``target`` in bytes.
        source: Contiguous array. If its memory is page-locked, the GPU reads it after this function returns.

    Raises:
        CudaUnavailableError: The copy failed.
    """
    assert begin + source.nbytes <= target.size * target.element_size()
    context = ctypes.c_void_p()
    _call_driver("cuCtxGetCurrent", ctypes.byref(context))
    if not context.value:
        # In a new thread, as in `ppcls serve`. A kernel of Paddle makes Paddle's context that of the thread.
        paddle.zeros([1])
    _call_driver(
        "cuMemcpyHtoDAsync_v2",
        ctypes.c_uint64(target.data_ptr() + begin),
        ctypes.c_void_p(source.ctypes.data),
        ctypes.c_size_t(source.nbytes),
        ctypes.c_void_p(current_stream()),
    )


@cache
def _driver() -> ctypes.CDLL:
    return load_library(["libcuda.so.1"])


def _call_driver(name: str, *arguments: object) -> None:
    """Calls a function of CUDA's driver.

    Raises:
        CudaUnavailableError: The driver is missing, or the function returned an error.
    """
    status = getattr(_driver(), name)(*arguments)
    if status != 0:
        raise CudaUnavailableError(f"{name} failed with error {status} of the CUDA driver")


@cache
def kernels(file: str, dtype: Any, *defines: str) -> Kernels:
    """Returns the kernels of a CUDA source in this folder for a dtype. Compiles them at the first call.

    Args:
        file: Name of the source.
        dtype: Dtype of the vectors that the kernels read and write.
        defines: Macros of the preprocessor, such as ``LANES=32``.

    Raises:
        CudaUnavailableError: The kernels can't be compiled on this machine.
    """
    paddle.zeros([1])  # makes Paddle create the CUDA context
    return Kernels(read_source(file), compiler_options(dtype, *defines))


def read_source(file: str) -> str:
    """Returns a CUDA source of this folder, with the shared ``vector.cuh`` before it."""
    folder = Path(__file__).parent
    return "".join((folder / name).read_text(encoding="utf-8") for name in ("vector.cuh", file))


def compiler_options(dtype: Any, *defines: str) -> list[str]:
    """Returns NVRTC's options to compile a source of this folder for vectors of a dtype."""
    macros = (f"ELEMENT={_ELEMENTS[dtype][0]}", *defines)
    return [*(f"-D{macro}" for macro in macros), "--std=c++14"]


def current_stream() -> int:
    """Returns the address of the CUDA stream on which Paddle launches its kernels."""
    stream = paddle.device.cuda.current_stream()
    return int(getattr(stream, "stream_base", stream).cuda_stream)  # Paddle 3 wraps the stream


class Kernels:
    """The kernels of a CUDA source, compiled for the GPU of this process.

    Args:
        source: CUDA C++ code without ``#include``.
        options: Options of NVRTC.

    Attributes:
        multiprocessors: Number of multiprocessors of the GPU.

    Raises:
        CudaUnavailableError: NVRTC is missing, or does not support this GPU.
    """

    def __init__(self, source: str, options: Sequence[str]) -> None:
        device = ctypes.c_int()
        value = ctypes.c_int()
        _call_driver("cuCtxGetDevice", ctypes.byref(device))
        attributes = []
        for attribute in (_MULTIPROCESSORS, _MAJOR, _MINOR):
            _call_driver("cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
            attributes.append(value.value)
        self.multiprocessors, major, minor = attributes
        if major < 8:
            raise CudaUnavailableError(
                f"expected a GPU of compute capability 8.0 or later, got {major}.{minor}"
            )
        binary = load_binary(source, [f"--gpu-architecture=sm_{major}{minor}", *options])
        self._module = ctypes.c_void_p()
        _call_driver("cuModuleLoadData", ctypes.byref(self._module), binary)
        self._functions: dict[str, ctypes.c_void_p] = {}
        self._shared: dict[str, int] = {}  # allowed dynamic shared memory in bytes

    def launch(
        self, name: str, grid: tuple[int, ...], block: tuple[int, int], *arguments: Any, shared: int = 0
    ) -> None:
        """Launches a kernel on Paddle's stream.

        Args:
            name: Name of an ``extern "C"`` kernel.
            grid: Number of blocks (x, y), or (x, y, z).
            block: Number of threads per block (x, y).
            arguments: Arguments of the kernel, as `ctypes` values.
            shared: Size of the dynamic shared memory of a block in bytes.
        """
        if name not in self._functions:
            function = ctypes.c_void_p()
            _call_driver("cuModuleGetFunction", ctypes.byref(function), self._module, name.encode())
            self._functions[name] = function
        if shared > self._shared.get(name, _FREE_SHARED):
            _call_driver("cuFuncSetAttribute", self._functions[name], _MOST_SHARED, shared)
            self._shared[name] = shared
        addresses = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        shape = (*grid, *([1] * (3 - len(grid))), *block, 1)
        stream = ctypes.c_void_p(current_stream())
        _call_driver("cuLaunchKernel", self._functions[name], *shape, shared, stream, addresses, None)


def load_binary(source: str, options: Sequence[str]) -> bytes:
    """Returns the machine code of a CUDA source from a cache on disk, or compiles and caches it.

    Compiling takes about a second. A cache that can't be read or written has no effect.

    Raises:
        CudaUnavailableError: See `compile_source`.
    """
    major = ctypes.c_int()
    minor = ctypes.c_int()
    _nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    key = "\n".join((f"NVRTC {major.value}.{minor.value}", *options, source))
    file = cache_folder("kernels") / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.cubin"
    with suppress(OSError):
        content = read_regular(file)
        digest = content[:_DIGEST]
        binary = content[_DIGEST:]
        if digest == hashlib.sha256(binary).digest():
            return binary
    binary = compile_source(source, options)
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(file) as stream:
            stream.write(hashlib.sha256(binary).digest() + binary)
    return binary


def _nvrtc() -> ctypes.CDLL:
    return load_library(["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"])


def compile_source(source: str, options: Sequence[str]) -> bytes:
    """Compiles a CUDA source and returns the machine code. Does not need a GPU.

    Raises:
        CudaUnavailableError: NVRTC is missing, or the source does not compile.
    """
    nvrtc = _nvrtc()
    program = ctypes.c_void_p()
    size = ctypes.c_size_t()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None)
    flags = [option.encode() for option in options]
    status = nvrtc.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*flags))
    if status != 0:
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        raise CudaUnavailableError(f"NVRTC error {status}: {log.value.decode(errors='replace').strip()}")
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    binary = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, binary)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return binary.raw
