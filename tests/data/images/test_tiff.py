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
from loader_conformance import FAST, MAKERS

from ppcls.cli.dataset import main
from ppcls.data.bad_images.quarantine import Quarantine
from ppcls.data.images import decode as decode_module
from ppcls.data.images.decode import decode
from ppcls.data.images.header import DecodeError
from ppcls.data.images.read_header import read_header
from ppcls.data.index.files import FileIndex
from ppcls.data.sampling.epoch_samplers import SequentialSampler
from ppcls.data.sampling.order import Order
from ppcls.data.transforms.specs import DecodeImage, NormalizeImage, ResizeImage, plan_chain

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


def test_one_channel_has_no_separate_planes() -> None:
    assert not read_header(tiled((16, 16), extra=(284,))).separate


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


@pytest.mark.parametrize("kind", FAST)
def test_loaders_skip_bombs_by_name(kind: str, tmp_path: Path) -> None:
    write_images(tmp_path)
    names = sorted(path.name.encode() for path in tmp_path.iterdir())
    index = FileIndex(tmp_path, np.array(names), np.arange(len(names)), tmp_path)
    ops = plan_chain([DecodeImage(), ResizeImage(size=8), NormalizeImage()], "CHW")
    quarantine = Quarantine(index, tmp_path / "bad_images.txt")
    order = Order(SequentialSampler(len(names)), batch_size=3)
    loader = MAKERS[kind](index, order, ops, quarantine=quarantine)  # type: ignore[call-arg]
    assert sum(batch.valid for batch in loader) == 4
    loader.release()
    lines = (tmp_path / "bad_images.txt").read_text()
    assert all(f"bomb{number}.tif" in lines for number in range(2))
    assert lines.count("tiles of 32768x32768 pixels are too large") == 2


def test_check_and_stats_name_bombs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    monkeypatch.chdir(tmp_path)  # both commands write into the current folder
    for name in ("a", "b"):
        (pictures / name).mkdir()
        write_images(pictures / name)
    for command, code in (("check", 2), ("stats", 0)):  # stats describes the other images
        assert main([command, str(pictures)]) == code
        printed = capsys.readouterr()
        assert "bomb0.tif" in printed.out + printed.err
        assert "tiles of 32768x32768 pixels are too large" in printed.out + printed.err


def write_images(folder: Path) -> None:
    """Writes four usual images and two bombs."""
    for number in range(4):
        tifffile.imwrite(
            folder / f"usual{number}.tif", np.full((16, 16, 3), number, np.uint8), photometric="rgb"
        )
    for number in range(2):
        (folder / f"bomb{number}.tif").write_bytes(tiled((32768, 32768), samples=1 + 2 * number))
