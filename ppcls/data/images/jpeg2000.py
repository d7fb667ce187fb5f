"""Reads the headers of JPEG 2000 files and codestreams (ISO 15444-1, annexes A and I)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import count

import cv2

from ppcls.data.images.header import DecodeError, Header, check_metadata

_CODESTREAM = b"\xff\x4f\xff\x51"  # markers SOC and SIZ
_SIGNED = 0x80  # bit of a component's depth
_SAFE_OPENCV = (4, 12)  # contains a newer OpenJPEG; see `ppcls.data.images.decode`
_COLOURS = {1: "grey", 2: "grey with alpha", 3: "RGB", 4: "RGB with alpha"}  # by the number of components
# Enumerated colour spaces (ISO 15444-1, table I.10, and ISO 15444-2, table M.25)
_SRGB = 16
_GREY = 17
_COLOUR = 0  # type of a channel in a channel definition box
_COMPONENTS = {_SRGB: (3, 4), _GREY: (1, 2)}  # possible numbers of components
_SPACES = {
    _SRGB: "sRGB",
    _GREY: "grey",
    0: "bilevel",
    12: "CMYK",
    14: "CIELab",
    18: "sYCC",
    20: "e-sRGB",
    24: "e-sYCC",
}


def read_jpeg2000_header(data: bytes) -> Header:
    """Reads the header of a ``.jp2`` file, or of a codestream without a container.

    Raises:
        ValueError: The file is damaged.
        DecodeError: Header and codestream differ, or the components have different depths or sizes, or the
            installed OpenCV can't decode this depth safely.
    """
    if data.startswith(_CODESTREAM):
        return _read_codestream(data, 0, None, "codestream")
    size = None
    space: int | str | None = None
    numbers = count(1)  # of all boxes, also of those in other boxes
    for kind, begin, end in _boxes(data, 0, len(data), numbers):
        if kind == b"jp2h":
            for part, at, close in _boxes(data, begin, end, numbers):
                if part == b"ihdr":
                    size = struct.unpack_from(">2I", data, at)
                elif part == b"colr" and space is None:  # readers ignore further colour spaces
                    space = _read_colour_space(data, at)
                elif part == b"pclr":
                    space = "palette"
                elif part == b"cdef":
                    _check_channels(data, at, close)
        elif kind == b"jp2c":
            header = _read_codestream(data, begin, space, "")
            if size != (header.height, header.width):
                raise DecodeError(
                    "the header and the codestream of the JPEG 2000 file have different image sizes; save "
                    "the image again"
                )
            return header
    raise ValueError("no codestream")


def _boxes(data: bytes, begin: int, end: int, numbers: Iterator[int]) -> Iterator[tuple[bytes, int, int]]:
    """Yields kind, begin and end of the content of each box.

    Args:
        data: Bytes of the file.
        begin: Position of the first box.
        end: End of the last box.
        numbers: Numbers of the boxes of the file, from 1 on.

    Raises:
        ValueError: A box ends before its content begins.
        DecodeError: See `check_metadata`.
    """
    while begin < end:
        check_metadata("JPEG2000", next(numbers), begin)
        length, kind = struct.unpack_from(">I4s", data, begin)
        content = begin + 8
        if length == 1:
            (length,) = struct.unpack_from(">Q", data, content)
            content += 8
        close = begin + length if length else end  # a length of 0 extends to the end of the file
        if close < content:
            raise ValueError("no codestream")
        yield kind, content, min(close, end)
        begin = close


def _check_channels(data: bytes, at: int, end: int) -> None:
    """Checks that a channel definition box keeps the order of the channels (ISO 15444-1, I.5.3.6).

    Raises:
        ValueError: The definitions do not end at the end of the box, so boxes could share them.
        DecodeError: It does not. DALI ignores the box, and other readers don't.
    """
    (length,) = struct.unpack_from(">H", data, at)
    if at + 2 + 6 * length != end:
        raise ValueError("a channel definition box of another size")
    definitions = struct.iter_unpack(">3H", data[at + 2 : end])
    if any(meaning == _COLOUR and colour != channel + 1 for channel, meaning, colour in definitions):
        raise DecodeError(
            "a JPEG 2000 file that stores its channels in another order than red, green, blue, alpha is not "
            "supported; save the image again"
        )


def _read_colour_space(data: bytes, at: int) -> int | None:
    """Returns the number of an enumerated colour space.

    None is returned for a colour profile, which all decoders ignore, as for all other formats.
    """
    (method,) = struct.unpack_from(">B", data, at)
    return int(struct.unpack_from(">I", data, at + 3)[0]) if method == 1 else None


def _name_colours(space: int | str | None, components: int) -> str:
    """Returns the meaning of the components, for `Header.colours`."""
    expected = _COLOURS.get(components, f"{components} components")
    if space is None:
        return expected
    if isinstance(space, str):
        return space
    name = _SPACES.get(space, f"colour space {space}")
    if space not in _COMPONENTS:
        return name
    return expected if components in _COMPONENTS[space] else f"{name} with the components of {expected}"


def _read_codestream(data: bytes, at: int, space: int | str | None, codec: str) -> Header:
    if data[at : at + 4] != _CODESTREAM:
        raise ValueError("no codestream")
    right, bottom, left, top = struct.unpack_from(">4I", data, at + 8)
    if (left, top) != (0, 0) or struct.unpack_from(">2I", data, at + 32) != (0, 0):  # DALI fails
        raise DecodeError(
            "a JPEG 2000 whose image or tiles do not begin at the origin of its grid is not supported; save "
            "the image again"
        )
    (length,) = struct.unpack_from(">H", data, at + 40)
    components = {struct.unpack_from("3B", data, at + 42 + 3 * number) for number in range(length)}
    if len(components) != 1:
        raise DecodeError(
            "a JPEG 2000 whose components have different depths or sizes is not supported; convert the image"
        )
    depth, *spacing = components.pop()
    colours = _name_colours(space, length)
    if spacing != [1, 1]:
        colours = f"subsampled {colours}"
    if depth & _SIGNED:
        colours = f"signed {colours}"
    bits = (depth & ~_SIGNED) + 1
    if bits == 16 and not _has_safe_opencv():
        raise DecodeError(
            "JPEG 2000 with 16 bits per sample needs OpenCV 4.12 or newer, because older versions contain an "
            f"unsafe decoder; OpenCV {cv2.__version__} is installed; save the image as PNG or TIFF"
        )
    return Header("JPEG2000", bottom, right, length, colours, bits, codec)


def _has_safe_opencv() -> bool:
    major, minor, *_ = cv2.__version__.split(".")
    return (int(major), int(minor)) >= _SAFE_OPENCV
