"""Makes an encoded image smaller, in its own format, with as many channels of the same depth."""

from __future__ import annotations

import io
import os
import struct

import cv2
import numpy as np
import tifffile
from PIL import Image, ImageOps

from ppcls.data.images.decode import Array, turn_upright
from ppcls.data.images.header import DecodeError, Header, check_pixel_count, read_header
from ppcls.data.transforms.specs import DecodeImage

_GAP = 3.0  # a JPEG is decoded at an eighth, quarter or half of its size where that is this many times ours
_LIMIT = DecodeImage()
_DEEP_PNG = 16  # bits a sample; in byte 24, of the header chunk
_OPENCV_ENDINGS = {"PNG": ".png", "JPEG2000": ".jp2", "PPM": ".ppm"}
_PLAIN_TIFF = (0, 1, 2)  # photometric: white is zero, black is zero, RGB; any number of channels has one
_EXIF_ORIENTATION = 0x0112


def scaled_size(height: int, width: int, most: int) -> tuple[int, int]:
    """Returns the height and width of an image whose short side becomes ``most``, in proportion."""
    short = min(height, width)
    return max(1, round(height * most / short)), max(1, round(width * most / short))


def shrink(encoded: bytes, most: int, quality: int) -> bytes | None:
    """Shrinks an image so that its short side is ``most`` pixels, averaging over all source pixels.

    It comes out upright: the pixels are turned as EXIF's orientation said, which goes, as all of EXIF does;
    a colour profile stays. Colours are as before: grey, CMYK or alpha. A palette becomes colours.

    Args:
        encoded: The file's bytes.
        most: Pixels.
        quality: 1 to 100, of JPEG and WebP; the other formats lose nothing.

    Returns:
        The new file's bytes; None where the short side is no longer than ``most``.

    Raises:
        DecodeError: The bytes are no image, are damaged, or have more pixels than `DecodeImage` takes.
    """
    header = read_header(encoded)
    check_pixel_count(_LIMIT, header.height, header.width)
    if min(header.height, header.width) <= most:
        return None
    try:
        if header.format == "TIFF":
            return _shrink_tiff(encoded, header, most, quality)
        if _is_deep(encoded, header.format):
            return _shrink_deep(encoded, header.format, most)
        return _by_pillow(encoded, header.format, most, quality)
    except DecodeError:
        raise
    except (OSError, ValueError, RuntimeError, SyntaxError, LookupError, TypeError, struct.error) as error:
        raise DecodeError(f"can't be decoded: {error}") from None  # what Pillow and tifffile raise
    except cv2.error as error:
        raise DecodeError(f"can't be decoded: {error.err}") from None


def _by_pillow(encoded: bytes, name: str, most: int, quality: int) -> bytes:
    with Image.open(io.BytesIO(encoded), formats=(name if name != "MPO" else "JPEG",)) as image:
        height, width = scaled_size(image.height, image.width, most)
        drafted = image.draft("", (int(_GAP * width), int(_GAP * height)))
        image.load()
        if (image.width < image.height) != (width < height):  # Pillow turns some TIFFs by itself
            height, width = width, height
        box = drafted[1] if drafted else None
        whole = _averageable(image)
        # Each channel by itself: Pillow would weigh colours by alpha, which training leaves out.
        bands = [
            band.resize((width, height), Image.Resampling.BICUBIC, box, _GAP)
            for band in (whole.split() if whole.mode in ("LA", "RGBA") else [whole])
        ]
        small = Image.merge(whole.mode, bands) if len(bands) > 1 else bands[0]
        small.info = image.info
        small = ImageOps.exif_transpose(small)
        profile = image.info.get("icc_profile")
    small.info.clear()  # such as a colour that stood for transparency
    # A file of the system's, in memory: into one of Python's, Pillow would encode under Python's lock.
    with os.fdopen(os.memfd_create("image"), "w+b") as file:
        small.save(file, "JPEG" if name == "MPO" else name, quality=quality, icc_profile=profile)
        file.seek(0)
        return file.read()


def _averageable(image: Image.Image) -> Image.Image:
    """Returns the image in a mode whose numbers can be averaged, as a palette's and single bits can't."""
    if image.mode in ("P", "PA"):
        return image.convert("RGBA" if image.has_transparency_data else "RGB")
    return image.convert("L") if image.mode == "1" else image


def _is_deep(encoded: bytes, name: str) -> bool:
    """Whether samples have more than 8 bits, of which Pillow would keep 8."""
    if name == "PNG":
        return encoded[24] == _DEEP_PNG
    if name in _OPENCV_ENDINGS:
        return _decode(encoded).dtype != np.uint8
    return False


def _decode(encoded: bytes) -> Array:
    pixels = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_UNCHANGED)
    if pixels is None:
        raise DecodeError("not an image that can be decoded")
    return np.asarray(pixels)


def _resize(pixels: Array, most: int) -> Array:
    """Averages areas; OpenCV does so for four channels at most, so more of them come in turns."""
    height, width = scaled_size(pixels.shape[0], pixels.shape[1], most)
    parts = [pixels] if pixels.ndim == 2 else np.split(pixels, range(4, pixels.shape[2], 4), axis=2)
    small = [cv2.resize(each, (width, height), interpolation=cv2.INTER_AREA) for each in parts]
    return np.asarray(small[0] if len(small) == 1 else np.dstack(small))


def _shrink_deep(encoded: bytes, name: str, most: int) -> bytes:
    with Image.open(io.BytesIO(encoded), formats=(name,)) as image:
        orientation = int(image.getexif().get(_EXIF_ORIENTATION, 1))
    pixels = turn_upright(_resize(_decode(encoded), most), orientation)
    done, data = cv2.imencode(_OPENCV_ENDINGS[name], np.ascontiguousarray(pixels))
    if not done:
        raise DecodeError(f"OpenCV can't write it as {name}")
    return bytes(data.tobytes())


def _shrink_tiff(encoded: bytes, header: Header, most: int, quality: int) -> bytes:
    if header.separate:
        raise DecodeError("a TIFF of separate planes; save it with interleaved channels")
    with tifffile.TiffFile(io.BytesIO(encoded)) as tiff:
        page = tiff.pages[0]
        assert isinstance(page, tifffile.TiffPage)
        photometric = int(page.photometric)
        if photometric not in _PLAIN_TIFF:  # a palette, or colours that belong to a compression
            return _by_pillow(encoded, "TIFF", most, quality)
        pixels = page.asarray(maxworkers=1)
        compressed, extra = page.compression != 1, [int(each) for each in page.extrasamples]
    small = turn_upright(_resize(pixels, most), header.orientation)
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
