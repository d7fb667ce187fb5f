"""Reads the headers of TIFF files, and decodes them with tifffile (TIFF 6.0)."""

from __future__ import annotations

import io
import logging
import struct
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray

from ppcls.data.images.header import DecodeError, Header
from ppcls.data.images.jpeg import count_scan_markers, find_scan_markers
from ppcls.data.images.tags import Tags
from ppcls.errors import counted

# A file can cause thousands of messages on the console. The reasons for which it is rejected are reported.
logging.getLogger("tifffile").setLevel(logging.CRITICAL + 1)

Array = NDArray[Any]

# TIFF 6.0 tags
_WIDTH = 256
_HEIGHT = 257
_BITS = 258
_COMPRESSION = 259
_PHOTOMETRIC = 262
_ORIENTATION = 274
_SAMPLES_PER_PIXEL = 277
_PLANAR = 284
_PREDICTOR = 317
_TILE_WIDTH = 322
_TILE_HEIGHT = 323
_DEPTHS = (32997, 32998)  # depth of the image, and of a tile
_SAMPLE_FORMAT = 339
_DNG_VERSION = 50706
_SEPARATE_PLANES = 2
_UNSIGNED = 1
_STRIPS = (273, 279)  # offsets and sizes
_TILES = (324, 325)
_SEGMENTS = (*_STRIPS, *_TILES)
_MAX_SEGMENTS = 1 << 17
_MAX_MARKERS = 1 << 20  # of scans, whose positions are computed
# Limits of tiles, which decoders allocate in full even if the image is smaller. Writers use tiles of up to
# 1,024 x 1,024 pixels for images of any size.
_SMALL_TILE = 1 << 20  # pixels
_PADDED_PIXELS = 1 << 26  # pixels of all tiles of a small image
_PADDING = 4  # maximum number of pixels of all tiles, divided by those of a large image

# Names of the photometric interpretations that this module decodes, with their numbers of samples per pixel.
# RGB and grey with more samples, such as alpha or infrared, are channels whose meaning is not used.
_PHOTOMETRIC_NAMES = {
    (0, 1): "inverted grey",
    (1, 1): "grey",
    (2, 3): "RGB",
    (3, 1): "palette",
    (6, 3): "YCbCr",
}
_OPEN_PHOTOMETRIC = (1, 2)  # grey and RGB
_CMYK = 5

_PACK_BITS = 32773
_JPEG = 7
# Supported compressions: none, LZW, two kinds of deflate, Zstandard, and PackBits.
_COMPRESSIONS = (1, 5, 8, 32946, 50000, _PACK_BITS)
_ZSTANDARD = 50000


def read_tiff_header(data: bytes) -> Header:
    """Reads the header of a TIFF or BigTIFF with one image (TIFF 6.0, sections 2 and 8).

    Raises:
        DecodeError: The TIFF has several pages, repeated tags, samples that are not unsigned integers, or
            colours, a compression or an orientation that some loaders don't decode.
    """
    tags = Tags(data)
    if not tags.last:
        raise DecodeError(
            "expected a TIFF with one page, found several; save one image per file, with interleaved channels"
        )
    if _DNG_VERSION in tags:  # the first image is only a preview
        raise DecodeError("a raw image of a camera (DNG) is not supported; convert the image to JPEG or PNG")
    bits = _read_bits(tags)
    samples = tags.value(_SAMPLES_PER_PIXEL, 1)
    colours = _read_colours(tags, samples)
    _check_tiles(tags)
    codec = _read_codec(tags, colours)
    orientation = tags.value(_ORIENTATION, 1)
    if orientation != 1 and (_TILE_WIDTH in tags or colours == "palette"):
        # DALI fails for tiles, and rounds palettes in another way.
        kind = "tiles" if _TILE_WIDTH in tags else "a palette"
        raise DecodeError(
            f"orientation {orientation} of a TIFF with {kind} is not supported; save the image upright"
        )
    return Header(
        "TIFF",
        height=tags.value(_HEIGHT, 0),
        width=tags.value(_WIDTH, 0),
        channels=3 if colours == "palette" else samples,
        colours=colours,
        bits=bits,
        codec=codec,
        orientation=orientation,
        separate=tags.value(_PLANAR, 1) == _SEPARATE_PLANES and samples > 1,
        scans=_count_scans(tags, data) if codec == "JPEG" else 1,
    )


def _count_scans(tags: Tags, data: bytes) -> int:
    """Returns the number of scans of a TIFF whose strips or tiles are JPEGs, or an upper bound.

    Strips and tiles can share their bytes, so the scans of one JPEG in the file can be those of all tiles.
    Decoders process complete tiles, so a tile that is larger than the image has more scans of the image's
    size.

    Raises:
        DecodeError: A size is missing. Some decoders then read up to the end of the file.
    """
    if (markers := count_scan_markers(data)) > _MAX_MARKERS:
        return markers
    scans = find_scan_markers(data)
    most = 0
    for offsets_tag, sizes_tag in (_STRIPS, _TILES):
        if offsets_tag not in tags and sizes_tag not in tags:
            continue
        offsets = np.array(tags.values(offsets_tag, 0), np.float64)
        sizes = np.array(tags.values(sizes_tag, 0), np.float64)
        if len(offsets) != len(sizes) or not sizes.all():
            raise DecodeError(
                "the TIFF does not contain the sizes of its strips or tiles; save the image again"
            )
        counts = np.searchsorted(scans, offsets + sizes) - np.searchsorted(scans, offsets)
        most = max(most, int(counts.max()))
    pixels = max(1, tags.value(_WIDTH, 0) * tags.value(_HEIGHT, 0))
    return max(1, -(-most * max(pixels, _tile_pixels(tags)) // pixels))


def _tile_pixels(tags: Tags) -> int:
    """Returns the number of pixels of all tiles, 0 without tiles."""
    width = tags.value(_TILE_WIDTH, 0)
    height = tags.value(_TILE_HEIGHT, 0)
    if width < 1 or height < 1:
        return 0
    return -(-tags.value(_WIDTH, 0) // width) * -(-tags.value(_HEIGHT, 0) // height) * width * height


def _check_tiles(tags: Tags) -> None:
    """Checks that tiles are not much larger than the image.

    A file of 98 KB whose only tile has 32768x32768 pixels would need 3.7 GB, whatever size its image has.

    Raises:
        DecodeError: They are, or there are too many strips or tiles, or tiles or image have a depth.
    """
    if any(tags.count(tag) > _MAX_SEGMENTS for tag in _SEGMENTS):
        raise DecodeError(
            f"expected a TIFF of at most {_MAX_SEGMENTS:,} strips or tiles, found more; save it with "
            "larger ones"
        )
    if any(tags.value(tag, 1) != 1 for tag in _DEPTHS):
        raise DecodeError("a TIFF with several layers is not supported; save one image per file")
    if _TILE_WIDTH not in tags and _TILE_HEIGHT not in tags:
        return
    width = tags.value(_WIDTH, 0)
    height = tags.value(_HEIGHT, 0)
    tile_width = tags.value(_TILE_WIDTH, 0)
    tile_height = tags.value(_TILE_HEIGHT, 0)
    if tile_width < 1 or tile_height < 1:
        raise DecodeError(f"expected tiles of at least 1x1 pixels, found {tile_width}x{tile_height}")
    pixels = width * height
    largest = max(_SMALL_TILE, _PADDING * pixels)
    if tile_width * tile_height > largest or (_tile_pixels(tags) > max(_PADDED_PIXELS, _PADDING * pixels)):
        raise DecodeError(
            f"tiles of {tile_width}x{tile_height} pixels are too large for an image of {width}x{height} "
            "pixels; save it with smaller tiles"
        )


def _read_bits(tags: Tags) -> int:
    bits = set(tags.values(_BITS, 1))
    formats = set(tags.values(_SAMPLE_FORMAT, _UNSIGNED))
    if formats != {_UNSIGNED} or not (bits == {8} or bits == {16}):
        kind = "float" if 3 in formats else "signed" if 2 in formats else "unsigned"
        sample_type = f"{'/'.join(map(str, sorted(bits)))}-bit {kind}"
        raise DecodeError(f"expected a TIFF of 8- or 16-bit unsigned samples, found {sample_type}")
    return int(bits.pop())


def _read_colours(tags: Tags, samples: int) -> str:
    if _PHOTOMETRIC not in tags:
        raise DecodeError("the TIFF does not say what its samples mean (tag 262); save the image again")
    photometric = tags.value(_PHOTOMETRIC, 0)
    name = _PHOTOMETRIC_NAMES.get((photometric, samples))
    if name is None and photometric in _OPEN_PHOTOMETRIC:
        return "channels"
    if name is None:
        name = "CMYK" if photometric == _CMYK else _enum_name(tifffile.PHOTOMETRIC, photometric)
        raise DecodeError(
            f"a TIFF with {counted(samples, 'sample')} per pixel of {name} is not supported; expected grey, "
            "RGB, a palette or YCbCr; convert the image"
        )
    return name


def _read_codec(tags: Tags, colours: str) -> str:
    """Returns ``"JPEG"``, or an empty text for all lossless compressions.

    DALI and OpenCV contain different sets of codecs. For some of the missing ones, OpenCV returns black
    pixels without an error.
    """
    compression = tags.value(_COMPRESSION, 1)
    predictor = tags.value(_PREDICTOR, 1)
    if compression == _JPEG and colours in ("grey", "RGB", "YCbCr"):
        return "JPEG"
    # OpenCV decodes YCbCr. It lacks Zstandard, and rejects tiles that are not compressed.
    unsupported = compression == _ZSTANDARD or _TILE_WIDTH in tags
    if compression not in _COMPRESSIONS or (colours == "YCbCr" and unsupported):
        name = _enum_name(tifffile.COMPRESSION, compression)
        raise DecodeError(
            f"compression {compression} ({name}) of a TIFF of {colours} is not supported; save it "
            "uncompressed, or with LZW or deflate"
        )
    if compression == _PACK_BITS and predictor != 1:
        raise DecodeError(
            "a TIFF with PackBits compression and a predictor is not supported; save it without a predictor"
        )
    return ""


def _enum_name(kind: Any, number: int) -> str:
    try:
        return str(kind(number).name)
    except ValueError:
        return f"unknown kind {number}"


def decode_tiff(encoded: bytes | memoryview, header: Header) -> Array:
    """Decodes a TIFF with a lossless compression.

    Returns:
        The image before its orientation is applied, [H, W, header.channels] uint8 or uint16. A palette's
        colours have 16 bits.

    Raises:
        DecodeError: The file is damaged.
        MemoryError: There is not enough memory.
    """
    pixels, palette = _read_page(encoded, header)
    if header.colours == "inverted grey":
        return np.iinfo(pixels.dtype).max - pixels
    if palette is None:
        return pixels
    return np.asarray(palette.T[pixels[:, :, 0]])


def _read_page(encoded: bytes | memoryview, header: Header) -> tuple[Array, Array | None]:
    """Returns the stored samples, [H, W, C], and the palette, [3, 256] uint16, or None."""
    stored = 1 if header.colours == "palette" else header.channels
    shape = header.height, header.width, stored
    try:
        with tifffile.TiffFile(io.BytesIO(encoded)) as file:
            page: Any = file.pages[0]
            if page.shape != (shape if stored > 1 else shape[:2]):  # the page may have more dimensions
                raise DecodeError(
                    f"the header of the TIFF describes the shape {list(shape)}, but tifffile reads "
                    f"{list(page.shape)}; save the image again"
                )
            if any(
                offset + count > len(encoded)
                for offset, count in zip(page.dataoffsets, page.databytecounts, strict=True)
            ):
                raise DecodeError("the file is truncated: it ends before its last pixels")
            palette = page.colormap if header.colours == "palette" else None
            if header.colours == "palette" and np.asarray(palette).shape != (3, 256):
                raise DecodeError("the palette of the TIFF does not have 256 colours; save the image again")
            return np.asarray(page.asarray(maxworkers=1)).reshape(shape), palette
    except (DecodeError, MemoryError):  # `ppcls.data.images.decode.decode` reports missing memory
        raise
    except ImportError as error:
        # tifffile imports a codec when the first image needs it, for which there may be no memory.
        raise DecodeError(f"tifffile can't load the decoder of this compression: {error}") from None
    except (
        ArithmeticError,
        AssertionError,
        AttributeError,
        LookupError,
        OSError,
        RuntimeError,
        TypeError,
        ValueError,
        struct.error,
    ) as error:
        # tifffile and its decompressors raise all of these for damaged files.
        raise DecodeError(f"tifffile can't decode the image: {error}") from None
