"""Describes encoded images, and checks whether the loaders decode this kind of image to the right pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ppcls.errors import DecodeError as DecodeError
from ppcls.errors import counted

if TYPE_CHECKING:  # only for annotations
    from ppcls.data.transforms.specs.basic import DecodeImage

# A JPEG may have any number of tiny scans, and a decoder processes all pixels for each of them. So the number
# of scans times the number of pixels is limited, to this multiple of max_pixels. Progressive photographs have
# about ten scans.
MAX_SCANS = 32
MAX_IMAGE_BYTES = 1 << 30  # maximum size of an encoded image

# Limits of everything before the pixels, such as comments, profiles and previews. Files of 30 MB can have
# millions of empty segments, which keep a parser busy for 20 s. Photographs have less than 100 segments.
MAX_METADATA_PARTS = 10_000  # segments, chunks, boxes or tags
MAX_METADATA_BYTES = 1 << 24

NO_IMAGE = "not an image that can be decoded"

# The kinds of images for which OpenCV, tifffile and DALI were compared with a reference, pixel by pixel
# (tests/data/images/test_kinds.py). DALI and OpenCV decode many other kinds to wrong pixels without an error:
# OpenCV returns black images for codecs that its libtiff lacks, and DALI does not scale 12-bit JPEG 2000.
_SUPPORTED: dict[str, dict[str, tuple[int, ...]]] = {
    "BMP": {"grey": (1, 4, 8), "palette": (1, 4, 8), "RGB": (8,)},
    "JPEG": {"grey": (8,), "RGB": (8,), "CMYK": (8,)},
    "JPEG2000": {"grey": (8, 16), "RGB": (8, 16), "RGB with alpha": (8, 16)},
    "PNG": {
        "grey": (1, 2, 4, 8, 16),
        "grey with alpha": (8, 16),
        "palette": (1, 2, 4, 8),
        "RGB": (8, 16),
        "RGB with alpha": (8, 16),
    },
    "PPM": {"grey": (1, 8, 16), "RGB": (8, 16)},
    "TIFF": {
        "grey": (8, 16),
        "inverted grey": (8,),
        "palette": (8,),
        "RGB": (8, 16),
        "YCbCr": (8,),
        "channels": (8, 16),
    },
    "WEBP": {"RGB": (8,), "RGB with alpha": (8,)},
}


@dataclass(frozen=True)
class Header:
    """Properties of an encoded image.

    Attributes:
        format: Name of the format, such as ``"JPEG"``; the same as Pillow's, except that a JPEG with several
            images is also a JPEG.
        height: Stored height in pixels.
        width: Stored width in pixels.
        channels: Number of channels after decoding without conversion; 3 for a palette.
        colours: Meaning of the stored channels, such as ``"grey"``, ``"RGB with alpha"`` or ``"CMYK"``;
            ``"channels"`` if they have no meaning that readers know.
        bits: Stored bits per sample.
        codec: Name of the codec if a format has several, else an empty text.
        orientation: EXIF orientation, 1..8. It is read for TIFFs, for WebPs and for images with four
            channels; 1 for all other images.
        separate: Whether a TIFF stores each channel as a separate plane.
        scans: Number of scans of a JPEG, or of a TIFF whose strips or tiles are JPEGs, or an upper bound; 1
            for other formats.
    """

    format: str
    height: int
    width: int
    channels: int
    colours: str = "RGB"
    bits: int = 8
    codec: str = ""
    orientation: int = 1
    separate: bool = False
    scans: int = 1


def check_kind(header: Header) -> None:
    """Checks that all loaders decode this kind of image to the same, right pixels.

    Raises:
        DecodeError: The format, colours or bits per sample are not supported.
    """
    kinds = _SUPPORTED[header.format]
    if header.bits not in kinds.get(header.colours, ()):
        expected = ", ".join(f"{name} of {' or '.join(map(str, bits))} bits" for name, bits in kinds.items())
        kind = f"a {header.format} of {header.colours} with {header.bits} bits per sample"
        raise DecodeError(f"{kind} is not supported; expected {expected}; convert the image")


def check_header(spec: DecodeImage, header: Header) -> None:
    """Checks that the header of an image meets the requirements of the chain.

    If ``spec.channels`` is 3, images with grey, palette, CMYK or alpha channels are accepted, because they
    can be converted to RGB. The meaning of a TIFF's channels is unknown, so a TIFF must then have one channel
    (grey) or three. If ``spec.channels`` is not 3, the image must have exactly this number of channels.

    Raises:
        DecodeError: The image has an unexpected number of channels, too many pixels or scans, or is of a kind
            that some backends can't decode to this number of channels.
    """
    check_pixel_count(spec, header.height, header.width)
    if header.scans * header.height * header.width > MAX_SCANS * spec.max_pixels:
        described = f"{header.scans} scans of {header.width}x{header.height} pixels"
        raise DecodeError(
            f"the {header.format} has {described}; expected at most {MAX_SCANS} times DecodeImage's "
            f"max_pixels, {spec.max_pixels}, for all scans together"
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
    if spec.channels == 2 and header.format != "TIFF":  # OpenCV has no image type of two channels
        raise DecodeError(f"a {header.format} with 2 channels can't be decoded; save it as a TIFF")
    if spec.channels == 3 and header.channels == 1 and header.codec == "codestream":  # both backends fail
        raise DecodeError(
            "a grey JPEG 2000 codestream can't be decoded to 3 channels; save it as a .jp2 file"
        )
    if spec.channels not in (1, 3) and header.orientation != 1:  # DALI fails or returns wrong pixels
        raise DecodeError(
            f"EXIF orientation {header.orientation} is not supported for "
            f"{counted(spec.channels, 'channel')}; save the image upright"
        )
    if header.separate:  # DALI returns wrong pixels
        raise DecodeError("the TIFF has separate planes; save it with interleaved channels")


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


def check_metadata(name: str, parts: int, size: int) -> None:
    """Checks the number and the size of the parts of a file before its pixels.

    Args:
        name: Name of the format, see `Header.format`.
        parts: Number of segments, chunks, boxes or tags.
        size: Their size in bytes.

    Raises:
        DecodeError: There are too many parts or bytes.
    """
    if parts > MAX_METADATA_PARTS:
        raise DecodeError(
            f"expected a {name} of at most {MAX_METADATA_PARTS:,} segments, chunks, boxes or tags, found "
            "more; save the image again"
        )
    if size > MAX_METADATA_BYTES:
        raise DecodeError(
            f"expected a {name} with at most {MAX_METADATA_BYTES:,} bytes before its pixels and in its tags, "
            "found more; save the image without previews and comments"
        )


def _count_channels(count: int) -> str:
    return counted(count, "channel")
