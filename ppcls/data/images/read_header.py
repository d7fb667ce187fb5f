"""Reads the headers of all image formats, and rejects kinds of images that the loaders don't decode."""

from __future__ import annotations

import io
import re
import struct
from typing import Any

from PIL import Image

from ppcls.data.images.contents import describe_contents, describe_damage
from ppcls.data.images.header import DecodeError, Header, check_kind
from ppcls.data.images.jpeg import read_jpeg_header
from ppcls.data.images.jpeg2000 import read_jpeg2000_header
from ppcls.data.images.tiff import read_tiff_header

# The limit is DecodeImage's max_pixels. Pillow's own limit would cause warnings or errors at other sizes.
Image.MAX_IMAGE_PIXELS = None

_ORIENTATION = 0x0112  # EXIF 2.32, 4.6.4

# Meaning and number of the channels of each colour type of a PNG (PNG specification, 11.2.1)
_PNG_COLOURS = {
    0: ("grey", 1),
    2: ("RGB", 3),
    3: ("palette", 3),
    4: ("grey with alpha", 2),
    6: ("RGB with alpha", 4),
}
_PNM_NUMBER = re.compile(rb"(?:\s|#[^\n]*\n)*(\d{1,9})")
_BITMAPS = (b"1", b"4")  # the digits of PBM, as text and binary
_TEXT_MAPS = (b"2", b"3")  # the digits of PGM and PPM as text
_COLOUR_MAP = b"6"
_PNM_BITS = {255: 8, 65535: 16}  # by the largest value

# Compressions and masks of BMP (BITMAPINFOHEADER)
_BMP_CORE_HEADER = 12  # size of the oldest header, without compression
_BMP_PLAIN = 0
_BMP_RUNS = 1  # run lengths of bytes
_BMP_MASKS = 3
_BGR_MASKS = struct.pack("<3I", 0xFF0000, 0xFF00, 0xFF)


def read_header(encoded: Any) -> Header:
    """Reads the header of an image without decoding pixels.

    Args:
        encoded: Bytes or memoryview of the file.

    Raises:
        DecodeError: The bytes are not an image of a supported format, or the loaders don't decode this kind
            of image, for example a TIFF with several pages or a JPEG of 12 bits.
    """
    data = bytes(encoded)
    reader = next((entry for entry in _READERS if entry[1].match(data)), None)
    if reader is None:
        raise DecodeError(describe_contents(data))
    name, _, read = reader
    try:
        header = read(data)
        check_kind(header)
        return header
    except DecodeError:
        raise
    except MemoryError:  # one image must not end a run or a server
        raise DecodeError("there is not enough memory to read the image") from None
    except (
        ArithmeticError,
        EOFError,
        LookupError,
        OSError,
        SyntaxError,
        TypeError,
        ValueError,
        struct.error,
    ):
        # Pillow raises all of these for damaged files. Seeking to a large 64-bit offset raises OverflowError.
        raise DecodeError(describe_damage(name, data)) from None


def _read_png_header(data: bytes) -> Header:
    with Image.open(io.BytesIO(data), formats=("PNG",)) as image:
        colours, channels = _PNG_COLOURS[data[25]]
        orientation = int(image.getexif().get(_ORIENTATION, 1)) if channels == 4 else 1
        return Header("PNG", image.height, image.width, channels, colours, data[24], orientation=orientation)


def _read_webp_header(data: bytes) -> Header:
    with Image.open(io.BytesIO(data), formats=("WEBP",)) as image:
        if image.mode != "RGBA":
            return Header("WEBP", image.height, image.width, 3)
        orientation = int(image.getexif().get(_ORIENTATION, 1))
        return Header("WEBP", image.height, image.width, 4, "RGB with alpha", orientation=orientation)


def _read_bmp_header(data: bytes) -> Header:
    if struct.unpack_from("<I", data, 14)[0] == _BMP_CORE_HEADER:
        (depth,) = struct.unpack_from("<H", data, 24)
        compression = _BMP_PLAIN
    else:
        depth, compression = struct.unpack_from("<HI", data, 28)
    true_colour = depth in (24, 32)
    runs = compression == _BMP_RUNS and depth == 8
    masks = compression == _BMP_MASKS and depth == 32 and data[54:66] == _BGR_MASKS
    if (depth not in (1, 4, 8) and not true_colour) or not (compression == _BMP_PLAIN or runs or masks):
        raise DecodeError(
            f"a BMP of {depth} bits per pixel with compression {compression} is not supported; expected 1, "
            "4, 8, 24 or 32 bits without compression; convert the image"
        )
    with Image.open(io.BytesIO(data), formats=("BMP",)) as image:
        if true_colour:
            return Header("BMP", image.height, image.width, 3)
        grey = image.mode in ("1", "L")  # Pillow compares the palette with the grey levels
        colours, channels = ("grey", 1) if grey else ("palette", 3)
        return Header("BMP", image.height, image.width, channels, colours, depth)


def _read_pnm_header(data: bytes) -> Header:
    """Reads the header of a PBM, PGM or PPM file: a digit for the kind, the size and the largest value."""
    digit = data[1:2]
    if digit in _TEXT_MAPS:
        raise DecodeError("a PGM or PPM file as text is not supported; save it as a binary file")
    numbers = []
    at = 2
    for _ in range(2 if digit in _BITMAPS else 3):
        match = _PNM_NUMBER.match(data, at)
        if match is None:
            raise ValueError("no number")
        numbers.append(int(match[1]))
        at = match.end()
    width, height, *largest = numbers
    if not largest:
        return Header("PPM", height, width, 1, "grey", 1)
    if largest[0] not in _PNM_BITS:  # DALI and OpenCV don't scale the values
        raise DecodeError(
            f"a PGM or PPM file whose largest value is {largest[0]} is not supported; expected 255 or 65535"
        )
    channels, colours = (3, "RGB") if digit == _COLOUR_MAP else (1, "grey")
    return Header("PPM", height, width, channels, colours, _PNM_BITS[largest[0]])


# Names, first bytes and readers of the supported formats
_READERS = (
    ("JPEG", re.compile(rb"\xff\xd8"), read_jpeg_header),
    ("PNG", re.compile(rb"\x89PNG"), _read_png_header),
    ("TIFF", re.compile(rb"(II[*+]\0)|(MM\0[*+])"), read_tiff_header),  # and BigTIFF, in both byte orders
    ("WEBP", re.compile(rb"RIFF....WEBP", re.DOTALL), _read_webp_header),
    ("JPEG2000", re.compile(rb"(\xff\x4f\xff\x51)|(\0\0\0\x0cjP)"), read_jpeg2000_header),
    ("BMP", re.compile(rb"BM"), _read_bmp_header),
    ("PPM", re.compile(rb"P[1-6][\s#]"), _read_pnm_header),
)
