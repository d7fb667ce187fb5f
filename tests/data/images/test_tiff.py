"""TIFF files whose tiles are much larger than their image, and decoders that run out of memory."""

from __future__ import annotations

import io
import resource
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import tifffile

from ppcls.data.images import decode as decode_module
from ppcls.data.images.decode import decode
from ppcls.data.images.header import DecodeError
from ppcls.data.images.read_header import read_header
from ppcls.data.transforms.specs import DecodeImage

pytestmark = pytest.mark.hostile


def tiled(
    tile: tuple[int, int], image: tuple[int, int] = (16, 16), samples: int = 1, extra: tuple[int, ...] = ()
) -> bytes:
    """Returns a TIFF with one tile [width, height] of deflated zeros, which are fewer than it claims."""
    data = zlib.compress(bytes(1000))
    tags = {256: image[0], 257: image[1], 258: 8, 259: 8, 262: 1 if samples == 1 else 2, 277: samples}
    tags |= {322: tile[0], 323: tile[1], 325: len(data), **dict.fromkeys(extra, 2)}
    tags[324] = 8 + 2 + 12 * (len(tags) + 1) + 4
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(tags.items()))
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + entries + bytes(4) + data


@pytest.mark.parametrize(
    "data",
    [
        tiled((32768, 32768)),
        tiled((65536, 65536), samples=3),
        tiled((1 << 20, 1 << 16), samples=3),
        tiled((1 << 31, 1)),
        tiled((2048, 2048)),
        tiled((0, 16)),
        tiled((16, 0)),
        tiled((1024, 1024), image=(100_000, 1)),
    ],
)
def test_tiles_that_are_too_large_are_rejected_by_the_header(data: bytes) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(
        DecodeError, match=r"tiles of \d+x\d+ pixels are too large|tiles of at least 1x1 pixels"
    ):
        read_header(data)
    with pytest.raises(DecodeError):
        decode(DecodeImage(), data)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


@pytest.mark.parametrize("tag", [32997, 32998])
def test_layers_are_rejected(tag: int) -> None:
    with pytest.raises(DecodeError, match="a TIFF with several layers is not supported"):
        read_header(tiled((16, 16), extra=(tag,)))


@pytest.mark.parametrize("tile", [16, 256, 1024])
@pytest.mark.parametrize("side", [16, 300])
def test_usual_tiles_are_decoded(tile: int, side: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (side, side, 3), np.uint8)
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, pixels, tile=(tile, tile), compression="zlib", photometric="rgb")
    np.testing.assert_array_equal(decode(DecodeImage(), buffer.getvalue()), pixels)


def test_decoder_without_memory_reports_a_bad_image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(decode_module, "read_header", fail)
    with pytest.raises(DecodeError, match="not enough memory to decode the image"):
        decode(DecodeImage(), b"any")
