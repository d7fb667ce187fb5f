"""Creates images of many formats, colours, depths and codecs, with the pixels that a reference reads."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import imagecodecs
import numpy as np
import tifffile
from numpy.typing import NDArray
from PIL import Image, ImageCms
from skimage import data

Array = NDArray[Any]

PHOTO = np.ascontiguousarray(data.chelsea()[40:104, 100:180])
GREY = np.asarray(Image.fromarray(PHOTO).convert("L"))
HEIGHT, WIDTH = GREY.shape
ALPHA = np.linspace(1, 255, HEIGHT).astype(np.uint8)[:, None].repeat(WIDTH, 1)
RGBA = np.dstack([PHOTO, ALPHA])
GREY_ALPHA = np.dstack([GREY, ALPHA])
NOISE = np.random.default_rng(0).integers(0, 65536, (HEIGHT, WIDTH, 3), np.uint16)
PALETTE = np.random.default_rng(1).integers(0, 65536, (3, 256)).astype(np.uint16)
CMYK = np.asarray(Image.fromarray(PHOTO).convert("CMYK"))


class Kind(NamedTuple):
    """A file, and what a reference reads from it.

    Attributes:
        encoded: Bytes of the file.
        pixels: [H, W, C] uint8 or uint16, the source of a lossless file or what the named reference reads;
            None if the file must be rejected.
        tolerance: Largest difference, in levels of 255. It is 0 unless two references differ by rounding.
    """

    encoded: bytes
    pixels: Array | None
    tolerance: int = 0


def deepen(pixels: Array, bits: int) -> Array:
    """Scales pixels of 8 bits to another depth."""
    scaled = pixels.astype(np.uint32) * ((1 << bits) - 1) // 255
    return scaled.astype(np.uint16 if bits > 8 else np.uint8)


def by_pillow(pixels: Array | Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image = Image.fromarray(pixels) if isinstance(pixels, np.ndarray) else pixels
    image.save(file, kind, **options)
    return file.getvalue()


def by_tifffile(pixels: Array, photometric: str, **options: Any) -> bytes:
    file = io.BytesIO()
    layout = {"planarconfig": "contig"} if pixels.ndim == 3 else {}
    tifffile.imwrite(file, pixels, photometric=photometric, **layout, **options)
    return file.getvalue()


def read_by_pillow(encoded: bytes, mode: str = "RGB") -> Array:
    with Image.open(io.BytesIO(encoded)) as image:
        pixels = np.asarray(image.convert(mode))
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def planes(pixels: Array) -> Array:
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


@cache
def make_kinds() -> dict[str, Kind]:
    return dict([*_tiffs(), *_jpegs(), *_pngs(), *_bitmaps(), *_webps(), *_jpeg2000s(), *_netpbms()])


_SOURCES = {"rgb": (PHOTO, "rgb"), "grey": (GREY, "minisblack")}


def _tiffs() -> Iterator[tuple[str, Kind]]:
    for codec in ("none", "lzw", "deflate", "adobe_deflate", "packbits", "zstd"):
        for name, (pixels, photometric) in _SOURCES.items():
            for bits in (8, 16):
                source = deepen(pixels, bits)
                encoded = by_tifffile(source, photometric, compression=codec)
                yield f"tiff {codec} {name} {bits}", Kind(encoded, planes(source))
    for codec in ("lzma", "lerc", "jpeg2000", "jpegxl", "png", "jpegxr"):
        for name, (pixels, photometric) in _SOURCES.items():
            for bits in (8, 16):
                encoded = by_tifffile(deepen(pixels, bits), photometric, compression=codec)
                yield f"tiff {codec} {name} {bits}", Kind(encoded, None)
    yield "tiff webp rgb 8", Kind(by_tifffile(PHOTO, "rgb", compression="webp"), None)
    yield from _tiff_layouts()
    yield from _tiff_colours()
    for bits in (2, 4, 10, 12, 14) if _can_pack_integers() else ():
        for name, (pixels, photometric) in _SOURCES.items():
            encoded = by_tifffile(deepen(pixels, bits), photometric, bitspersample=bits)
            yield f"tiff none {name} {bits}", Kind(encoded, None)
    for codec in ("group3", "group4", "raw", "tiff_lzw"):
        encoded = by_pillow(Image.fromarray(GREY).convert("1"), "TIFF", compression=codec)
        yield f"tiff {codec} bilevel", Kind(encoded, None)


def _can_pack_integers() -> bool:
    """Returns whether imagecodecs writes values of 2 to 14 bits. Its last version for numpy 1 does not."""
    try:
        imagecodecs.packints_encode(GREY, 4, runlen=GREY.shape[-1])
    except (NotImplementedError, TypeError):
        return False
    return True


def _tiff_layouts() -> Iterator[tuple[str, Kind]]:
    deep = deepen(PHOTO, 16)
    for codec in ("lzw", "deflate", "zstd"):
        for name, pixels in (("8", PHOTO), ("16", deep)):
            encoded = by_tifffile(pixels, "rgb", compression=codec, predictor=True)
            yield f"tiff predicted {codec} rgb {name}", Kind(encoded, pixels)
    packed = by_tifffile(PHOTO, "rgb", compression="packbits", predictor=True)
    yield "tiff predicted packbits rgb 8", Kind(packed, None)
    yield "tiff tiled rgb 8", Kind(by_tifffile(PHOTO, "rgb", tile=(16, 16)), PHOTO)
    yield "tiff big-endian rgb 16", Kind(by_tifffile(deep, "rgb", byteorder=">"), deep)
    yield "tiff big rgb 8", Kind(by_tifffile(PHOTO, "rgb", bigtiff=True), PHOTO)
    reversed_bits = by_tifffile(PHOTO, "rgb", extratags=[(266, "H", 1, 2, True)])
    yield "tiff reversed bits rgb 8", Kind(reversed_bits, tifffile.imread(io.BytesIO(reversed_bits)))
    for orientation in (3, 6):
        turned = [(274, "H", 1, orientation, True)]
        expected = PHOTO[::-1, ::-1] if orientation == 3 else np.rot90(PHOTO, -1)
        yield f"tiff turned {orientation}", Kind(by_tifffile(PHOTO, "rgb", extratags=turned), expected)
        tiled = by_tifffile(PHOTO, "rgb", extratags=turned, tile=(16, 16))
        yield f"tiff tiled turned {orientation}", Kind(tiled, None)
        palette = by_tifffile(GREY, "palette", colormap=PALETTE, extratags=turned)
        yield f"tiff palette turned {orientation}", Kind(palette, None)
    separate = io.BytesIO()
    tifffile.imwrite(separate, np.moveaxis(PHOTO, 2, 0), photometric="rgb", planarconfig="separate")
    yield "tiff separate", Kind(separate.getvalue(), None)
    raw = by_tifffile(PHOTO, "rgb", subfiletype=1, extratags=[(50706, "B", 4, (1, 4, 0, 0), True)])
    yield "tiff of a camera", Kind(raw, None)
    for subsampling in ((1, 1), (2, 1), (2, 2)):
        encoded = by_tifffile(PHOTO, "ycbcr", compression="jpeg", subsampling=subsampling)
        yield f"tiff jpeg ycbcr {subsampling}", Kind(encoded, read_by_pillow(encoded))
    tiled = by_tifffile(PHOTO, "ycbcr", compression="jpeg", tile=(16, 16))
    yield "tiff tiled jpeg ycbcr", Kind(tiled, read_by_pillow(tiled))
    grey = by_tifffile(GREY, "minisblack", compression="jpeg")
    yield "tiff jpeg grey", Kind(grey, read_by_pillow(grey, "L"))
    deep_jpeg = by_tifffile(deepen(PHOTO, 12), "rgb", compression="jpeg")
    yield "tiff jpeg rgb 12", Kind(deep_jpeg, None)


def _tiff_colours() -> Iterator[tuple[str, Kind]]:
    for name in ("cielab", "icclab", "itulab", "linear_raw", "logluv"):
        yield f"tiff {name}", Kind(by_tifffile(PHOTO, name), None)
    for name in ("logl", "cfa", "mask", "depth_map"):
        yield f"tiff {name}", Kind(by_tifffile(GREY, name), None)
    yield "tiff cmyk", Kind(by_tifffile(CMYK, "separated"), None)
    to_lab = (ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"))
    lab = ImageCms.profileToProfile(Image.fromarray(PHOTO), *to_lab, outputMode="LAB")
    assert lab is not None
    yield "tiff lab of pillow", Kind(by_pillow(lab, "TIFF"), None)
    for codec in (None, "tiff_lzw", "tiff_deflate", "packbits"):
        encoded = by_pillow(Image.fromarray(PHOTO).convert("YCbCr"), "TIFF", compression=codec)
        yield f"tiff {codec} ycbcr", Kind(encoded, read_by_pillow(encoded), tolerance=1)
    zstd = by_pillow(Image.fromarray(PHOTO).convert("YCbCr"), "TIFF", compression="zstd")
    yield "tiff zstd ycbcr", Kind(zstd, None)
    yield "tiff tiled ycbcr", Kind(by_tifffile(PHOTO, "ycbcr", tile=(16, 16)), None)
    yield "tiff ycbcr 16", Kind(by_tifffile(deepen(PHOTO, 16), "ycbcr"), None)
    yield "tiff inverted grey 8", Kind(by_tifffile(GREY, "miniswhite"), planes(255 - GREY))
    yield "tiff inverted grey 16", Kind(by_tifffile(deepen(GREY, 16), "miniswhite"), None)
    yield "tiff inverted 3", Kind(by_tifffile(PHOTO, "miniswhite"), None)
    for codec in ("none", "lzw", "zstd"):
        encoded = by_tifffile(GREY, "palette", colormap=PALETTE, compression=codec)
        yield f"tiff {codec} palette", Kind(encoded, PALETTE.T[GREY])
    tiled = by_tifffile(GREY, "palette", colormap=PALETTE, tile=(16, 16))
    yield "tiff tiled palette", Kind(tiled, PALETTE.T[GREY])
    deep = np.random.default_rng(2).integers(0, 65536, (3, 65536)).astype(np.uint16)
    yield "tiff palette 16", Kind(by_tifffile(deepen(GREY, 16), "palette", colormap=deep), None)
    yield "tiff palette alpha", Kind(by_pillow(Image.fromarray(RGBA).convert("PA"), "TIFF"), None)
    for extra in ("unassalpha", "assocalpha", "unspecified"):
        for bits in (8, 16):
            colours, greys = deepen(RGBA, bits), deepen(GREY_ALPHA, bits)
            encoded = by_tifffile(colours, "rgb", extrasamples=[extra])
            yield f"tiff rgb {extra} {bits}", Kind(encoded, colours)
            encoded = by_tifffile(greys, "minisblack", extrasamples=[extra])
            yield f"tiff grey {extra} {bits}", Kind(encoded, greys)
    five = np.dstack([NOISE, NOISE[:, :, :2]])
    yield "tiff channels 5", Kind(by_tifffile(five, "minisblack"), five)
    for name, (pixels, photometric) in _SOURCES.items():
        plain = by_tifffile(pixels, photometric)
        unnamed = plain.replace(struct.pack("<HH", 262, 3), struct.pack("<HH", 263, 3), 1)
        yield f"tiff without photometric {name}", Kind(unnamed, None)


def _without_adobe(encoded: bytes) -> bytes:
    at = encoded.index(b"\xff\xee")
    return encoded[:at] + encoded[at + 2 + int.from_bytes(encoded[at + 2 : at + 4], "big") :]


def exif_of(orientation: int) -> bytes:
    return b"II*\0" + struct.pack("<IHHHIHHI", 8, 1, 274, 3, 1, orientation, 0, 0)


def _with_exif(encoded: bytes, *orientations: int) -> bytes:
    """Inserts EXIF segments at the begin of a JPEG."""
    contents = [b"Exif\0\0" + exif_of(orientation) for orientation in orientations]
    segments = [b"\xff\xe1" + struct.pack(">H", 2 + len(content)) + content for content in contents]
    return encoded[:2] + b"".join(segments) + encoded[2:]


def _jpegs() -> Iterator[tuple[str, Kind]]:
    lossy = {
        **{
            f"jpeg {subsampling}": imagecodecs.jpeg8_encode(PHOTO, level=95, subsampling=subsampling)
            for subsampling in ("444", "422", "420", "411", "440")
        },
        "jpeg progressive": by_pillow(PHOTO, "JPEG", progressive=True),
        "jpeg restart": by_pillow(PHOTO, "JPEG", restart_marker_rows=1),
        "jpeg rgb": by_pillow(PHOTO, "JPEG", keep_rgb=True),
        "jpeg of two images": by_pillow(
            PHOTO, "MPO", save_all=True, append_images=[Image.fromarray(PHOTO[::-1])]
        ),
    }
    for name, encoded in lossy.items():
        yield name, Kind(encoded, read_by_pillow(encoded))
    rgb = imagecodecs.jpeg8_encode(PHOTO, level=95, colorspace="rgb", outcolorspace="rgb")
    yield "jpeg rgb without adobe", Kind(_without_adobe(rgb), read_by_pillow(rgb))
    plain = lossy["jpeg 444"]
    pixels = read_by_pillow(plain)
    yield "jpeg with exif twice", Kind(_with_exif(plain, 6, 6), np.rot90(pixels, -1))
    for orientations in ((1, 6), (6, 1), (3, 6, 6)):
        yield f"jpeg with exif {orientations}", Kind(_with_exif(plain, *orientations), None)
    frame = plain.index(b"\xff\xc0")
    for marker in (0xC5, 0xC9, 0xCA, 0xCB, 0xCD):
        yield f"jpeg frame {marker:x}", Kind(plain[: frame + 1] + bytes([marker]) + plain[frame + 2 :], None)
    late_height = plain[: frame + 5] + b"\0\0" + plain[frame + 7 : -2]
    yield (
        "jpeg late height",
        Kind(late_height + b"\xff\xdc\0\4" + struct.pack(">H", HEIGHT) + plain[-2:], None),
    )
    yield "jpeg lossless grey", Kind(imagecodecs.jpeg_encode(GREY, lossless=True), None)
    grey = by_pillow(GREY, "JPEG")
    yield "jpeg grey", Kind(grey, read_by_pillow(grey, "L"))
    yield "jpeg lossless", Kind(imagecodecs.jpeg_encode(PHOTO, lossless=True), PHOTO)
    cmyk = by_pillow(Image.fromarray(CMYK, "CMYK"), "JPEG")
    ycck = imagecodecs.jpeg8_encode(CMYK, level=95, colorspace="cmyk", outcolorspace="ycck")
    for name, encoded in (("jpeg cmyk", cmyk), ("jpeg ycck", ycck)):
        light = 255 - read_by_pillow(encoded, "CMYK").astype(np.uint16)
        rgb = (light[:, :, :3] * light[:, :, 3:] // 255).astype(np.uint8)
        yield name, Kind(encoded, rgb)
        upright = _with_exif(encoded, 1)
        yield f"{name} with exif", Kind(upright, rgb)
        yield f"{name} turned", Kind(_with_exif(encoded, 6), np.rot90(rgb, -1), tolerance=2)
        yield f"{name} without adobe", Kind(_without_adobe(encoded), None)
    yield "jpeg 12", Kind(imagecodecs.jpeg_encode(deepen(PHOTO, 12), bitspersample=12), None)
    yield "jpeg grey 12", Kind(imagecodecs.jpeg_encode(deepen(GREY, 12), bitspersample=12), None)
    yield "jpeg lossless 16", Kind(imagecodecs.ljpeg_encode(deepen(GREY, 16)), None)
    yield "jpeg-ls", Kind(imagecodecs.jpegls_encode(PHOTO), None)
    yield "jpeg of 2 components", Kind(imagecodecs.jpeg8_encode(GREY_ALPHA, colorspace="unknown"), None)


def _pngs() -> Iterator[tuple[str, Kind]]:
    sources = {"grey": GREY, "grey alpha": GREY_ALPHA, "rgb": PHOTO, "rgba": RGBA}
    for name, pixels in sources.items():
        for bits in (8, 16):
            source = deepen(pixels, bits)
            yield f"png {name} {bits}", Kind(imagecodecs.png_encode(source), planes(source))
    yield "png noise", Kind(imagecodecs.png_encode(NOISE), NOISE)
    grey_noise = NOISE[:, :, 0].copy()
    yield "png grey noise", Kind(imagecodecs.png_encode(grey_noise), grey_noise[:, :, None])
    bilevel = by_pillow(Image.fromarray(GREY).convert("1"), "PNG")
    yield "png grey 1", Kind(bilevel, read_by_pillow(bilevel, "L"))
    for bits in (1, 2, 4, 8):
        encoded = by_pillow(Image.fromarray(PHOTO).quantize(2**bits), "PNG", bits=bits)
        yield f"png palette {bits}", Kind(encoded, read_by_pillow(encoded))
    transparent = by_pillow(Image.fromarray(PHOTO).quantize(64), "PNG", transparency=3)
    yield "png transparent palette", Kind(transparent, read_by_pillow(transparent))
    yield "png transparent rgb", Kind(by_pillow(PHOTO, "PNG", transparency=(1, 2, 3)), PHOTO)
    yield "png transparent grey", Kind(by_pillow(GREY, "PNG", transparency=3), planes(GREY))
    for kind in ("rgb", "grey", "palette"):
        pixels = {"rgb": PHOTO, "grey": GREY, "palette": Image.fromarray(PHOTO).quantize(200)}[kind]
        encoded = by_pillow(pixels, "PNG", exif=b"Exif\0\0" + exif_of(6))
        expected = read_by_pillow(encoded, "L" if kind == "grey" else "RGB")
        yield f"png turned {kind}", Kind(encoded, np.rot90(expected, -1))
    apple = by_pillow(PHOTO, "PNG")
    yield "png of apple", Kind(apple[:8] + b"\0\0\0\4CgBI\x50\0\x20\2\x2b\xd5\xb3\x7f" + apple[8:], None)
    animated = by_pillow(PHOTO, "PNG", save_all=True, append_images=[Image.fromarray(PHOTO[::-1])])
    yield "png animated", Kind(animated, PHOTO)


def _bmp(bits: int, body: bytes, *, masks: bytes = b"", palette: bytes = b"", **fields: int) -> bytes:
    """Writes a BMP with a BITMAPINFOHEADER."""
    height, compression = fields.get("height", HEIGHT), fields.get("compression", 0)
    begin = 14 + 40 + len(masks) + len(palette)
    head = struct.pack("<IHHI", begin + len(body), 0, 0, begin)
    info = struct.pack("<IiiHHIIiiII", 40, WIDTH, height, 1, bits, compression, len(body), 0, 0, 0, 0)
    return b"BM" + head + info + masks + palette + body


def _bitmaps() -> Iterator[tuple[str, Kind]]:
    bottom_up = PHOTO[::-1, :, ::-1]
    with_gap = np.dstack([bottom_up, np.zeros((HEIGHT, WIDTH), np.uint8)]).tobytes()
    red, green, blue = np.moveaxis(PHOTO[::-1].astype(np.uint16), 2, 0)
    bgr = struct.pack("<3I", 0xFF0000, 0xFF00, 0xFF)
    greys = b"".join(bytes([level] * 3 + [0]) for level in range(256))
    few_greys = b"".join(bytes([level * 17] * 3 + [0]) for level in range(16))
    runs = b"".join(b"".join(bytes([1, v]) for v in row) + b"\0\0" for row in GREY[::-1].tolist()) + b"\0\1"
    half = (GREY[::-1, ::2] >> 4 << 4 | GREY[::-1, 1::2] >> 4).tobytes()
    pairs = b"".join(
        b"".join(bytes([2, value]) for value in row) + b"\0\0"
        for row in np.frombuffer(half, np.uint8).reshape(HEIGHT, -1).tolist()
    )
    yield "bmp rgb", Kind(by_pillow(PHOTO, "BMP"), PHOTO)
    yield "bmp grey", Kind(by_pillow(GREY, "BMP"), planes(GREY))
    yield "bmp top-down", Kind(_bmp(24, PHOTO[:, :, ::-1].tobytes(), height=-HEIGHT), PHOTO)
    yield "bmp rgba", Kind(by_pillow(RGBA, "BMP"), PHOTO)
    yield "bmp 32", Kind(_bmp(32, with_gap), PHOTO)
    yield "bmp 32 masks", Kind(_bmp(32, with_gap, masks=bgr, compression=3), PHOTO)
    rgb = struct.pack("<3I", 0xFF, 0xFF00, 0xFF0000)
    yield "bmp 32 other masks", Kind(_bmp(32, with_gap, masks=rgb, compression=3), None)
    body = (red >> 3 << 11 | green >> 2 << 5 | blue >> 3).astype("<u2").tobytes()
    masks = struct.pack("<3I", 0xF800, 0x7E0, 0x1F)
    yield "bmp 16 masks", Kind(_bmp(16, body, masks=masks, compression=3), None)
    yield "bmp 16", Kind(_bmp(16, (red >> 3 << 10 | green >> 3 << 5 | blue >> 3).tobytes()), None)
    yield "bmp run lengths", Kind(_bmp(8, runs, palette=greys, compression=1), planes(GREY))
    yield "bmp 4", Kind(_bmp(4, half, palette=few_greys), np.dstack([GREY >> 4] * 3) * np.uint8(17))
    yield "bmp 4 run lengths", Kind(_bmp(4, pairs + b"\0\1", palette=few_greys, compression=2), None)
    encoded = by_pillow(Image.fromarray(PHOTO).quantize(200), "BMP")
    yield "bmp palette", Kind(encoded, read_by_pillow(encoded))


def _webps() -> Iterator[tuple[str, Kind]]:
    lossy = by_pillow(PHOTO, "WEBP")
    yield "webp lossy", Kind(lossy, read_by_pillow(lossy))
    yield "webp rgb", Kind(by_pillow(PHOTO, "WEBP", lossless=True), PHOTO)
    yield "webp rgba", Kind(by_pillow(RGBA, "WEBP", lossless=True), RGBA)
    # DALI forgets the padding of a chunk of odd size before EXIF data.
    for columns in range(WIDTH - 8, WIDTH):
        encoded = by_pillow(np.ascontiguousarray(PHOTO[:, :columns]), "WEBP", lossless=True, exif=exif_of(6))
        odd = encoded[encoded.index(b"VP8L") + 4] % 2
        yield f"webp exif {columns}", Kind(encoded, None if odd else np.rot90(PHOTO[:, :columns], -1))
    more = [Image.fromarray(PHOTO[::-1])]
    yield (
        "webp animated",
        Kind(by_pillow(PHOTO, "WEBP", lossless=True, save_all=True, append_images=more), PHOTO),
    )


def _with_box(encoded: bytes, kind: bytes, content: bytes) -> bytes:
    """Appends a box to the header box of a JPEG 2000 file."""
    at = encoded.index(b"jp2h") - 4
    (size,) = struct.unpack_from(">I", encoded, at)
    box = struct.pack(">I", 8 + len(content)) + kind + content
    end = at + size
    return encoded[:at] + struct.pack(">I", size + len(box)) + encoded[at + 4 : end] + box + encoded[end:]


def _jpeg2000s() -> Iterator[tuple[str, Kind]]:
    sources = {"grey": GREY, "grey alpha": GREY_ALPHA, "rgb": PHOTO, "rgba": RGBA}
    for codec in ("jp2", "j2k"):
        for bits in (1, 4, 7, 8, 9, 10, 12, 15, 16):
            for name, pixels in sources.items():
                source = deepen(pixels, bits)
                encoded = imagecodecs.jpeg2k_encode(source, bitspersample=bits, codecformat=codec, level=0)
                supported = bits in (8, 16) and name != "grey alpha"
                yield f"{codec} {name} {bits}", Kind(encoded, planes(source) if supported else None)
    yield "jp2 signed", Kind(imagecodecs.jpeg2k_encode(PHOTO.astype(np.int16)), None)
    five = np.dstack([PHOTO, PHOTO[:, :, :2]])
    yield "jp2 of 5", Kind(imagecodecs.jpeg2k_encode(five, codecformat="jp2"), None)
    plain = imagecodecs.jpeg2k_encode(PHOTO, codecformat="jp2", level=0)
    at = plain.index(b"colr") + 7
    for number in (0, 12, 14, 18, 20, 24, 99):
        yield (
            f"jp2 colour space {number}",
            Kind(plain[:at] + struct.pack(">I", number) + plain[at + 4 :], None),
        )
    for number, pixels in ((17, PHOTO), (16, GREY)):
        wrong = imagecodecs.jpeg2k_encode(pixels, codecformat="jp2", level=0)
        at = wrong.index(b"colr") + 7
        yield (
            f"jp2 wrong colours {number}",
            Kind(wrong[:at] + struct.pack(">I", number) + wrong[at + 4 :], None),
        )
    for order in ((1, 2, 3), (3, 2, 1), (2, 1, 3)):
        box = struct.pack(">H", 3) + b"".join(struct.pack(">3H", k, 0, order[k]) for k in range(3))
        yield (
            f"jp2 channels {order}",
            Kind(_with_box(plain, b"cdef", box), PHOTO if order == (1, 2, 3) else None),
        )
    for offset, tile_offset in (((0, 0), (0, 0)), ((5, 3), (0, 0)), ((5, 3), (2, 1))):
        options = {"offset": offset, "tile_offset": tile_offset, "tile_size": (64, 64)}
        encoded = by_pillow(PHOTO, "JPEG2000", **options)
        yield f"jp2 offset {offset} {tile_offset}", Kind(encoded, None if any(offset) else PHOTO)
    lossy = by_pillow(PHOTO, "JPEG2000", quality_mode="rates", quality_layers=[10], irreversible=True)
    yield "jp2 lossy", Kind(lossy, read_by_pillow(lossy))
    yield "jp2 high throughput", Kind(imagecodecs.htj2k_encode(PHOTO), PHOTO)


def _netpbms() -> Iterator[tuple[str, Kind]]:
    for largest in (1, 15, 100, 127, 255, 256, 1000, 4095, 65534, 65535):
        for text_digit, digit, pixels in ((2, 5, GREY), (3, 6, PHOTO)):
            source = pixels.astype(np.uint32) * largest // 255
            dtype = np.dtype(np.uint16 if largest > 255 else np.uint8)
            text = " ".join(map(str, source.ravel().tolist())).encode()
            body = source.astype(dtype.newbyteorder(">")).tobytes()
            expected = planes(source).astype(dtype) if largest in (255, 65535) else None
            size = f"\n# a comment\n{WIDTH} {HEIGHT}\n{largest}\n"
            yield f"pnm {text_digit} {largest}", Kind(f"P{text_digit}{size}".encode() + text, None)
            yield f"pnm {digit} {largest}", Kind(f"P{digit}{size}".encode() + body, expected)
    black = GREY < 128
    bilevel = planes(np.where(black, 0, 255).astype(np.uint8))
    size_line = f"{WIDTH} {HEIGHT}\n".encode()
    yield "pnm 4", Kind(b"P4\n" + size_line + np.packbits(black, axis=1).tobytes(), bilevel)
    bits = b" ".join(str(int(value)).encode() for value in black.ravel())
    yield "pnm 1", Kind(b"P1\n" + size_line + bits, None)  # DALI needs blanks between the digits
    yield (
        "pnm 7",
        Kind(
            f"P7\nWIDTH {WIDTH}\nHEIGHT {HEIGHT}\nDEPTH 3\nMAXVAL 255\nTUPLTYPE RGB\nENDHDR\n".encode()
            + PHOTO.tobytes(),
            None,
        ),
    )
    yield "pnm f", Kind(b"Pf\n" + size_line + b"-1.0\n" + GREY.astype("<f4").tobytes(), None)
