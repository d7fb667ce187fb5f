"""Runs the CUDA kernels of ppcls/arch/fused on a CPU: compiles their sources with g++ and an emulator."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import paddle
import pytest

from ppcls.arch.fused import sum_rows
from ppcls.arch.fused.cuda import compiler_options, read_source

_HEADER = Path(__file__).with_name("cuda_emulator.h")
_VERSION = 2  # change it to compile all sources again
_MOST_INTEGERS = 30
_MOST_FLOATS = 8


class EmulatedKernels:
    """The kernels of a CUDA source on a CPU; has the interface of `ppcls.arch.fused.cuda.Kernels`."""

    multiprocessors = 3

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def launch(
        self, name: str, grid: tuple[int, ...], block: tuple[int, int], *arguments: Any, shared: int = 0
    ) -> None:
        """Runs a kernel. The dynamic shared memory always has the largest size."""
        integers = [argument for argument in arguments if not isinstance(argument, ctypes.c_float)]
        floats = [argument.value for argument in arguments if isinstance(argument, ctypes.c_float)]
        assert len(integers) <= _MOST_INTEGERS
        assert len(floats) <= _MOST_FLOATS
        shape = [
            (ctypes.c_uint * 3)(*sides, *([1] * (3 - len(sides)))) for sides in (tuple(grid), tuple(block))
        ]
        words = (ctypes.c_long * 32)(*(argument.value or 0 for argument in integers))
        numbers = (ctypes.c_float * _MOST_FLOATS)(*floats)
        self._library.emulate(getattr(self._library, name), *shape, words, numbers)


def emulate_gpu(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
    """Makes modules of `ppcls.arch.fused` use emulated kernels on a machine without a GPU."""
    if not paddle.is_compiled_with_cuda() or paddle.device.cuda.device_count() == 0:
        for module in (*modules, sum_rows):
            monkeypatch.setattr(module, "kernels", emulated_kernels)


@cache
def emulated_kernels(file: str, dtype: Any, *defines: str) -> EmulatedKernels:
    """Replaces `ppcls.arch.fused.cuda.kernels`."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ is not installed")
    text = read_source(file)
    options = [option for option in compiler_options(dtype, *defines) if option.startswith("-D")]
    key = hashlib.sha256(f"{text} {options} {_HEADER.read_text()} {_VERSION}".encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / "ppcls-emulated-kernels"
    folder.mkdir(exist_ok=True)
    library = folder / f"{key}.so"
    if not library.is_file():
        # Several processes may compile the same library at once, so each one has its own files.
        source = folder / f"{key}.{os.getpid()}.cpp"
        source.write_text(f'#include "{_HEADER}"\n{text}')
        part = source.with_suffix(".part")
        # Without -fno-gnu-unique, all libraries would share the static variables of inline functions.
        flags = ["-O1", "-std=c++17", "-shared", "-fPIC", "-fno-gnu-unique", "-w", "-DEMULATED", *options]
        subprocess.run([compiler, *flags, str(source), "-o", str(part)], check=True)
        part.replace(library)
        source.unlink()
    return EmulatedKernels(ctypes.CDLL(str(library)))
