"""Reads image headers, and checks whether a transform chain accepts the images."""

from __future__ import annotations

import io
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image
from PIL.TiffImagePlugin import ImageFileDirectory_v2

if TYPE_CHECKING:  # only for annotations
    from ppcls.data.transforms.specs.basic import DecodeImage

# The limit is DecodeImage's max_pixels. Pillow's own limit would cause warnings or errors at other sizes.
Image.MAX_IMAGE_PIXELS = None

# Formats that both OpenCV and DALI decode. TIFF is read without Pillow, which supports few kinds of TIFF.
_OPENED_BY_PILLOW = ("BMP", "JPEG", "JPEG2000", "PNG", "PPM", "WEBP")
_TIFF_MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # TIFF and BigTIFF in both byte orders
_BIG_TIFF = 43

# Pillow's modes whose number of channels differs from the bands: palettes and CMYK are converted to RGB.
_CHANNELS = {"P": 3, "PA": 4, "CMYK": 3}
_ORIENTATION = 0x0112  # EXIF 2.32, 4.6.4; TIFF has the same tag

# TIFF 6.0 tags
_WIDTH = 256
_HEIGHT = 257
_BITS = 258
_COMPRESSION = 259
_PHOTOMETRIC = 262
_SAMPLES_PER_PIXEL = 277
_PLANAR = 284
_PREDICTOR = 317
_SAMPLE_FORMAT = 339
_PALETTE = 3
_SEPARATE_PLANES = 2
_UNSIGNED = 1
_MAX_TAGS = 1 << 16
_COLOURS = (2, 6)  # photometric interpretations RGB and YCbCr
_PACK_BITS = 32773
# Supported compressions: none, LZW, two kinds of deflate, Zstandard, and PackBits.
_TIFF_COMPRESSIONS = {1, 5, 8, 32946, 50000, _PACK_BITS}

_CODESTREAM = b"\xff\x4f\xff\x51"  # markers SOC and SIZ of JPEG 2000

# A JPEG may have any number of tiny scans, and a decoder processes all pixels for each of them. So the number
# of scans times the number of pixels is limited, to this multiple of max_pixels. Progressive photographs have
# about ten scans.
MAX_SCANS = 32
MIN_SCAN_BYTES = 10  # size of the shortest header of a scan
MAX_IMAGE_BYTES = 1 << 30  # maximum size of an encoded image
_JPEG = ("JPEG", "MPO")  # Pillow's names; an MPO file has several images, and only the first is read
# JPEG markers SOS and EOI, which follow a byte 0xFF
_SCAN = 0xDA
_END = 0xD9
# Matches the next marker, after any fill bytes. Stuffed bytes and restart markers don't match (ITU T.81,
# B.1.1).
_MARKER = re.compile(rb"\xff+([^\x00\xd0-\xd7\xff])")

_NO_IMAGE = "not an image that can be decoded"


class DecodeError(ValueError):
    """An image can't be read or decoded, or the transform chain does not accept it."""


@dataclass(frozen=True)
class Header:
    """Properties of an encoded image.

    Attributes:
        format: Pillow's name of the format, such as ``"JPEG"``.
        height: Stored height in pixels.
        width: Stored width in pixels.
        channels: Number of channels after decoding without conversion; 3 for a palette.
        orientation: EXIF orientation, 1..8. It is read for TIFFs and for images with four channels; 1 for
            all other images.
        separate: Whether a TIFF stores each channel as a separate plane.
        compression: Compression code of a TIFF; 1 (none) for other formats.
        coloured: Whether the image is grey, RGB, YCbCr or a palette; False for TIFFs with other channels.
        scans: Number of scans of a JPEG, or an upper bound; 1 for other formats.
    """

    format: str
    height: int
    width: int
    channels: int
    orientation: int = 1
    separate: bool = False
    compression: int = 1
    coloured: bool = True
    scans: int = 1


def read_header(encoded: Any) -> Header:
    """Reads the header of an image without decoding pixels.

    Args:
        encoded: Bytes or memoryview of the file.

    Raises:
        DecodeError: The bytes are not an image of a supported format, or are a TIFF with several pages or
            with samples that are not unsigned integers of 8 or 16 bits.
    """
    file = io.BytesIO(encoded)
    try:
        if file.getbuffer()[:4] in _TIFF_MAGIC:
            return _read_tiff_header(file)
        return _read_other_header(file)
    except DecodeError:
        raise
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
        raise DecodeError(_NO_IMAGE) from None


def _read_other_header(file: io.BytesIO) -> Header:
    with Image.open(file, formats=_OPENED_BY_PILLOW) as image:
        channels = _CHANNELS.get(image.mode, len(image.getbands()))
        has_exif = channels == 4 and "exif" in image.info
        orientation = image.getexif().get(_ORIENTATION, 1) if has_exif else 1
        if image.format == "JPEG2000" and _codestream_size(file.getvalue()) != image.size:
            raise DecodeError(
                "the header and the codestream of the JPEG 2000 file have different image sizes; save the "
                "image again"
            )
        scans = count_scans(file.getvalue()) if image.format in _JPEG else 1
        return Header(image.format or "", image.height, image.width, channels, orientation, scans=scans)


def count_scans(encoded: Any) -> int:
    """Returns the number of scans of a JPEG, or an upper bound if that is at most ``MAX_SCANS``.

    The upper bound also counts scans of embedded previews and of data after the image.

    Args:
        encoded: Bytes or memoryview of the file.
    """
    # Compares pairs of bytes, at even and at odd positions, as 16-bit numbers. This is ten times as fast as
    # bytes.count.
    pairs = (
        np.frombuffer(encoded, "<u2", (len(encoded) - start) // 2, start)
        for start in (0, 1)
        if len(encoded) > start + 1
    )
    bound = sum(int(np.count_nonzero(pair == _SCAN << 8 | 0xFF)) for pair in pairs)
    if bound <= MAX_SCANS:
        return bound
    data = bytes(encoded)
    scans = 0
    at = 2  # after the SOI marker
    while (marker := _MARKER.search(data, at)) and (kind := marker[1][0]) != _END:
        scans += kind == _SCAN
        length = int.from_bytes(data[marker.end() : marker.end() + 2], "big")
        at = marker.end() + (length if kind != 0x01 else 0)  # only the marker TEM has no length
    return scans


def _codestream_size(data: bytes) -> tuple[int, int]:
    """Returns the width and height in the codestream of a JPEG 2000 file (ISO 15444-1, A.5.1)."""
    at = 0
    while data[at : at + 4] != _CODESTREAM:
        length, kind = struct.unpack_from(">I4s", data, at)  # header of a box, whose content follows
        head = 8
        if length == 1:
            (length,), head = struct.unpack_from(">Q", data, at + 8), 16
        if kind != b"jp2c" and length < head:
            raise DecodeError(_NO_IMAGE)
        at += head if kind == b"jp2c" else length
    right, bottom, left, top = struct.unpack_from(">4I", data, at + 8)
    return right - left, bottom - top


def _read_tiff_header(file: io.BytesIO) -> Header:
    """Reads the header of a TIFF or BigTIFF with one image (TIFF 6.0, sections 2 and 8)."""
    head = file.read(8)
    if _BIG_TIFF in head[2:4]:
        head += file.read(8)
    tags = ImageFileDirectory_v2(head)
    _check_unique_tags(file, head, tags.next)
    file.seek(tags.next)
    tags.load(file)
    if tags.next:
        raise DecodeError(
            "expected a TIFF with one page, found several; save one image per file, with interleaved channels"
        )
    bits = set(tags.get(_BITS, (1,)))
    formats = set(tags.get(_SAMPLE_FORMAT, (_UNSIGNED,)))
    if formats != {_UNSIGNED} or not (bits == {8} or bits == {16}):
        kind = "float" if 3 in formats else "signed" if 2 in formats else "unsigned"
        sample_type = f"{'/'.join(map(str, sorted(bits)))}-bit {kind}"
        raise DecodeError(f"expected a TIFF of 8- or 16-bit unsigned samples, found {sample_type}")
    if tags.get(_COMPRESSION) == _PACK_BITS and tags.get(_PREDICTOR, 1) != 1:
        raise DecodeError(
            "a TIFF with PackBits compression and a predictor is not supported; save it without a predictor"
        )
    samples = int(tags.get(_SAMPLES_PER_PIXEL, 1))
    photometric = tags.get(_PHOTOMETRIC)
    return Header(
        "TIFF",
        height=int(tags[_HEIGHT]),
        width=int(tags[_WIDTH]),
        channels=3 if photometric == _PALETTE else samples,
        orientation=int(tags.get(_ORIENTATION, 1)),
        separate=tags.get(_PLANAR) == _SEPARATE_PLANES and samples > 1,
        compression=int(tags.get(_COMPRESSION, 1)),
        coloured=samples == 1 or (samples == 3 and photometric in _COLOURS),
    )


def _check_unique_tags(file: io.BytesIO, head: bytes, start: int) -> None:
    """Raises `DecodeError` if a tag is repeated.

    If a TIFF has for example two widths, some readers use the first one and others the last one.
    """
    order = "<" if head[:1] == b"I" else ">"
    big = _BIG_TIFF in head[2:4]
    count, size = (8, 20) if big else (2, 12)  # bytes of the number of entries, and bytes of an entry
    file.seek(start)
    entries = file.read(count + size * _MAX_TAGS)
    known = struct.unpack_from(f"{order}{'Q' if big else 'H'}", entries)[0]
    places = range(count, min(count + size * known, len(entries)), size)
    tags = [entries[place : place + 2] for place in places]
    if len(set(tags)) < len(tags):
        raise DecodeError("the TIFF has a repeated tag; save the image again")


def check_header(spec: DecodeImage, header: Header) -> None:
    """Checks that the header of an image meets the requirements of the chain.

    If ``spec.channels`` is 3, images with grey, palette, CMYK or alpha channels are accepted, because they
    can be converted to RGB. The meaning of a TIFF's channels is unknown, so a TIFF must then have one channel
    (grey) or three. If ``spec.channels`` is not 3, the image must have exactly this number of channels.

    Raises:
        DecodeError: The image has an unexpected number of channels, too many pixels or scans, or is a kind of
            TIFF that some backends can't decode.
    """
    check_pixel_count(spec, header.height, header.width)
    if header.scans * header.height * header.width > MAX_SCANS * spec.max_pixels:
        raise DecodeError(
            f"the JPEG has {header.scans} scans of {header.width}x{header.height} pixels; expected at most "
            f"{MAX_SCANS} times DecodeImage's max_pixels, {spec.max_pixels}, for all scans together"
        )
    if spec.channels != 3:
        accepted = header.channels == spec.channels
    elif header.format == "TIFF":
        accepted = header.channels in (1, 3)
    else:
        accepted = header.channels <= 4
    if not accepted:
        raise DecodeError(
            f"expected {_count_channels(spec.channels)}, found {_count_channels(header.channels)}"
        )
    if spec.channels not in (1, 3) and header.orientation != 1:  # DALI fails or returns wrong pixels
        raise DecodeError(
            f"EXIF orientation {header.orientation} is not supported for {spec.channels} channels; save the "
            "image upright"
        )
    if header.separate:  # DALI returns wrong pixels
        raise DecodeError("the TIFF has separate planes; save it with interleaved channels")
    if not header.coloured and header.compression not in _TIFF_COMPRESSIONS:
        raise DecodeError(
            f"compression {header.compression} of the TIFF is not supported; save it uncompressed, or with "
            "LZW or deflate"
        )


def check_pixel_count(spec: DecodeImage, height: int, width: int) -> None:
    """Raises `DecodeError` if an image has no pixels, or more than ``spec`` allows."""
    if height < 1 or width < 1:
        raise DecodeError(f"expected an image of at least 1x1 pixels, found {width}x{height}")
    if height * width > spec.max_pixels:
        size = f"{width}x{height} pixels"
        raise DecodeError(f"{size} are more than DecodeImage's max_pixels, {spec.max_pixels}")


def check_size(size: int) -> None:
    """Raises `DecodeError` if an encoded image has more bytes than ``MAX_IMAGE_BYTES``."""
    if size > MAX_IMAGE_BYTES:
        raise DecodeError(f"expected an image file of at most {MAX_IMAGE_BYTES} bytes, found {size}")


def _count_channels(count: int) -> str:
    return "1 channel" if count == 1 else f"{count} channels"
