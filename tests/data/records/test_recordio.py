"""RecordIO: parts, label arrays, and magic numbers inside the content."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from formats import FORMATS, by_dali, content, opened, records, write, write_index

from ppcls.data.records.shard import ImageRecord, default_index_path
from ppcls.data.transforms.numpy_ops import DecodeError
from ppcls.errors import UserError

MAGIC = struct.pack("<I", 0xCED7230A)


def part(kind: int, data: bytes) -> bytes:
    return MAGIC + struct.pack("<I", kind << 29 | len(data)) + data + bytes(-len(data) % 4)


def header(label: float, flag: int = 0, identity: int = 0) -> bytes:
    return struct.pack("<IfQQ", flag, label, identity, 0)


def make(path: Path, *parts: bytes) -> Path:
    path.write_bytes(b"".join(parts))
    return write_index("recordio", path)


def test_recordio_write_has_known_bytes(tmp_path: Path) -> None:
    path = write("recordio", tmp_path / "a.rec", records([b"abcde", b"wxyz" + MAGIC + b"!"], [3, 7]))
    one = part(0, header(3) + b"abcde")
    two = part(1, header(7, identity=1) + b"wxyz") + part(3, b"!")
    assert path.read_bytes() == one + two
    assert default_index_path(path).read_text() == f"0\t0\n1\t{len(one)}\n"


@pytest.mark.parametrize(
    ("image", "parts"),
    [
        (b"ab" + MAGIC, [0]),
        (MAGIC, [1, 3]),
        (MAGIC * 3, [1, 2, 2, 3]),
        (b"x" + MAGIC + b"abc" + MAGIC, [1, 3]),
        (b"x" + MAGIC * 2, [0]),
    ],
)
def test_recordio_splits_at_aligned_magic_numbers(tmp_path: Path, image: bytes, parts: list[int]) -> None:
    path = write("recordio", tmp_path / "a.rec", records([image, b"next"], [3, 1]))
    data, at, kinds = path.read_bytes(), 0, []
    while at < len(data):
        word = struct.unpack_from("<I", data, at + 4)[0]
        kinds.append(word >> 29)
        at += 8 + ((word & (2**29 - 1)) + 3) // 4 * 4
    assert kinds == [*parts, 0]
    assert content(opened("recordio", path)) == [(image, 3), (b"next", 1)]
    assert by_dali("recordio", [path], 2) == [(image, 3), (b"next", 1)]


def test_recordio_reads_magic_number_in_the_image_header(tmp_path: Path) -> None:
    """An image's id may be anything; the header is then in two parts."""
    path = make(tmp_path / "a.rec", part(1, header(5)[:8]), part(3, bytes(12) + b"image"))
    assert content(opened("recordio", path)) == [(b"image", 5)]


def test_recordio_reads_label_array(tmp_path: Path) -> None:
    path = make(tmp_path / "a.rec", part(0, header(0, flag=1) + struct.pack("<f", 6) + b"image"))
    assert content(opened("recordio", path)) == [(b"image", 6)] == by_dali("recordio", [path], 1)


def test_recordio_sorts_the_index(tmp_path: Path) -> None:
    """MXNet's tools may shuffle it; like DALI we go by offsets."""
    path = write("recordio", tmp_path / "a.rec", records([b"a", b"bb", b"ccc"], [0, 1, 2]))
    lines = default_index_path(path).read_text().splitlines()
    default_index_path(path).write_text("\n".join([lines[2], lines[0], lines[1]]))
    assert content(opened("recordio", path)) == [(b"a", 0), (b"bb", 1), (b"ccc", 2)]
    assert by_dali("recordio", [path], 3) == content(opened("recordio", path))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (part(0, header(0, flag=2) + bytes(8)), "expected one label, found 2"),
        (part(0, header(1.5)), "expected a whole number up to 16777216 as label, found 1.5"),
        (
            part(0, header(1e30)),
            "expected a whole number up to 16777216 as label, found 1.0000000150474662e+30",
        ),
        (part(0, header(float("nan"))), "expected a whole number up to 16777216 as label, found nan"),
        (part(0, header(float("inf"))), "expected a whole number up to 16777216 as label, found inf"),
        (part(0, b"short"), "expected an image header of 24 bytes, found only 5 bytes"),
        (
            part(0, header(0, flag=1)),
            "expected a label of 4 bytes after the image header, found the end of the record",
        ),
    ],
)
def test_recordio_open_reports_missing_label(tmp_path: Path, data: bytes, text: str) -> None:
    path = make(tmp_path / "a.rec", data)
    with pytest.raises(UserError) as caught:
        opened("recordio", path)
    assert str(caught.value) == f"{path}, byte 0: {text}"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"no recordio", f"expected the magic number {MAGIC.hex()}, found {b'no r'.hex()}"),
        (b"no", "expected a part header of 8 bytes, found only 2 bytes"),
        (part(3, b"x"), "expected a record, found a part with flag 3"),
        (part(0, b"x")[:-1], "expected a part of 12 bytes, found only 11 bytes"),
    ],
)
def test_recordio_build_index_rejects_other_files(tmp_path: Path, data: bytes, text: str) -> None:
    (tmp_path / "a.rec").write_bytes(data)
    with pytest.raises(UserError) as caught:
        FORMATS["recordio"].build_index(tmp_path / "a.rec")
    assert str(caught.value) == f"{tmp_path}/a.rec, byte 0: {text}"


def test_recordio_build_index_rejects_wrong_order_of_parts(tmp_path: Path) -> None:
    data = part(1, header(0)) + part(1, b"x")
    (tmp_path / "a.rec").write_bytes(data)
    with pytest.raises(
        UserError, match=r"a\.rec, byte 32: expected the next part of a record, found a part with flag 1"
    ):
        FORMATS["recordio"].build_index(tmp_path / "a.rec")


def test_recordio_read_reports_damaged_record(tmp_path: Path) -> None:
    path = write("recordio", tmp_path / "a.rec", records([b"abcd" + MAGIC + b"efgh"], [3]))
    shard = opened("recordio", path)
    data = bytearray(path.read_bytes())
    data[36] ^= 1  # the second part's magic number
    path.write_bytes(data)
    with pytest.raises(DecodeError, match="damaged record: expected the magic number"):
        shard.read(0)


@pytest.mark.parametrize("record", [ImageRecord("a.jpg", b"x", 2**24)], ids=["label"])
def test_recordio_write_rejects_large_label(tmp_path: Path, record: ImageRecord) -> None:
    with pytest.raises(UserError, match=r"RecordIO can't store a\.jpg: labels must be below 16777216"):
        FORMATS["recordio"].write(tmp_path / "a.rec", [record])
