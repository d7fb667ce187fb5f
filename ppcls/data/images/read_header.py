"""Reads the headers of all image formats, and rejects kinds of images that the loaders don't decode."""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterator
from typing import Any

from PIL import Image

from ppcls.data.images.contents import describe_contents, describe_damage
from ppcls.data.images.header import DecodeError, Header, check_kind, check_metadata
from ppcls.data.images.jpeg import read_jpeg_header
from ppcls.data.images.jpeg2000 import read_jpeg2000_header
from ppcls.data.images.tags import read_orientation
from ppcls.data.images.tiff import read_tiff_header

# The limit is DecodeImage's max_pixels. Pillow's own limit would cause warnings or errors at other sizes.
Image.MAX_IMAGE_PIXELS = None

_PNG_BEGIN = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
_PNG_PIXELS = b"IDAT"
_APPLE_CHUNK = b"CgBI"
# Chunks that decoders decompress, each to at most 8 MB (PNG_USER_CHUNK_MALLOC_MAX), even if nobody needs them
_PNG_COMPRESSED = (b"iCCP", b"iTXt", b"zTXt")
_MAX_PNG_INFLATED = 8_000_000
_MAX_PNG_TEXT = 16 * _MAX_PNG_INFLATED  # bytes of all these chunks after decompression
_DEFLATE_RATIO = 1032  # by which deflate compresses at best
_PNG_PIXEL_MARGIN = 1 << 16  # bytes
_PNG_PIXEL_BYTES = 4096  # bytes of a file for which another chunk of pixels is allowed; libpng writes 8,192
_WEBP_PIXELS = (b"VP8 ", b"VP8L", b"ALPH", b"ANMF")  # chunks of pixels, and of the images of an animation
_MAX_PNM_HEADER = 1 << 16  # bytes, with comments
# Meaning and number of the channels of each colour type of a PNG (PNG specification, 11.2.1)
_PNG_COLOURS = {
    0: ("grey", 1),
    2: ("RGB", 3),
    3: ("palette", 3),
    4: ("grey with alpha", 2),
    6: ("RGB with alpha", 4),
}
_PNG_PALETTE = 3  # colour type with one number per pixel
_PNM_NUMBER = re.compile(rb"(?:\s|#[^\n]*\n)*(\d{1,9})")
_BITMAP = b"4"
_TEXTS = (b"1", b"2", b"3")  # the digits of PBM, PGM and PPM as text
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
    if not data:
        raise DecodeError("the file is empty")
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
    """Reads the header and, of images with four channels, the orientation (PNG specification, 11)."""
    if data[12:16] == _APPLE_CHUNK:
        raise DecodeError("a PNG in Apple's format for iPhones (CgBI) is not supported; convert the image")
    if data[:16] != _PNG_BEGIN:
        raise ValueError("no header")
    width, height, bits, colour_type = struct.unpack_from(">2I2B", data, 16)
    colours, channels = _PNG_COLOURS[colour_type]
    orientation = 1
    pixels = False
    exif = False
    size = 0  # of all chunks but those of pixels
    inflated = 0  # bytes, at most
    compressed = 0  # bytes of pixels
    for number, (kind, begin, end) in enumerate(_png_chunks(data)):
        pixels |= kind == _PNG_PIXELS
        size += 0 if kind == _PNG_PIXELS else end - begin
        check_metadata("PNG", number - len(data) // _PNG_PIXEL_BYTES, size)
        if kind in _PNG_COMPRESSED:
            inflated += min((end - begin) * _DEFLATE_RATIO, _MAX_PNG_INFLATED)
            _check_png_text(inflated)
        elif kind == _PNG_PIXELS:
            compressed += end - begin
        elif kind == b"eXIf":
            if exif:
                raise DecodeError("the PNG has several EXIF chunks; save the image again")
            exif = True
            if channels == 4:
                orientation = read_orientation(data[begin:end])
    if not pixels:
        raise ValueError("no pixels")
    samples = width * (1 if colour_type == _PNG_PALETTE else channels)
    _check_png_pixels(compressed, height * (1 + (samples * bits + 7) // 8))
    return Header("PNG", height, width, channels, colours, bits, orientation=orientation)


def _check_png_text(size: int) -> None:
    """Checks how many bytes of metadata decoders may decompress: a few megabytes can become gigabytes."""
    if size > _MAX_PNG_TEXT:
        raise DecodeError(
            f"expected a PNG whose compressed texts and profiles have at most {_MAX_PNG_TEXT:,} bytes after "
            "decompression, but its chunks can have more; save the image without comments"
        )


def _check_png_pixels(compressed: int, size: int) -> None:
    """Checks the size of the compressed pixels: decoders also decompress what follows the last pixel.

    Interlacing adds bytes to narrow images, so twice the size is allowed.
    """
    if compressed > 2 * size + _PNG_PIXEL_MARGIN:
        raise DecodeError(
            f"the PNG has {compressed:,} bytes of compressed pixels, but only {size:,} bytes of pixels; save "
            "the image again"
        )


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yields kind, begin and end of the content of each chunk.

    Raises:
        ValueError: A chunk ends after the file. OpenCV would allocate up to 4 GB for it.
    """
    at = 8  # after the signature
    while at + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        begin = at + 8
        at = begin + length + 4  # with the check sum
        if at > len(data):
            raise ValueError("a chunk is truncated")
        yield kind, begin, begin + length
        if kind == b"IEND":
            return


def _read_webp_header(data: bytes) -> Header:
    _check_webp_chunks(data)  # first, because Pillow reads the chunks in C, but under the interpreter lock
    with Image.open(io.BytesIO(data), formats=("WEBP",)) as image:
        colours, channels = ("RGB with alpha", 4) if image.mode == "RGBA" else ("RGB", 3)
        orientation = read_orientation(image.info.get("exif", b""))
        return Header("WEBP", image.height, image.width, channels, colours, orientation=orientation)


def _check_webp_chunks(data: bytes) -> None:
    """Checks the chunks of a WebP file (RFC 9649, 2.3).

    Raises:
        DecodeError: See `check_metadata`, or there are several EXIF chunks, or EXIF data follows a chunk of
            odd size, whose padding DALI's parser forgets.
    """
    at = 12  # after the name of the format
    odd = False
    exif = False
    count = 0
    metadata = 0  # bytes
    end = 8 + struct.unpack_from("<I", data, 4)[0]
    while at + 8 <= len(data):
        kind, size = struct.unpack_from("<4sI", data, at)
        if at >= end and at + 8 + size > len(data):
            break  # no chunk: decoders ignore other bytes after the last one
        count += 1
        metadata += 0 if kind in _WEBP_PIXELS else size
        check_metadata("WEBP", count, metadata)
        if kind == b"EXIF" and odd:
            raise DecodeError(
                "a WEBP whose EXIF data follows a chunk of odd size can't be decoded by DALI; save the image "
                "without EXIF data, or as PNG"
            )
        if kind == b"EXIF" and exif:
            raise DecodeError("the WEBP has several EXIF chunks; save the image again")
        exif |= kind == b"EXIF"
        odd |= size % 2 == 1
        at += 8 + size + size % 2


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
    if digit in _TEXTS:
        raise DecodeError("a PBM, PGM or PPM file as text is not supported; save it as a binary file")
    numbers = []
    at = 2
    for _ in range(2 if digit == _BITMAP else 3):
        match = _PNM_NUMBER.match(data, at, _MAX_PNM_HEADER)
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
