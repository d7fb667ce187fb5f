"""LMDB folders: shared environments, forked processes, and content that is not Caffe2's."""

from __future__ import annotations

import gc
import os
import resource
from contextlib import suppress
from pathlib import Path

import lmdb
import pytest
from formats import by_dali, content, opened, pairs, records, write
from hypothesis import given
from hypothesis import strategies as st

from ppcls.data.records.messages import TensorProto, TensorProtos
from ppcls.data.transforms.numpy_ops import DecodeError
from ppcls.errors import UserError

SAMPLES = records([b"one", b"two" * 3000, b"three"], [4, 0, 17])
IMAGE = TensorProto(dims=[1], data_type=4, string_data=[b"image"])
LABEL = TensorProto(dims=[1], data_type=2, int32_data=[3])


def make(path: Path, values: dict[bytes, bytes]) -> Path:
    with lmdb.open(str(path), lock=False) as environment, environment.begin(write=True) as transaction:
        for key, value in values.items():
            transaction.put(key, value)
    return path


def value(*protos: object) -> bytes:
    return bytes(TensorProtos(protos=protos).SerializeToString())


def test_lmdb_opens_the_same_folder_twice(tmp_path: Path) -> None:
    path = write("lmdb", tmp_path / "a.lmdb", SAMPLES)
    (tmp_path / "link").symlink_to(path)
    one, two = opened("lmdb", path), opened("lmdb", tmp_path / "link")
    assert content(one) == content(two) == pairs(SAMPLES)
    del one
    gc.collect()
    assert content(two) == pairs(SAMPLES)
    assert by_dali("lmdb", [path], 3) == pairs(SAMPLES), "DALI may have it open too"


def test_lmdb_reads_in_forked_process(tmp_path: Path) -> None:
    shard = opened("lmdb", write("lmdb", tmp_path / "a.lmdb", SAMPLES))
    shard.read(0)
    child = os.fork()
    if not child:
        os._exit(0 if content(shard) == pairs(SAMPLES) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert content(shard) == pairs(SAMPLES)


def test_lmdb_reads_without_writing(tmp_path: Path) -> None:
    path = write("lmdb", tmp_path / "a.lmdb", SAMPLES)
    before = (path / "data.mdb").read_bytes()
    for each in (path / "data.mdb", path):
        each.chmod(0o555)
    try:
        assert content(opened("lmdb", path)) == pairs(SAMPLES)
        assert [each.name for each in path.iterdir()] == ["data.mdb"]
        assert (path / "data.mdb").read_bytes() == before
    finally:
        path.chmod(0o755)


def test_lmdb_accepts_any_keys(tmp_path: Path) -> None:
    keys = [b"\0", b"\0\0", b"a\0", "é".encode(), b"\xff", b"k" * 300]
    path = make(tmp_path / "a.lmdb", {key: value(IMAGE, LABEL) for key in keys})
    shard = opened("lmdb", path)
    assert content(shard) == [(b"image", 3)] * 6
    assert shard.where(0) == "key '\\x00'"


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"no message",
        value(IMAGE),
        value(IMAGE, TensorProto(data_type=2, int32_data=[1, 2])),
        value(IMAGE, TensorProto(data_type=1, float_data=[1])),
    ],
)
def test_lmdb_rejects_other_values(tmp_path: Path, wrong: bytes) -> None:
    path = make(tmp_path / "a.lmdb", {b"1": value(IMAGE, LABEL), b"2": wrong or b"\x20"})
    with pytest.raises(UserError) as caught:
        opened("lmdb", path)
    assert str(caught.value) == (
        f"{path}, key '2': expected Caffe2's TensorProtos with an encoded image and one int32 label, "
        "found other data"
    )


@pytest.mark.parametrize(
    ("image", "text"),
    [
        (TensorProto(dims=[1, 1, 3], data_type=3, byte_data=b"abc"), "expected one encoded image"),
        (TensorProto(data_type=4), "expected one encoded image"),
        (TensorProto(data_type=4, string_data=[b"a", b"b"]), "expected one encoded image"),
        (TensorProto(data_type=4, string_data=[b""]), "the record has an image of 0 bytes"),
    ],
)
def test_lmdb_read_reports_missing_image(tmp_path: Path, image: object, text: str) -> None:
    with pytest.raises(DecodeError, match=text):
        opened("lmdb", make(tmp_path / "a.lmdb", {b"1": value(image, LABEL)})).read(0)


def test_lmdb_rejects_truncated_file(tmp_path: Path) -> None:
    path = write("lmdb", tmp_path / "a.lmdb", SAMPLES)
    data = path / "data.mdb"
    whole = data.stat().st_size
    os.truncate(data, whole - 4096)
    with pytest.raises(UserError) as caught:
        opened("lmdb", path)
    assert str(caught.value) == f"{data}: expected {whole} bytes, found {whole - 4096}; the file is truncated"


def test_lmdb_rejects_other_folders(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=f"^{tmp_path}: expected an LMDB folder with data.mdb, found a folder"
    ):
        opened("lmdb", tmp_path)
    for content_of in (b"", b"no lmdb" * 2000):
        (tmp_path / "data.mdb").write_bytes(content_of)
        with pytest.raises(UserError, match=f"^{tmp_path}/data.mdb: expected a.* LMDB.*, found "):
            opened("lmdb", tmp_path)
    with pytest.raises(UserError, match="expected an LMDB with at least one record"):
        opened("lmdb", make(tmp_path / "empty", {}))


def test_lmdb_reads_trees_of_several_levels_in_the_order_of_their_keys(tmp_path: Path) -> None:
    keys = [b"%06d" % (number * 7919 % 5000) for number in range(5000)]
    shard = opened("lmdb", make(tmp_path / "a.lmdb", {key: value(IMAGE, LABEL) for key in keys}))
    assert [shard.where(number) for number in range(5000)] == [
        f"key '{key.decode()}'" for key in sorted(keys)
    ]
    assert content(shard) == [(b"image", 3)] * 5000


def test_lmdb_reads_the_last_transaction(tmp_path: Path) -> None:
    path = make(tmp_path / "a.lmdb", {b"a": value(IMAGE, LABEL), b"b": value(IMAGE, LABEL)})
    for _ in range(3):
        with lmdb.open(str(path), lock=False) as environment, environment.begin(write=True) as transaction:
            transaction.delete(b"a")
            transaction.put(b"c", value(TensorProto(data_type=4, string_data=[b"x" * 9000]), LABEL))
        assert content(opened("lmdb", path)) == [(b"image", 3), (b"x" * 9000, 3)]


def test_lmdb_of_several_values_per_key_is_rejected(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path), lock=False, max_dbs=1) as environment:
        environment.open_db(b"inner", dupsort=True)
    with pytest.raises(UserError, match=r"data.mdb: expected one value per key"):
        opened("lmdb", tmp_path)


@pytest.mark.hostile
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 200), st.integers(0, 255)), max_size=3))
def test_lmdb_damaged_pages_raise_only_our_errors(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int, int]]
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "a.lmdb"
    write("lmdb", path, SAMPLES)
    data = bytearray((path / "data.mdb").read_bytes())
    for page, at, byte in changes:
        data[page * 4096 + at] = byte
    (path / "data.mdb").write_bytes(data)
    with suppress(UserError, DecodeError):
        content(opened("lmdb", path))


def test_lmdb_truncated_during_the_run_is_a_bad_image(tmp_path: Path) -> None:
    shard = opened("lmdb", write("lmdb", tmp_path / "a.lmdb", SAMPLES))
    os.truncate(tmp_path / "a.lmdb/data.mdb", 4096)
    with pytest.raises(DecodeError, match="the file ends after"):
        shard.read(0)


@pytest.mark.hostile
def test_full_disk_is_named(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))  # as a full disk: writing more fails
    try:
        with pytest.raises(OSError, match=r"a\.lmdb"):
            write("lmdb", tmp_path / "a.lmdb", records([bytes(50_000)] * 5, [0] * 5))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
