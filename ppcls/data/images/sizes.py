"""Reads the sizes of images without decoding their pixels."""

from __future__ import annotations

from functools import singledispatch

from ppcls.data.images.decode import decode
from ppcls.data.images.npy import read_npy_header
from ppcls.data.images.read_header import read_header
from ppcls.data.transforms.base import Transform
from ppcls.data.transforms.specs.basic import DecodeImage, DecodeNumpy


@singledispatch
def read_size(decoder: Transform, encoded: bytes | memoryview) -> tuple[int, int]:
    """Returns the width and height that an image has after decoding.

    Args:
        decoder: Transform that decodes the image.
        encoded: Content of the file.

    Raises:
        DecodeError: The header can't be read.
    """
    raise NotImplementedError(f"the sizes of images of {decoder.kind} are unknown")


@read_size.register
def read_image_size(decoder: DecodeImage, encoded: bytes | memoryview) -> tuple[int, int]:
    """Returns the width and height after applying the EXIF orientation."""
    header = read_header(encoded)
    # A JPEG, PNG or WebP whose orientation may turn the image has this name, in lower or upper case.
    may_turn = header.format == "TIFF" or b"exif" in bytes(encoded).lower()
    if header.width == header.height or not may_turn:
        return header.width, header.height
    height, width = decode(decoder, encoded, header).shape[:2]
    return width, height


@read_size.register
def read_array_size(decoder: DecodeNumpy, encoded: bytes | memoryview) -> tuple[int, int]:
    """Returns the width and height of an array."""
    height, width, _ = read_npy_header(decoder, encoded)
    return width, height
