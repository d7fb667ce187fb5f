"""Shrinks encoded images without changing their format, channels and bit depth."""

from __future__ import annotations

import io
import os
import struct

import cv2
import numpy as np
import tifffile
from PIL import Image, ImageOps

from ppcls.data.images.decode import Array, turn_upright
from ppcls.data.images.header import DecodeError, Header, check_pixel_count
from ppcls.data.images.read_header import read_header
from ppcls.data.transforms.specs import DecodeImage

# A JPEG is decoded at 1/8, 1/4 or 1/2 of its size if this is still at least _GAP times the size of the
# result.
_GAP = 3.0
_LIMIT = DecodeImage()
_DEEP = 16  # bits per sample
_OPENCV_ENDINGS = {"PNG": ".png", "JPEG2000": ".jp2", "PPM": ".ppm"}
_PLAIN_TIFF = (0, 1, 2)  # photometric interpretations: white is zero, black is zero, RGB
_EXIF_ORIENTATION = 0x0112


def scaled_size(height: int, width: int, short_side: int) -> tuple[int, int]:
    """Returns the height and width in pixels after scaling the short side to ``short_side``."""
    scale_from = min(height, width)
    return (
        max(1, round(height * short_side / scale_from)),
        max(1, round(width * short_side / scale_from)),
    )


def shrink(encoded: bytes, short_side: int, quality: int) -> bytes | None:
    """Shrinks an image by averaging, so that its short side has ``short_side`` pixels.

    Applies the EXIF orientation and removes EXIF data. Keeps the colour profile, and grey, CMYK and alpha
    channels. Converts palettes to colours.

    Args:
        encoded: Bytes of the file.
        short_side: Length of the short side in pixels.
        quality: Quality of JPEG and WebP, 1 to 100. Other formats are lossless.

    Returns:
        Bytes of the new file, or None if the image is already small enough.

    Raises:
        DecodeError: The bytes are not an image or are damaged, or the image has more pixels than
            `DecodeImage` allows.
    """
    header = read_header(encoded)
    check_pixel_count(_LIMIT, header.height, header.width)
    if min(header.height, header.width) <= short_side:
        return None
    try:
        if header.format == "TIFF":
            return _shrink_tiff(encoded, header, short_side, quality)
        if header.bits == _DEEP and header.format in _OPENCV_ENDINGS:  # Pillow would reduce it to 8 bits
            return _shrink_deep(encoded, header.format, short_side)
        return _shrink_with_pillow(encoded, header.format, short_side, quality)
    except DecodeError:
        raise
    except (OSError, ValueError, RuntimeError, SyntaxError, LookupError, TypeError, struct.error) as error:
        raise DecodeError(f"the image can't be decoded: {error}") from None  # errors of Pillow and tifffile
    except cv2.error as error:
        raise DecodeError(f"the image can't be decoded: {error.err}") from None


def _shrink_with_pillow(encoded: bytes, name: str, short_side: int, quality: int) -> bytes:
    with Image.open(io.BytesIO(encoded), formats=(name,)) as image:
        # A damaged JPEG 2000 may have several headers, of which Pillow uses another one than `read_header`.
        check_pixel_count(_LIMIT, image.height, image.width)
        height, width = scaled_size(image.height, image.width, short_side)
        drafted = image.draft("", (int(_GAP * width), int(_GAP * height)))
        image.load()
        if (image.width < image.height) != (width < height):  # Pillow rotates some TIFFs when it loads them
            height, width = width, height
        box = drafted[1] if drafted else None
        averageable = _averageable(image)
        # Resizes channels separately, because Pillow would weight colours by alpha, which training ignores.
        bands = [
            band.resize((width, height), Image.Resampling.BICUBIC, box, _GAP)
            for band in (averageable.split() if averageable.mode in ("LA", "RGBA") else [averageable])
        ]
        small = Image.merge(averageable.mode, bands) if len(bands) > 1 else bands[0]
        small.info = image.info
        small = ImageOps.exif_transpose(small)
        profile = image.info.get("icc_profile")
    small.info.clear()  # for example the transparent colour of the palette
    # Pillow holds the global interpreter lock while it writes to a Python object, but not while it writes to
    # a file, such as this one in memory.
    with os.fdopen(os.memfd_create("image"), "w+b") as file:
        small.save(file, name, quality=quality, icc_profile=profile)
        file.seek(0)
        return file.read()


def _averageable(image: Image.Image) -> Image.Image:
    """Returns the image with palettes and single bits converted, because these can't be averaged."""
    if image.mode in ("P", "PA"):
        return image.convert("RGBA" if image.has_transparency_data else "RGB")
    return image.convert("L") if image.mode == "1" else image


def _decode(encoded: bytes) -> Array:
    pixels = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_UNCHANGED)
    if pixels is None:
        raise DecodeError("not an image that can be decoded")
    return np.asarray(pixels)


def _resize(pixels: Array, short_side: int) -> Array:
    """Resizes an image by averaging areas, four channels at a time, because OpenCV supports at most four."""
    height, width = scaled_size(pixels.shape[0], pixels.shape[1], short_side)
    groups = [pixels] if pixels.ndim == 2 else np.split(pixels, range(4, pixels.shape[2], 4), axis=2)
    small = [cv2.resize(group, (width, height), interpolation=cv2.INTER_AREA) for group in groups]
    return np.asarray(small[0] if len(small) == 1 else np.dstack(small))


def _shrink_deep(encoded: bytes, name: str, short_side: int) -> bytes:
    with Image.open(io.BytesIO(encoded), formats=(name,)) as image:
        orientation = int(image.getexif().get(_EXIF_ORIENTATION, 1))
    pixels = turn_upright(_resize(_decode(encoded), short_side), orientation)
    done, data = cv2.imencode(_OPENCV_ENDINGS[name], np.ascontiguousarray(pixels))
    if not done:
        raise DecodeError(f"OpenCV can't write the image as {name}")
    return bytes(data.tobytes())


def _shrink_tiff(encoded: bytes, header: Header, short_side: int, quality: int) -> bytes:
    if header.separate:
        raise DecodeError("the TIFF has separate planes; save it with interleaved channels")
    with tifffile.TiffFile(io.BytesIO(encoded)) as tiff:
        page = tiff.pages[0]
        assert isinstance(page, tifffile.TiffPage)
        photometric = int(page.photometric)
        if photometric not in _PLAIN_TIFF:  # for example a palette or YCbCr
            return _shrink_with_pillow(encoded, "TIFF", short_side, quality)
        pixels = page.asarray(maxworkers=1)
        compressed = page.compression != 1
        extra = [int(sample) for sample in page.extrasamples]
    small = turn_upright(_resize(pixels, short_side), header.orientation)
    file = io.BytesIO()
    tifffile.imwrite(
        file,
        np.ascontiguousarray(small),
        photometric=photometric,
        planarconfig="contig" if header.channels > 1 else None,
        extrasamples=extra or None,
        compression="zlib" if compressed else None,
    )
    return file.getvalue()
