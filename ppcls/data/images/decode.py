"""Decodes images with OpenCV, Pillow and tifffile. All other backends must produce the same pixels.

Decisions:
- Pillow decodes JPEG 2000 of 8 bits. OpenCV 4.11, the newest for Paddle 2.6, contains an old OpenJPEG:
  fuzzing ended the process with SIGSEGV after 10 s. Pillow has no RGB of 16 bits, so OpenCV decodes such
  images, and `read_jpeg2000_header` rejects them if OpenCV is older than 4.12.
- CMYK is converted as by DALI, which rounds down. OpenCV differs by up to 2 levels. DALI itself uses OpenCV
  for CMYK with an EXIF orientation.
"""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ppcls.data.images.contents import describe_damage
from ppcls.data.images.header import DecodeError, Header, check_header, check_size
from ppcls.data.images.jpeg import read_jpeg_orientation
from ppcls.data.images.read_header import read_header
from ppcls.data.images.tiff import decode_tiff
from ppcls.data.transforms.specs.basic import DecodeImage
from ppcls.errors import counted

Array = NDArray[Any]
_NO_MEMORY = "there is not enough memory to decode the image"

# Undoes EXIF orientations 2..8: whether to swap rows and columns, and then the strides of rows and columns.
_TURNS = {
    2: (False, 1, -1),
    3: (False, -1, -1),
    4: (False, -1, 1),
    5: (True, 1, 1),
    6: (True, 1, -1),
    7: (True, -1, -1),
    8: (True, -1, 1),
}


def decode(spec: DecodeImage, encoded: bytes | memoryview, header: Header | None = None) -> Array:
    """Decodes an image and applies its EXIF orientation.

    Args:
        spec: Expected channels, dtype and limits.
        encoded: Bytes of the file.
        header: Result of `read_header`, if the header was already read.

    Returns:
        The image, [H, W, spec.channels] of ``spec.dtype``. Pixels of another bit depth are scaled (255 to
        65535, or the reverse) and rounded.

    Raises:
        DecodeError: The bytes are not an image or are damaged, or `check_header` rejects the image, or there
            is not enough memory to decode it.
    """
    try:
        return _decode(spec, encoded, header)
    except MemoryError:  # one image must not end a run or a server
        raise DecodeError(_NO_MEMORY) from None
    except cv2.error as error:  # from the conversions of decoded pixels
        if error.code != cv2.Error.StsNoMem:
            raise
        raise DecodeError(_NO_MEMORY) from None


def _decode(spec: DecodeImage, encoded: bytes | memoryview, header: Header | None) -> Array:
    check_size(len(encoded))
    header = header or read_header(encoded)
    check_header(spec, header)
    if header.format == "TIFF" and not header.codec and header.colours != "YCbCr":
        # OpenCV has no image type for most numbers of channels, and returns black pixels for some codecs.
        pixels = turn_upright(decode_tiff(encoded, header), header.orientation)
        if pixels.shape[2] < spec.channels:
            pixels = pixels.repeat(spec.channels, axis=2)
    elif header.format == "JPEG2000" and header.bits == 8:
        pixels = _by_pillow(encoded, header)
        if pixels.shape[2] < spec.channels:
            pixels = pixels.repeat(spec.channels, axis=2)
        pixels = pixels[:, :, : spec.channels]  # without alpha if the chain has three channels
    elif header.colours == "CMYK" and read_jpeg_orientation(bytes(encoded)) == 1:
        pixels = _from_cmyk(encoded, header)
    elif spec.channels == 3:
        # With its own depth, so that `_scale_depth` rounds. OpenCV would cut 16-bit samples to 8 bits.
        pixels = _by_opencv(encoded, header, cv2.IMREAD_COLOR | cv2.IMREAD_ANYDEPTH)
        pixels = cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)
    elif spec.channels == 1:
        pixels = _by_opencv(encoded, header, cv2.IMREAD_GRAYSCALE | cv2.IMREAD_ANYDEPTH)[:, :, None]
    else:
        pixels = _with_alpha(encoded, header)
    return _scale_depth(pixels if spec.to_rgb else pixels[:, :, ::-1], spec.dtype)


def _by_opencv(encoded: bytes | memoryview, header: Header, flags: int) -> Array:
    is_webp = header.format == "WEBP"
    if is_webp:  # OpenCV 4.11, the newest for Paddle 2.6, does not turn WebPs
        flags |= cv2.IMREAD_IGNORE_ORIENTATION
    try:
        pixels = cv2.imdecode(np.frombuffer(encoded, np.uint8), flags)
    except cv2.error as error:  # for example if the image has more pixels than OpenCV allows
        if error.code == cv2.Error.StsNoMem:
            raise DecodeError(_NO_MEMORY) from None
        raise DecodeError(f"OpenCV can't decode the image: {error.err}") from None
    if pixels is None:
        raise DecodeError(describe_damage(header.format, bytes(encoded)))
    return np.ascontiguousarray(turn_upright(pixels, header.orientation) if is_webp else pixels)


def _by_pillow(encoded: bytes | memoryview, header: Header) -> Array:
    """Returns the pixels, [H, W, C] uint8."""
    try:
        with Image.open(io.BytesIO(encoded), formats=(header.format,)) as image:
            # A damaged file may have several headers. The limits were checked for the one in ``header``.
            described = (image.height, image.width, len(image.getbands()))
            if described != (header.height, header.width, header.channels):
                raise DecodeError(f"the {header.format} file has several headers that differ; save it again")
            pixels = np.array(image)
    except DecodeError:  # a ValueError
        raise
    except (ArithmeticError, OSError, SyntaxError, ValueError):
        # Pillow raises all of these for damaged files.
        raise DecodeError(describe_damage(header.format, bytes(encoded))) from None
    return pixels.reshape(header.height, header.width, header.channels)


def _from_cmyk(encoded: bytes | memoryview, header: Header) -> Array:
    """Returns the RGB pixels of a CMYK JPEG, [H, W, 3] uint8."""
    inks = _by_pillow(encoded, replace(header, channels=4))  # Pillow undoes the inversion of Adobe's files
    light = 255 - inks.astype(np.uint16)
    return (light[:, :, :3] * light[:, :, 3:] // 255).astype(np.uint8)


def _with_alpha(encoded: bytes | memoryview, header: Header) -> Array:
    pixels = _by_opencv(encoded, header, cv2.IMREAD_UNCHANGED)
    if pixels.ndim != 3 or pixels.shape[2] != 4:
        raise DecodeError(
            f"a {header.format} with {counted(header.channels, 'channel')} can't be decoded; save it as a "
            "TIFF"
        )
    return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_BGRA2RGBA))


def turn_upright(pixels: Array, orientation: int) -> Array:
    """Returns a view of the pixels, [H, W, ...], rotated and flipped according to the EXIF orientation."""
    swap, rows, columns = _TURNS.get(orientation, (False, 1, 1))
    return (pixels.swapaxes(0, 1) if swap else pixels)[::rows, ::columns]


def _scale_depth(pixels: Array, dtype: str) -> Array:
    if pixels.dtype == np.dtype(dtype):
        return pixels
    if dtype == "uint16":
        return pixels.astype(np.uint16) * np.uint16(257)
    return ((pixels.astype(np.uint32) + 128) // 257).astype(np.uint8)
