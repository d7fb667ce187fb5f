"""Files of one numpy array: numpy's own format, without its pickles."""

from __future__ import annotations

import io
import tokenize
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ppcls.data.images.header import DecodeError
from ppcls.data.transforms.specs.arrays import DecodeNumpy

_LONGEST = 10_000  # bytes of a header, numpy's own limit


def read_npy_header(spec: DecodeNumpy, encoded: Any) -> tuple[int, int, int]:
    """Reads where an array's numbers are, and makes sure that they are what ``spec`` says.

    Args:
        spec: What is expected.
        encoded: The file's bytes, or a view of them.

    Returns:
        Height, width, and where the numbers begin; they go on to the end of the file.

    Raises:
        DecodeError: The bytes are no array, or another one than expected.
    """
    if not len(encoded):
        raise DecodeError("the file is empty")
    file = io.BytesIO(encoded)
    try:
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(file, max_header_size=_LONGEST)
    except (ValueError, EOFError, SyntaxError, tokenize.TokenError, TypeError, RecursionError, MemoryError):
        raise DecodeError("not a numpy array (.npy) of a known version") from None
    _check(spec, shape, fortran, dtype)
    height, width = shape[:2]
    if len(encoded) - file.tell() != height * width * spec.channels * dtype.itemsize:
        raise DecodeError("the file's length is not that of its array")
    return height, width, file.tell()


def _check(spec: DecodeNumpy, shape: tuple[int, ...], fortran: bool, dtype: np.dtype[Any]) -> None:
    if dtype != np.dtype(spec.dtype):
        raise DecodeError(f"expected an array of {spec.dtype}, found {dtype}")
    if len(shape) not in (2, 3) or min(shape) < 1:
        raise DecodeError(f"expected [height, width, channels], found {list(shape)}")
    if fortran and sum(side > 1 for side in shape) > 1:
        raise DecodeError("an array in Fortran's order; save it with numpy.ascontiguousarray")
    if shape[0] * shape[1] > spec.max_pixels:
        found = f"{shape[1]}x{shape[0]} pixels"
        raise DecodeError(f"{found} are more than DecodeNumpy's max_pixels, {spec.max_pixels}")
    channels = shape[2] if len(shape) == 3 else 1
    if channels != spec.channels:
        raise DecodeError(f"expected [height, width, {spec.channels}], found {list(shape)}")


def read_npy(spec: DecodeNumpy, encoded: bytes | memoryview) -> NDArray[Any]:
    """Returns the array, [H, W, spec.channels] of ``spec.dtype``; raises what `read_npy_header` raises."""
    height, width, begin = read_npy_header(spec, encoded)
    flat = np.frombuffer(encoded, np.dtype(spec.dtype), offset=begin)
    return flat.reshape(height, width, spec.channels).copy()
