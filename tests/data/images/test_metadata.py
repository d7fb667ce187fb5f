"""Images with millions of segments, chunks, boxes or tags, or with megabytes before their pixels."""

from __future__ import annotations

import io
import resource
import struct
import zlib
from contextlib import suppress
from typing import Any

import imagecodecs
import numpy as np
import pytest
import tifffile
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from ppcls.data.images.decode import decode
from ppcls.data.images.header import DecodeError
from ppcls.data.images.read_header import read_header
from ppcls.data.images.tags import Tags, read_orientation
from ppcls.data.transforms.specs import DecodeImage

pytestmark = pytest.mark.hostile

SIZE = 1_500_000  # bytes; the server accepts files of 32 MB
LONG = 17_000_000
PIXELS = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
MANY = "of at most 10,000 segments, chunks, boxes or tags, found more"
LARGE = "with at most 16,777,216 bytes before its pixels and in its tags, found more"


def encode(kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    pixels = np.dstack([PIXELS, PIXELS[:, :, 0]]) if options.pop("alpha", False) else PIXELS
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def chunk(kind: bytes, content: bytes = b"") -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def repeated(before: bytes, part: bytes, after: bytes) -> bytes:
    size = LONG if len(part) > 10_000 else SIZE
    return before + part * (size // len(part) + 1) + after


def tiff(*tags: tuple[int, int, int, int], order: str = "<", content: bytes = b"") -> bytes:
    """Returns a grey TIFF of 16x16 pixels with more tags: number, type, count, and value or offset."""
    usual = {256: 16, 257: 16, 258: 8, 259: 1, 262: 1, 273: 8, 277: 1, 278: 16, 279: 256}
    every = sorted([*((tag, 4, 1, value) for tag, value in usual.items()), *tags])
    head = (b"II" if order == "<" else b"MM") + struct.pack(order + "HI", 42, 8 + 256 + len(content))
    entries = b"".join(struct.pack(order + "HHII", *tag) for tag in every)
    return head + bytes(256) + content + struct.pack(order + "H", len(every)) + entries + bytes(4)


def jp2_with(box: bytes) -> bytes:
    encoded = bytes(imagecodecs.jpeg2k_encode(PIXELS, codecformat="jp2"))
    at = encoded.index(b"jp2h") - 4
    return repeated(encoded[:at], box, encoded[at:])


def box(kind: bytes, content: bytes = b"") -> bytes:
    return struct.pack(">I4s", 8 + len(content), kind) + content


def segment(marker: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, 2 + len(content)) + content


def exif_of(count: int) -> bytes:
    """Returns EXIF data with a number of tags."""
    entries = b"".join(struct.pack(">HHII", 1000 + tag, 3, 1, 0) for tag in range(count))
    return b"Exif\0\0MM\0*\0\0\0\x08" + struct.pack(">H", count) + entries + bytes(4)


TEXT = zlib.compress(bytes(20_000))
GROWING = zlib.compress(bytes(7_900_000), 9)  # almost as much as libpng decompresses of one chunk
JPEG = encode("JPEG")
PNG = encode("PNG")
WEBP = encode("WEBP", lossless=True)
HOSTILE = {
    "JPEG comments": (repeated(JPEG[:2], b"\xff\xfe\0\2", JPEG[2:]), MANY),
    "JPEG EXIF": (repeated(JPEG[:2], b"\xff\xe1\0\2", JPEG[2:]), MANY),
    "JPEG ICC": (repeated(JPEG[:2], b"\xff\xe2\0\x10ICC_PROFILE\0\1\1", JPEG[2:]), MANY),
    "JPEG after the frame": (repeated(JPEG[:-2], b"\xff\xfe\0\2\xff\xda\0\2", JPEG[-2:]), MANY),
    "JPEG long": (repeated(JPEG[:2], b"\xff\xfe\xff\xff" + bytes(65533), JPEG[2:]), LARGE),
    "PNG chunks": (repeated(PNG[:33], chunk(b"teSt"), PNG[33:]), MANY),
    "PNG pixels": (repeated(encode("PNG", alpha=True)[:-12], chunk(b"IDAT"), PNG[-12:]), MANY),
    "PNG texts": (
        repeated(PNG[:33], chunk(b"zTXt", b"k\0\0" + TEXT), PNG[33:]),
        "compressed texts and profiles",
    ),
    "PNG texts that grow": (
        PNG[:33] + chunk(b"zTXt", b"k\0\0" + GROWING) * 17 + PNG[33:],
        "compressed texts",
    ),
    "PNG texts at the end": (
        PNG[:-12] + chunk(b"iTXt", b"k\0\1\0\0\0" + GROWING) * 17 + PNG[-12:],
        "compressed texts",
    ),
    "PNG profiles": (PNG[:33] + chunk(b"iCCP", b"k\0\0" + GROWING) * 17 + PNG[33:], "compressed texts"),
    "PNG pixels that grow": (
        PNG[:33] + chunk(b"IDAT", bytes(100_000)) + PNG[33:],
        "bytes of compressed pixels, but only 12,352 bytes",
    ),
    "PNG long": (repeated(PNG[:33], chunk(b"tEXt", b"k\0" + bytes(60_000)), PNG[33:]), LARGE),
    "JPEG 2000 boxes": (jp2_with(struct.pack(">I4s", 8, b"free")), MANY),
    "JPEG 2000 long": (jp2_with(struct.pack(">I4s", 60_000, b"free") + bytes(59_992)), LARGE),
    "JPEG EXIF tags": (
        repeated(JPEG[:2], segment(0xE1, exif_of(5000)), JPEG[2:]),
        "of at most 16 EXIF segments",
    ),
    "PNG EXIF tags": (
        repeated(PNG[:33], chunk(b"eXIf", exif_of(9999).removeprefix(b"Exif\0\0")), PNG[33:]),
        "several EXIF chunks",
    ),
    "WebP chunks": (repeated(WEBP, b"teSt\0\0\0\0", b""), MANY),
    "WebP animation": (repeated(WEBP, b"ANMF\x10\0\0\0" + bytes(16), b""), MANY),
    "WebP EXIF": (repeated(WEBP, b"EXIF\0\0\0\0", b""), "several EXIF chunks"),
    "WebP long": (repeated(WEBP, b"XMP \x60\xea\0\0" + bytes(60_000), b""), LARGE),
    "JPEG 2000 nested": (jp2_with(box(b"jp2h", box(b"free") * 999)), MANY),
    # Each box claims 65,535 channels, which would be read from the boxes after it.
    "JPEG 2000 channels": (
        jp2_with(box(b"jp2h", struct.pack(">I4sHH", 12, b"cdef", 65535, 11) * 9000)),
        "damaged",
    ),
    "PPM comment": (b"P6\n" + b"#" * SIZE + b"\n64 64 255\n" + PIXELS.tobytes(), "damaged"),
    "PPM comments": (b"P6\n" + b"#\n" * (SIZE // 2) + b"64 64 255\n" + PIXELS.tobytes(), "damaged"),
    "PPM blanks": (b"P6" + b" " * SIZE + b"64 64 255\n" + PIXELS.tobytes(), "damaged"),
    "TIFF tags": (tiff(*((tag, 3, 1, 0) for tag in range(1000, 11_500))), MANY),
    "TIFF values": (tiff((60_000, 5, 3_000_000, 8), content=bytes(24_000_000)), LARGE),
    "TIFF shared": (tiff(*((tag, 7, 1 << 20, 8) for tag in range(500, 600)), content=bytes(1 << 20)), LARGE),
    "TIFF strips": (tiff((324, 3, 140_000, 8), content=bytes(1 << 20)), "of at most 131,072 strips or tiles"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_header_with_too_much_metadata_is_rejected(name: str) -> None:
    encoded, reason = HOSTILE[name]
    with pytest.raises(DecodeError, match=reason):
        read_header(encoded)
    with pytest.raises(DecodeError, match=reason):
        decode(DecodeImage(), encoded)


@pytest.mark.parametrize("at", [2, len(JPEG) - 2])
def test_time_of_fill_bytes_is_linear(at: int) -> None:
    """A search that examines all bytes again after each one would take an hour."""
    scans = b"\xff\xda\0\2" * 40  # more than are counted without reading the segments
    encoded = JPEG[:at] + b"\xff" * SIZE + b"\0" + JPEG[at:-2] + scans + b"\xff" * SIZE + b"\0" + JPEG[-2:]
    assert read_header(encoded).width == 64


def test_usual_metadata_is_accepted() -> None:
    exif = Image.Exif()
    exif[0x010E] = "a" * 60_000
    segments = (b"\xff\xed\xff\xff" + bytes(65_533)) * 100  # such as depth maps in an extended XMP
    photo = encode("JPEG", exif=exif, comment=b"c" * 60_000, icc_profile=bytes(300_000))
    for encoded in (
        photo[:2] + segments + photo[2:],
        encode("PNG", exif=exif, icc_profile=bytes(300_000)),
        PNG[:33] + chunk(b"zTXt", b"k\0\0" + TEXT) * 6 + PNG[33:],
        encode("WEBP", exif=exif, icc_profile=bytes(300_000)),
    ):
        header = read_header(encoded)
        assert (header.height, header.width) == (64, 64)
    large = PNG[:8] + chunk(b"IHDR", struct.pack(">2I5B", 5000, 5000, 8, 2, 0, 0, 0))
    assert read_header(repeated(large, chunk(b"IDAT", bytes(8192)), PNG[33:])).width == 5000


def test_png_that_cannot_be_compressed_is_accepted() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (300, 400, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=0)
    assert np.array_equal(decode(DecodeImage(), file.getvalue()), pixels)


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_orientation_of_images_with_alpha_is_read(kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    # With this quality, the alpha channel has an even size. DALI fails for EXIF data after an odd one.
    options = {"alpha_quality": 50} if kind == "WEBP" else {}
    assert read_header(encode(kind, alpha=True, exif=exif, **options)).orientation == orientation
    assert read_header(encode(kind, alpha=True)).orientation == 1


def test_orientation_after_the_pixels_of_a_png_is_read() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    encoded = encode("PNG", alpha=True)
    assert read_header(encoded[:-12] + chunk(b"eXIf", exif.tobytes()[6:]) + encoded[-12:]).orientation == 6


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_exif_whose_tags_share_their_values_is_rejected(kind: str) -> None:
    entries = b"".join(struct.pack("<HHII", tag, 7, 60_000, 0) for tag in range(1, 5000))
    data = b"II*\0\x08\0\0\0" + struct.pack("<H", 4999) + entries + bytes(4)
    options = {"alpha_quality": 50} if kind == "WEBP" else {}  # an even size of the chunk before the tags
    with pytest.raises(DecodeError, match=LARGE):
        read_header(encode(kind, alpha=True, exif=b"Exif\0\0" + data, **options))


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("tile", [None, (16, 16)])
def test_tags_are_those_that_tifffile_wrote(order: Any, big: bool, tile: tuple[int, int] | None) -> None:
    file = io.BytesIO()
    tifffile.imwrite(file, PIXELS, byteorder=order, bigtiff=big, tile=tile, photometric="rgb")
    tags = Tags(file.getvalue())
    assert tags.last
    assert [tags.value(tag, 0) for tag in (256, 257, 277, 322)] == [64, 64, 3, tile[0] if tile else 0]
    assert tags.values(258, 1) == [8, 8, 8]
    assert np.array_equal(decode(DecodeImage(), file.getvalue()), PIXELS)


@given(st.binary(max_size=300))
def test_any_exif_is_read_or_rejected(data: bytes) -> None:
    for prefix in (b"", b"II*\0\x08\0\0\0", b"MM\0+\0\x08\0\0\0\0\0\0\0\0\0\x10"):
        with suppress(ValueError):
            assert isinstance(read_orientation(prefix + data), int)


@pytest.mark.parametrize("compression", ["deflate", "zstd", "packbits"])
@pytest.mark.parametrize("tile", [None, (16, 16)])
def test_strips_and_tiles_are_not_decompressed_beyond_their_size(
    compression: str, tile: tuple[int, int] | None
) -> None:
    """A strip of 16x16 pixels that contains 200 MB."""
    size = 200_000_000
    zeros = np.zeros(size, np.uint8)
    bombs = {"deflate": imagecodecs.zlib_encode, "zstd": imagecodecs.zstd_encode}
    bomb = b"\x81\0" * (size // 128) if compression == "packbits" else bytes(bombs[compression](zeros))
    file = io.BytesIO()
    tifffile.imwrite(file, PIXELS[:16, :16, 0], compression=compression, tile=tile, photometric="minisblack")
    encoded = bytearray(file.getvalue())
    with tifffile.TiffFile(io.BytesIO(encoded)) as pages:
        offsets, counts = (pages.pages[0].tags[tag] for tag in ((324, 325) if tile else (273, 279)))
        for tag, value in ((offsets, len(encoded)), (counts, len(bomb))):
            assert tag.count == 1
            struct.pack_into("<I", encoded, tag.offset + 8, value)
            struct.pack_into("<H", encoded, tag.offset + 2, 4)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with suppress(DecodeError):
        decode(DecodeImage(), bytes(encoded) + bomb)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < size >> 11


@pytest.mark.parametrize("alpha", [False, True])
@pytest.mark.parametrize("after_pixels", [False, True])
def test_png_chunk_that_claims_gigabytes_is_rejected(alpha: bool, after_pixels: bool) -> None:
    encoded = encode("PNG", alpha=alpha)
    at = len(encoded) - 12 if after_pixels else 33
    hostile = encoded[:at] + struct.pack(">I", 0xF000_0000) + b"teSt" + encoded[at:]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DecodeError, match="the PNG file is damaged"):
        decode(DecodeImage(), hostile)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def test_data_after_the_end_of_a_png_is_ignored() -> None:
    assert np.array_equal(decode(DecodeImage(), PNG + b"\xff" * 100), PIXELS)


@pytest.mark.parametrize("after", [b"\xff" * 64, b"hello, world" * 9, bytes(100)])
def test_bytes_after_the_last_chunk_are_ignored(after: bytes) -> None:
    assert read_header(WEBP + after) == read_header(WEBP)
