"""TIFF files whose strips or tiles are JPEGs with many scans."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pytest
import tifffile
from loader_conformance import FAST, MAKERS
from PIL import Image

from ppcls.data.bad_images.quarantine import Quarantine
from ppcls.data.images.decode import decode
from ppcls.data.images.header import DecodeError, check_header
from ppcls.data.images.read_header import read_header
from ppcls.data.index.files import FileIndex
from ppcls.data.sampling.epoch_samplers import SequentialSampler
from ppcls.data.sampling.order import Order
from ppcls.data.transforms.specs import DecodeImage, NormalizeImage, ResizeImage, plan_chain

pytestmark = pytest.mark.hostile


def progressive(width: int, height: int, repeated: int) -> bytes:
    """Returns a grey JPEG whose last scan is repeated."""
    file = io.BytesIO()
    Image.new("L", (width, height), 128).save(file, "JPEG", progressive=True)
    encoded = file.getvalue()
    return encoded[:-2] + encoded[encoded.rindex(b"\xff\xda") : -2] * repeated + encoded[-2:]


def shared(
    size: tuple[int, int], jpeg: bytes, count: int, part: tuple[int, ...], *, big: bool = False
) -> bytes:
    """Returns a grey TIFF with strips or tiles that are all the same bytes.

    Args:
        size: Width and height of the image.
        jpeg: Content of each strip or tile.
        count: Number of strips or tiles.
        part: Rows of a strip, or width and height of a tile.
        big: Whether to write a BigTIFF.
    """
    begin = 16
    tables = begin + len(jpeg)
    values = struct.pack(f"<{count}I", *[begin] * count) + struct.pack(f"<{count}I", *[len(jpeg)] * count)
    offsets = (tables, tables + 4 * count) if count > 1 else (begin, len(jpeg))
    tags = {256: size[0], 257: size[1], 258: 8, 259: 7, 262: 1, 277: 1}
    if len(part) == 1:
        tags |= {273: offsets[0], 278: part[0], 279: offsets[1]}
    else:
        tags |= {322: part[0], 323: part[1], 324: offsets[0], 325: offsets[1]}
    counts = {tag: count if tag in (273, 279, 324, 325) else 1 for tag in tags}
    directory = tables + len(values)
    entry = "<HHQQ" if big else "<HHII"
    kinds = {tag: 3 if tag in (258, 259, 262, 277) else 4 for tag in tags}  # SHORT, else LONG
    entries = b"".join(struct.pack(entry, tag, kinds[tag], counts[tag], tags[tag]) for tag in sorted(tags))
    if big:
        head = struct.pack("<2sHHHQ", b"II", 43, 8, 0, directory)
        entries = struct.pack("<Q", len(tags)) + entries + bytes(8)
    else:
        head = struct.pack("<2sHI8x", b"II", 42, directory)
        entries = struct.pack("<H", len(tags)) + entries + bytes(4)
    return head + jpeg + values + entries


NAMES = ("strip", "strips", "tiles", "BigTIFF", "large tile", "markers")


@pytest.fixture(scope="module")
def hostile() -> dict[str, bytes]:
    files = (
        shared((9000, 9000), progressive(9000, 9000, 90), 1, (9000,)),
        shared((9000, 9000), progressive(9000, 9, 90), 1000, (9,)),
        shared((9216, 9216), progressive(512, 512, 90), 18 * 18, (512, 512)),
        shared((9216, 9216), progressive(512, 512, 90), 18 * 18, (512, 512), big=True),
        shared((16, 16), progressive(1024, 1024, 3500), 1, (1024, 1024)),
        shared((9000, 9000), b"\xff\xda" * 1_100_000, 1, (9000,)),
    )
    return dict(zip(NAMES, files, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_too_many_scans_are_rejected_by_the_header(name: str, hostile: dict[str, bytes]) -> None:
    header = read_header(hostile[name])
    with pytest.raises(DecodeError, match=r"the TIFF has \d+ scans of .* pixels; expected at most 32 times"):
        check_header(DecodeImage(), header)


def test_missing_sizes_are_an_error(hostile: dict[str, bytes]) -> None:
    data = hostile["tiles"].replace(struct.pack("<HH", 325, 4), struct.pack("<HH", 32_000, 4))
    with pytest.raises(DecodeError, match="does not contain the sizes of its strips or tiles"):
        read_header(data)


@pytest.mark.parametrize("rows", [1, 8, 64])
@pytest.mark.parametrize("tile", [None, (16, 16), (64, 64)])
@pytest.mark.parametrize("channels", [1, 3])
def test_usual_files_have_few_scans(channels: int, tile: tuple[int, int] | None, rows: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (64, 48, channels), np.uint8)
    file = io.BytesIO()
    photometric = "rgb" if channels == 3 else "minisblack"
    segments = {"rowsperstrip": rows} if tile is None else {"tile": tile}
    tifffile.imwrite(file, pixels.squeeze(), compression="jpeg", photometric=photometric, **segments)
    header = read_header(file.getvalue())
    assert header.scans <= 3
    assert decode(DecodeImage(), file.getvalue()).shape == (64, 48, 3)


@pytest.mark.parametrize("kind", FAST)
def test_loaders_skip_many_scans_by_name(kind: str, tmp_path: Path, hostile: dict[str, bytes]) -> None:
    names = [f"{name}.tif".encode() for name in hostile]
    for name, data in hostile.items():
        (tmp_path / f"{name}.tif").write_bytes(data)
    small = shared((64, 64), progressive(64, 8, 20), 8, (8,))
    (tmp_path / "usual.tif").write_bytes(small)
    index = FileIndex(tmp_path, np.array([*names, b"usual.tif"]), np.arange(len(names) + 1), tmp_path)
    ops = plan_chain([DecodeImage(), ResizeImage(size=8), NormalizeImage()], "CHW")
    quarantine = Quarantine(index, tmp_path / "bad_images.txt")
    order = Order(SequentialSampler(len(index)), batch_size=4)
    loader = MAKERS[kind](index, order, ops, quarantine=quarantine)  # type: ignore[call-arg]
    labels = [label for batch in loader for label in batch.label.numpy()[: batch.valid].tolist()]
    loader.release()
    assert labels == [len(names)]
    lines = (tmp_path / "bad_images.txt").read_text()
    assert all(f"{name}.tif" in lines for name in hostile)
