"""The contract of all record formats, compared with the readers of DALI."""

from __future__ import annotations

import os
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from formats import FORMATS, IN_FILES, by_dali, content, opened, pairs, records, write, write_index
from hypothesis import given, settings
from hypothesis import strategies as st

from ppcls.data.records.shard import OpenFiles, default_index_path
from ppcls.data.transforms.numpy_ops import DecodeError
from ppcls.errors import UserError

MAGIC = struct.pack("<I", 0xCED7230A)  # what RecordIO must not take for a record's beginning
IMAGES = st.one_of(
    st.binary(min_size=1, max_size=40),
    st.lists(st.sampled_from([MAGIC, b"abcd", b"x", b"\0\0"]), min_size=1, max_size=12).map(b"".join),
)
SAMPLES = st.lists(st.tuples(IMAGES, st.integers(0, 2**24 - 1)), min_size=1, max_size=6)
FEW = records([b"first image", b"2", MAGIC + b"third" + MAGIC * 2, bytes(9000)], [3, 0, 1, 999])


@pytest.fixture(params=FORMATS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=IN_FILES)
def in_file(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@given(SAMPLES)
@settings(max_examples=30)
@pytest.mark.parametrize("name", FORMATS)
def test_format_round_trips(
    name: str, tmp_path_factory: pytest.TempPathFactory, samples: list[tuple[bytes, int]]
) -> None:
    path = tmp_path_factory.mktemp(name) / f"shard{FORMATS[name].suffix}"
    assert content(opened(name, write(name, path, records(*zip(*samples, strict=True))))) == samples


@given(SAMPLES)
@settings(max_examples=10)
@pytest.mark.parametrize("name", FORMATS)
def test_dali_reads_the_same_records(
    name: str, tmp_path_factory: pytest.TempPathFactory, samples: list[tuple[bytes, int]]
) -> None:
    path = tmp_path_factory.mktemp(name) / f"shard{FORMATS[name].suffix}"
    write(name, path, records(*zip(*samples, strict=True)))
    assert by_dali(name, [path], len(samples)) == samples


def test_dali_reads_several_shards(name: str, photos: dict[str, Path], tmp_path: Path) -> None:
    samples = records([path.read_bytes() for path in photos.values()], list(range(len(photos))))
    paths = []
    for number, begin in enumerate(range(0, len(samples), 10)):
        path = tmp_path / f"{number}{FORMATS[name].suffix}"
        paths.append(write(name, path, samples[begin : begin + 10]))
    ours = [pair for path in paths for pair in content(opened(name, path))]
    assert ours == pairs(samples)
    if name == "recordio":  # DALI takes one file of this format
        counts = [len(opened(name, path).labels) for path in paths]
        alone = [by_dali(name, [path], count) for path, count in zip(paths, counts, strict=True)]
        assert [pair for pairs_of in alone for pair in pairs_of] == ours
    else:
        assert by_dali(name, paths, len(samples)) == ours


def test_write_is_deterministic(in_file: str, tmp_path: Path) -> None:
    one, two = (write(in_file, tmp_path / f"{number}.shard", FEW) for number in range(2))
    assert one.read_bytes() == two.read_bytes()


def test_write_keeps_existing_file(in_file: str, tmp_path: Path) -> None:
    path = tmp_path / "there"
    path.write_text("mine")
    with pytest.raises(FileExistsError):
        FORMATS[in_file].write(path, FEW)
    assert path.read_text() == "mine"


def test_truncated_shard_is_rejected(in_file: str, tmp_path: Path) -> None:
    """By the indexer, and by a reader with the index of the whole file."""
    path = write(in_file, tmp_path / f"shard{FORMATS[in_file].suffix}", FEW)
    whole = path.read_bytes()
    begins = {int(offset) for offset in opened(in_file, path).offsets}
    end = len(whole)
    if in_file == "webdataset":  # a tar ends in blocks of zeros
        begins, end = set(), len(whole.rstrip(b"\0"))
    for size in sorted({*range(0, end, 97), *begins, 1, 11, 12, 511, 512, end - 1}):
        path.write_bytes(whole[:size])
        if size == 0 or size not in begins:
            with pytest.raises(UserError, match=str(path)):
                FORMATS[in_file].build_index(path)
        with pytest.raises((UserError, DecodeError)):
            content(opened(in_file, path))


@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
@settings(max_examples=60)
@pytest.mark.parametrize("in_file", IN_FILES)
def test_damaged_byte_raises_or_is_harmless(
    in_file: str, tmp_path_factory: pytest.TempPathFactory, place: float, flip: int
) -> None:
    path = write(in_file, tmp_path_factory.mktemp(in_file) / "shard", FEW)
    data = bytearray(path.read_bytes())
    data[int(place * len(data))] ^= flip
    path.write_bytes(data)
    for indexed in (False, True):
        try:
            if indexed:
                write_index(in_file, path)
            found = content(opened(in_file, path))
        except (UserError, DecodeError):
            continue
        assert len(found) == len(FEW)
        if in_file == "tfrecord":
            assert found == pairs(FEW), "every byte has a checksum"


def test_build_index_rejects_empty_shard(in_file: str, tmp_path: Path) -> None:
    (tmp_path / "shard").touch()
    with pytest.raises(UserError, match=str(tmp_path / "shard")):
        FORMATS[in_file].build_index(tmp_path / "shard")


def test_open_rejects_index_of_another_shard(in_file: str, tmp_path: Path) -> None:
    one = write(in_file, tmp_path / "one", FEW)
    two = write(in_file, tmp_path / "two", records([b"a" * 70], [1]))
    default_index_path(two).write_text(default_index_path(one).read_text())
    with pytest.raises(
        UserError, match=f"{default_index_path(two)}: not the index of {two}: .* build it with: ppcls"
    ):
        opened(in_file, two)


@pytest.mark.parametrize(
    "text", ["", "\n", "x\n", "1\n", "0\t-1\n", "v1.2 1\njpg 0 x a.jpg\n", "0 ٣\n", "v1.2 1\n\n"]
)
def test_open_rejects_wrong_index(in_file: str, tmp_path: Path, text: str) -> None:
    path = write(in_file, tmp_path / "shard", FEW)
    default_index_path(path).write_text(text)
    with pytest.raises(UserError, match=str(default_index_path(path))):
        opened(in_file, path)


@given(st.binary(max_size=60))
@pytest.mark.parametrize("in_file", IN_FILES)
def test_open_rejects_any_bytes_as_index(
    in_file: str, tmp_path_factory: pytest.TempPathFactory, text: bytes
) -> None:
    path = tmp_path_factory.mktemp(in_file) / "shard"
    FORMATS[in_file].write(path, FEW)
    default_index_path(path).write_bytes(text)
    with pytest.raises(UserError, match=str(default_index_path(path))):
        opened(in_file, path)


def test_open_reports_missing_index(in_file: str, tmp_path: Path) -> None:
    path = tmp_path / "shard"
    FORMATS[in_file].write(path, FEW)
    with pytest.raises(UserError) as caught:
        opened(in_file, path)
    index = default_index_path(path)
    assert str(caught.value) == (
        f"{index}: no index file for {path}; build it with: ppcls dataset index {path}"
    )


def test_open_reports_missing_shard(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"^{tmp_path}/gone: "):
        opened(name, tmp_path / "gone")
    (tmp_path / "gone.idx").write_text("v1.2 1\njpg 0 1 a cls 1 1 a\n" if name == "webdataset" else "0 1\n")
    with pytest.raises(UserError, match=f"^{tmp_path}/gone: "):
        opened(name, tmp_path / "gone")


def test_open_rejects_pipes(in_file: str, tmp_path: Path) -> None:
    path = tmp_path / "shard"
    os.mkfifo(path)
    with pytest.raises(UserError, match=f"^{path}: can't read this (index )?file: not a regular file$"):
        FORMATS[in_file].build_index(path)
    (tmp_path / "shard.idx").write_text(
        "v1.2 1\njpg 0 1 a cls 1 1 a\n" if in_file == "webdataset" else "0 1\n"
    )
    with pytest.raises(UserError, match=f"^{path}: can't read this (index )?file: not a regular file$"):
        opened(in_file, path)
    (tmp_path / "shard.idx").unlink()
    os.mkfifo(tmp_path / "shard.idx")
    with pytest.raises(UserError, match=f"^{path}.idx: can't read this (index )?file: not a regular file$"):
        opened(in_file, path)


def test_open_files_is_thread_safe(tmp_path: Path) -> None:
    paths = [write("tfrecord", tmp_path / f"{number}.tfrecord", FEW) for number in range(150)]
    wanted = [path.read_bytes() for path in paths]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            files = OpenFiles()
            turns = [number for number in range(150) for _ in range(8)]
            found = list(pool.map(lambda n: files.read(paths[n], 0, len(wanted[n])), turns))  # noqa: B023
            assert found == [wanted[number] for number in turns]


def test_open_files_limits_open_files(tmp_path: Path) -> None:
    paths = [write("tfrecord", tmp_path / f"{number}.tfrecord", FEW[:1]) for number in range(200)]
    files = OpenFiles()
    shards = [FORMATS["tfrecord"].open(path, default_index_path(path), files) for path in paths]
    for _ in range(2):
        assert {shard.read(0) for shard in shards} == {b"first image"}
    mine = [each.resolve() for each in Path("/proc/self/fd").iterdir() if each.exists()]
    assert sum(each.parent == tmp_path for each in mine) == 128


@pytest.mark.hostile
@pytest.mark.parametrize("name", FORMATS)
def test_read_huge_record_is_a_bad_image(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = opened(name, write(name, tmp_path / "shard", records([b"x" * 9000, b"small"], [1, 2])))
    monkeypatch.setattr("ppcls.data.images.header.MAX_IMAGE_BYTES", 8000)
    with pytest.raises(DecodeError, match=r"expected an image file of at most 8000 bytes, found 9\d\d\d"):
        shard.read(0)
    assert shard.read(1) == b"small"


@pytest.mark.hostile
@pytest.mark.parametrize("name", FORMATS)
def test_read_shard_replaced_by_pipe_is_a_bad_image(name: str, tmp_path: Path) -> None:
    shard = opened(name, write(name, tmp_path / "shard", records([b"image"], [1])))
    file = tmp_path / "shard/data.mdb" if name == "lmdb" else tmp_path / "shard"
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(DecodeError, match="illegal seek"):
        shard.read(0)
