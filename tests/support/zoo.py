"""Creates valid and invalid image files of many kinds from one photograph and one noise image."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray
from PIL import Image
from skimage import data

Array = NDArray[Any]
SIDE = 20_000  # of the huge image


def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def tiff(pixels: Array, **options: Any) -> bytes:
    """Writes [H, W, C] as it is, without a meaning of its channels unless ``photometric`` gives one."""
    file = io.BytesIO()
    layout = {"photometric": "minisblack", "planarconfig": "contig" if pixels.shape[2] > 1 else None}
    tifffile.imwrite(file, pixels if pixels.shape[2] > 1 else pixels[:, :, 0], **{**layout, **options})
    return file.getvalue()


def noise(channels: int, dtype: str = "uint16", height: int = 30, width: int = 40) -> Array:
    """Returns [height, width, channels] of random pixels."""
    return np.random.default_rng(channels).integers(0, np.iinfo(dtype).max, (height, width, channels), dtype)


def turned() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


@cache
def make_zoo() -> dict[str, bytes]:
    return dict([*_photographs(), *_tiffs(), *_spoilt()])


def _photograph() -> Image.Image:
    return Image.fromarray(data.chelsea()[40:137, 100:231])


def _photographs() -> Iterator[tuple[str, bytes]]:
    photo = _photograph()
    grey = photo.convert("L")
    alpha = photo.copy()
    alpha.putalpha(Image.fromarray(np.linspace(0, 255, photo.height, dtype=np.uint8)[:, None].repeat(131, 1)))
    for kind in ("JPEG", "PNG", "BMP", "WEBP", "JPEG2000", "PPM"):
        yield kind.lower(), encode(photo, kind)
        yield f"grey {kind.lower()}", encode(grey, kind)
    for kind, options in (("PNG", {}), ("WEBP", {"lossless": True}), ("JPEG2000", {})):
        yield f"alpha {kind.lower()}", encode(alpha, kind, **options)
    yield "grey alpha png", encode(alpha.convert("LA"), "PNG")
    yield "palette png", encode(photo.quantize(64), "PNG")
    yield "transparent palette png", encode(photo.quantize(64), "PNG", transparency=3)
    yield "transparent png", encode(photo, "PNG", transparency=(1, 2, 3))
    yield "transparent grey png", encode(grey, "PNG", transparency=3)
    yield "two colours png", encode(grey.convert("1"), "PNG")
    yield "16-bit grey png", encode(Image.fromarray(noise(1)[:, :, 0]), "PNG")
    yield "cmyk jpeg", encode(photo.convert("CMYK"), "JPEG")
    yield "turned jpeg", encode(photo, "JPEG", exif=turned())
    yield "turned grey jpeg", encode(grey, "JPEG", exif=turned())
    yield "turned png", encode(photo, "PNG", exif=turned())
    yield "turned alpha png", encode(alpha, "PNG", exif=turned())
    yield "one pixel jpeg", encode(photo.crop((0, 0, 1, 1)), "JPEG")
    yield "one pixel png", encode(photo.crop((0, 0, 1, 1)), "PNG")
    yield "jpeg and more behind it", encode(photo, "JPEG") + b"\0junk" * 9


def _tiffs() -> Iterator[tuple[str, bytes]]:
    for channels in (1, 2, 3, 4, 5, 17):
        for dtype in ("uint8", "uint16"):
            yield f"{dtype} tiff of {channels}", tiff(noise(channels, dtype))
    five = noise(5)
    for compression in ("lzw", "zlib", "packbits", "zstd", "lzma", "lerc"):
        yield f"{compression} tiff", tiff(five, compression=compression)
    for compression in ("lzw", "zlib", "packbits"):
        yield f"predicted {compression} tiff", tiff(five, compression=compression, predictor=True)
    yield "big-endian tiff", tiff(five, byteorder=">")
    yield "bigtiff", tiff(five, bigtiff=True)
    yield "tiled tiff", tiff(five, tile=(16, 16))
    yield "striped tiff", tiff(five, rowsperstrip=7)
    for orientation in range(1, 9):
        tag = [(274, "H", 1, orientation, True)]
        yield f"tiff of 5 turned {orientation}", tiff(five, extratags=tag)
        yield f"tiff of 3 turned {orientation}", tiff(noise(3), extratags=tag)
        yield f"tiff of colours turned {orientation}", tiff(noise(3), photometric="rgb", extratags=tag)
    yield "planar tiff", tiff(np.ascontiguousarray(five.transpose(2, 0, 1)), planarconfig="separate")
    yield "tiff of pages", tiff(np.ascontiguousarray(five.transpose(2, 0, 1)), planarconfig=None)
    yield "planar tiff of 3", tiff(noise(3).transpose(2, 0, 1).copy(), planarconfig="separate")
    colours = noise(3).transpose(2, 0, 1).copy()
    yield "planar tiff of colours", tiff(colours, photometric="rgb", planarconfig="separate")
    yield "jpeg tiff", tiff(noise(3, "uint8"), photometric="ycbcr", compression="jpeg")
    yield "float tiff", tiff(five.astype(np.float32))
    yield "32-bit tiff", tiff(five.astype(np.uint32))
    yield "signed tiff", tiff(five.astype(np.int16))
    yield "alpha tiff", tiff(noise(4, "uint8"), photometric="rgb", extrasamples=["unassalpha"])
    yield "palette tiff", encode(_photograph().quantize(64), "TIFF")
    yield "two colours tiff", encode(_photograph().convert("1"), "TIFF")
    yield "white is zero tiff", tiff(noise(1, "uint8"), photometric="miniswhite")


def _spoilt() -> Iterator[tuple[str, bytes]]:
    photo = _photograph()
    jpeg = encode(photo, "JPEG")
    yield "nothing", b""
    yield "one byte", b"\xff"
    yield "text", b"this is not an image\n" * 20
    yield "zeros", bytes(500)
    yield "head of a jpeg", jpeg[:40]
    yield "jpeg without its last byte", jpeg[:-1]
    yield "gif", encode(photo, "GIF")
    yield "huge png", encode(Image.new("1", (SIDE, SIDE)), "PNG")
    wholes = {kind.lower(): encode(photo, kind) for kind in ("JPEG", "PNG", "BMP", "WEBP", "JPEG2000")}
    wholes["progressive jpeg"] = encode(photo, "JPEG", progressive=True)
    wholes["tiff"] = tiff(noise(5))
    wholes["lzw tiff"] = tiff(noise(5), compression="lzw")
    for name, whole in wholes.items():
        yield f"half a {name}", whole[: len(whole) // 2]
