"""Reads arrays from ``.npy`` files, and rejects files that contain pickled objects."""

from __future__ import annotations

import io
import tokenize
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ppcls.data.images.header import DecodeError
from ppcls.data.transforms.specs.basic import DecodeNumpy

_MAX_HEADER = 10_000  # bytes, NumPy's own limit
_PREFIX = 12  # maximum number of bytes in front of the header
_LENGTH = 8  # offset of the header's length, which has 2 bytes in version 1.0 and 4 bytes in later ones


def read_npy_header(spec: DecodeNumpy, encoded: Any) -> tuple[int, int, int]:
    """Reads the header of an array and checks it against ``spec``.

    Args:
        spec: Expected dtype, channels and size.
        encoded: Bytes or memoryview of the file.

    Returns:
        Height, width, and the offset in bytes of the values, which extend to the end of the file.

    Raises:
        DecodeError: The bytes are not an array in the ``.npy`` format, or dtype, shape, order or size of the
            array differ from ``spec``.
    """
    if not len(encoded):
        raise DecodeError("the file is empty")
    view = memoryview(encoded)
    prefix = bytes(view[:_PREFIX])
    version_1 = prefix[6:_LENGTH] == b"\x01\x00"
    begin = _LENGTH + (2 if version_1 else 4)
    begin += min(int.from_bytes(prefix[_LENGTH:begin], "little"), _MAX_HEADER)
    shape, fortran, dtype = _parse_header(bytes(view[:begin]))
    _check_array(spec, shape, fortran, dtype)
    height, width = shape[:2]
    if len(encoded) - begin != height * width * spec.channels * dtype.itemsize:
        raise DecodeError("the file size does not match the shape in the header; save the array again")
    return height, width, begin


# NumPy needs about 50 us for a header. Of images from the cache, 8,000 per second would take 40 % of the time
# of the thread that also starts the steps. Most images of a data set have one of a few sizes.
@lru_cache(maxsize=4096)
def _parse_header(content: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Returns shape, whether the order is that of Fortran, and dtype.

    Args:
        content: The file up to the end of the header.

    Raises:
        DecodeError: The content is not a header, or it is longer than `_MAX_HEADER`.
    """
    file = io.BytesIO(content)
    try:
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        return read(file, max_header_size=_MAX_HEADER)
    except (ValueError, EOFError, SyntaxError, tokenize.TokenError, TypeError, RecursionError, MemoryError):
        raise DecodeError(
            "expected a NumPy array (.npy), but can't read its header; write it with numpy.save"
        ) from None


def _check_array(spec: DecodeNumpy, shape: tuple[int, ...], fortran: bool, dtype: np.dtype[Any]) -> None:
    if dtype != np.dtype(spec.dtype):
        raise DecodeError(f"expected an array of {spec.dtype}, found {dtype}")
    if len(shape) not in (2, 3) or min(shape) < 1:
        raise DecodeError(f"expected [height, width, channels], found {list(shape)}")
    if fortran and sum(side > 1 for side in shape) > 1:
        raise DecodeError(
            "expected an array in C order, found Fortran order; convert it with numpy.ascontiguousarray"
        )
    if shape[0] * shape[1] > spec.max_pixels:
        size = f"{shape[1]}x{shape[0]} pixels"
        raise DecodeError(f"{size} are more than DecodeNumpy's max_pixels, {spec.max_pixels}")
    channels = shape[2] if len(shape) == 3 else 1
    if channels != spec.channels:
        raise DecodeError(f"expected [height, width, {spec.channels}], found {list(shape)}")


def read_npy(spec: DecodeNumpy, encoded: bytes | memoryview) -> NDArray[Any]:
    """Reads an array from the bytes of a ``.npy`` file.

    Returns:
        The array, [H, W, spec.channels] of ``spec.dtype``.

    Raises:
        DecodeError: See `read_npy_header`.
    """
    height, width, begin = read_npy_header(spec, encoded)
    flat = np.frombuffer(encoded, np.dtype(spec.dtype), offset=begin)
    try:
        return flat.reshape(height, width, spec.channels).copy()
    except MemoryError:  # one image must not end a run or a server
        raise DecodeError("there is not enough memory to read the array") from None
