"""What an encoded image says of itself before it is decoded, and whether a chain takes it."""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from typing import Any

from PIL import Image
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from ppcls.data.transforms.specs import DecodeImage

# DecodeImage's max_pixels is the limit; Pillow's own would warn below it and refuse above.
Image.MAX_IMAGE_PIXELS = None

# What both OpenCV and DALI decode. Pillow opens all but TIFF, of which it knows few kinds.
_OPENED_BY_PILLOW = ("BMP", "JPEG", "JPEG2000", "PNG", "PPM", "WEBP")
_TIFF_MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # either byte order, small and big
_BIG_TIFF = 43

# Channels of Pillow's modes; a palette and inks stand for colours.
_CHANNELS = {"P": 3, "PA": 4, "CMYK": 3}
_ORIENTATION = 0x0112  # EXIF 2.32, 4.6.4; TIFF has the same tag

# TIFF 6.0 tags
_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC = 256, 257, 258, 259, 262
_SAMPLES_PER_PIXEL, _PLANAR, _PREDICTOR, _SAMPLE_FORMAT = 277, 284, 317, 339
_PALETTE, _SEPARATE_PLANES, _UNSIGNED = 3, 2, 1
_MOST_TAGS = 1 << 16
_COLOURS = (2, 6)  # RGB, YCbCr
_PACK_BITS = 32773
_TIFF_COMPRESSIONS = {1, 5, 8, 32946, 50000, _PACK_BITS}  # none, LZW, deflate twice, Zstandard

_CODESTREAM = b"\xff\x4f\xff\x51"  # JPEG 2000's SOC and SIZ

_NO_IMAGE = "not an image that can be decoded"


class DecodeError(ValueError):
    """Bytes that are not an image, or not one that the chain takes."""


@dataclass(frozen=True)
class Header:
    """What is known of an image before it is decoded.

    Attributes:
        format: Pillow's name, such as ``"JPEG"``.
        height: In pixels, as stored.
        width: In pixels, as stored.
        channels: As decoded without conversion; 3 for a palette.
        orientation: EXIF's, 1..8; known of TIFF and of images with alpha, 1 for all others.
        separate: Whether each channel of a TIFF is stored by itself.
        compression: TIFF's number; 1, none, for all others.
        coloured: Whether the channels are known to be grey, a palette, or colours; or whatever a TIFF holds.
    """

    format: str
    height: int
    width: int
    channels: int
    orientation: int = 1
    separate: bool = False
    compression: int = 1
    coloured: bool = True


def read_header(encoded: Any) -> Header:
    """Reads the header of an image; decodes no pixel.

    Args:
        encoded: The file's bytes, or a view of them.

    Raises:
        DecodeError: The bytes are no image of a known format, or a TIFF of several pages, or of samples
            that are not of 8 or 16 bits.
    """
    file = io.BytesIO(encoded)
    try:
        if file.getbuffer()[:4] in _TIFF_MAGIC:
            return _read_tiff_header(file)
        return _read_other_header(file)
    except DecodeError:
        raise
    except (OSError, ValueError, SyntaxError, EOFError, LookupError, TypeError, struct.error):
        # What Pillow raises where bytes lead it astray.
        raise DecodeError(_NO_IMAGE) from None


def _read_other_header(file: io.BytesIO) -> Header:
    with Image.open(file, formats=_OPENED_BY_PILLOW) as image:
        channels = _CHANNELS.get(image.mode, len(image.getbands()))
        has_exif = channels == 4 and "exif" in image.info
        orientation = image.getexif().get(_ORIENTATION, 1) if has_exif else 1
        if image.format == "JPEG2000" and _codestream_size(file.getvalue()) != image.size:
            raise DecodeError("a JPEG 2000 file whose header and codestream differ in size")
        return Header(image.format or "", image.height, image.width, channels, orientation)


def _codestream_size(data: bytes) -> tuple[int, int]:
    """Returns the width and height that a decoder goes by (ISO 15444-1, A.5.1)."""
    at = 0
    while data[at : at + 4] != _CODESTREAM:
        length, kind = struct.unpack_from(">I4s", data, at)  # of a box; its content is what is looked for
        head = 8
        if length == 1:
            (length,), head = struct.unpack_from(">Q", data, at + 8), 16
        if kind != b"jp2c" and length < head:
            raise DecodeError(_NO_IMAGE)
        at += head if kind == b"jp2c" else length
    right, bottom, left, top = struct.unpack_from(">4I", data, at + 8)
    return right - left, bottom - top


def _read_tiff_header(file: io.BytesIO) -> Header:
    """Reads the only image of a TIFF (TIFF 6.0, sections 2 and 8; BigTIFF alike)."""
    head = file.read(8)
    if _BIG_TIFF in head[2:4]:
        head += file.read(8)
    tags = ImageFileDirectory_v2(head)
    _refuse_repeats(file, head, tags.next)
    file.seek(tags.next)
    tags.load(file)
    if tags.next:
        raise DecodeError("a TIFF of several pages; save one image a file, its channels interleaved")
    bits, formats = set(tags.get(_BITS, (1,))), set(tags.get(_SAMPLE_FORMAT, (_UNSIGNED,)))
    if formats != {_UNSIGNED} or not (bits == {8} or bits == {16}):
        kind = "float" if 3 in formats else "signed" if 2 in formats else "unsigned"
        found = f"{'/'.join(map(str, sorted(bits)))}-bit {kind}"
        raise DecodeError(f"expected a TIFF of 8- or 16-bit unsigned samples, found {found}")
    if tags.get(_COMPRESSION) == _PACK_BITS and tags.get(_PREDICTOR, 1) != 1:
        raise DecodeError("a PackBits TIFF with a predictor: one reader undoes it, another does not")
    samples, photometric = int(tags.get(_SAMPLES_PER_PIXEL, 1)), tags.get(_PHOTOMETRIC)
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


def _refuse_repeats(file: io.BytesIO, head: bytes, start: int) -> None:
    """Refuses a tag that is told twice: of two widths, one reader goes by the first, another by the last."""
    order, big = "<" if head[:1] == b"I" else ">", _BIG_TIFF in head[2:4]
    count, size = (8, 20) if big else (2, 12)  # bytes of the number of entries, and of one
    file.seek(start)
    entries = file.read(count + size * _MOST_TAGS)
    known = struct.unpack_from(f"{order}{'Q' if big else 'H'}", entries)[0]
    places = range(count, min(count + size * known, len(entries)), size)
    tags = [entries[place : place + 2] for place in places]
    if len(set(tags)) < len(tags):
        raise DecodeError("a TIFF that tells a tag twice; save it anew")


def check_header(spec: DecodeImage, header: Header) -> None:
    """Refuses an image that is not what the chain expects.

    Three channels are colours: grey, a palette, inks and an alpha channel are converted. But what the
    channels of a TIFF are, nobody can tell: it has as many as are expected, or one, a grey image. Any
    other number of channels is the image's own.

    Raises:
        DecodeError: It has another number of channels or too many pixels, or is a kind of TIFF that not
            every backend decodes.
    """
    refuse_large(spec, header.height, header.width)
    if spec.channels != 3:
        taken = header.channels == spec.channels
    elif header.format == "TIFF":
        taken = header.channels in (1, 3)
    else:
        taken = header.channels <= 4
    if not taken:
        raise DecodeError(f"expected {_channels(spec.channels)}, found {_channels(header.channels)}")
    if spec.channels not in (1, 3) and header.orientation != 1:  # DALI fails on it, or garbles it
        raise DecodeError(
            f"EXIF orientation {header.orientation} of {spec.channels} channels; save it upright"
        )
    if header.separate:  # DALI garbles it
        raise DecodeError("a TIFF of separate planes; save it with interleaved channels")
    if not header.coloured and header.compression not in _TIFF_COMPRESSIONS:
        raise DecodeError(
            f"a TIFF of compression {header.compression}; save it uncompressed, or by LZW or deflate"
        )


def refuse_large(spec: DecodeImage, height: int, width: int) -> None:
    """Raises `DecodeError` where an image has more pixels than ``spec`` allows."""
    if height * width > spec.max_pixels:
        found = f"{width}x{height} pixels"
        raise DecodeError(f"{found} are more than DecodeImage's max_pixels, {spec.max_pixels}")


def _channels(count: int) -> str:
    return "1 channel" if count == 1 else f"{count} channels"
