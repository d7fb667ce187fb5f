"""Shards as one index: paths, positions and labels."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ppcls.data.index.protocol import Index
from ppcls.data.index.records import (
    IndexedDataset,
    LMDBDataset,
    RecordDataset,
    RecordIODataset,
    TFRecordDataset,
    WebDataset,
)
from ppcls.data.records.lmdb import LMDBFormat
from ppcls.data.records.recordio import RecordIOFormat
from ppcls.data.records.shard import ImageRecord, RecordFormat, default_index_path
from ppcls.data.records.tfrecord import TFRecordFormat
from ppcls.data.records.webdataset import WebDatasetFormat
from ppcls.data.transforms.specs import DecodeImage, NormalizeImage, ResizeImage
from ppcls.errors import UserError

CHAIN = (DecodeImage(), ResizeImage(size=(8, 8)), NormalizeImage())
DATASETS: list[tuple[type[RecordDataset], RecordFormat]] = [
    (WebDataset, WebDatasetFormat()),
    (TFRecordDataset, TFRecordFormat()),
    (RecordIODataset, RecordIOFormat()),
    (LMDBDataset, LMDBFormat()),
]
SIZES = (3, 1, 4)


@pytest.fixture(params=DATASETS, ids=lambda pair: pair[1].name)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[type[RecordDataset], RecordFormat]:
    """Three shards; sample i has label i and the bytes of its number."""
    dataset, container = request.param
    first = 0
    for number, size in enumerate(SIZES):
        path = tmp_path / f"part-{number}{container.suffix}"
        container.write(path, [ImageRecord(f"{i}.jpg", b"%d" % i, i) for i in range(first, first + size)])
        text = container.build_index(path)
        if text is not None:
            default_index_path(path).write_text(text)
        first += size
    return dataset, container


def read(dataset: type[RecordDataset], class_num: int = 8, **options: Any) -> Index:
    return dataset(transform_ops=CHAIN, **options).read(class_num)


def test_record_index_concatenates_shards(
    kind: tuple[type[RecordDataset], RecordFormat], tmp_path: Path
) -> None:
    dataset, container = kind
    index = read(dataset, paths=(f"{tmp_path}/part-*{container.suffix}",))
    assert len(index) == 8
    assert index.labels.tolist() == list(range(8))
    assert index.labels.dtype == np.int64
    assert index.source == tmp_path
    assert [index.read(i) for i in range(8)] == [b"%d" % i for i in range(8)]
    shards = [tmp_path / f"part-{number}{container.suffix}" for number in (0, 0, 0, 1, 2, 2, 2, 2)]
    assert [index.name(i) for i in range(8)] == list(map(str, shards))
    assert [("record 3 " in index.where(i) or "00000003" in index.where(i)) for i in range(8)] == [
        False
    ] * 7 + [True]


def test_read_records_keeps_the_order_of_paths(
    kind: tuple[type[RecordDataset], RecordFormat], tmp_path: Path
) -> None:
    dataset, container = kind
    paths = tuple(f"{tmp_path}/part-{number}{container.suffix}" for number in (2, 0))
    index = read(dataset, paths=paths)
    assert index.labels.tolist() == [4, 5, 6, 7, 0, 1, 2]
    assert read(dataset, paths=paths[:1]).source == Path(paths[0])


def test_read_records_rejects_labels_out_of_range(
    kind: tuple[type[RecordDataset], RecordFormat], tmp_path: Path
) -> None:
    dataset, container = kind
    with pytest.raises(UserError) as caught:
        read(dataset, class_num=6, paths=(f"{tmp_path}/part-*{container.suffix}",))
    lines = str(caught.value).splitlines()
    assert len(lines) == 2
    place = f"{tmp_path}/part-2{container.suffix}, "
    assert lines[0].startswith(place)
    assert lines[0].endswith(": label 6 is not in 0..5; Arch.class_num is 6")
    with pytest.raises(UserError, match=r"label 4 is not in 0\.\.0"):
        read(dataset, class_num=1, paths=(f"{tmp_path}/part-2{container.suffix}",))


def test_record_index_reads_in_forked_processes(
    kind: tuple[type[RecordDataset], RecordFormat], tmp_path: Path
) -> None:
    """Whether files were open before the fork or not."""
    dataset, container = kind
    index = read(dataset, paths=(f"{tmp_path}/part-*{container.suffix}",))
    for opened_before in (False, True):
        if opened_before:
            index.read(0)
        children = []
        for _ in range(2):
            child = os.fork()
            if not child:
                right = all(index.read(i) == b"%d" % i for _ in range(50) for i in range(8))
                os._exit(0 if right else 1)
            children.append(child)
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
    assert index.read(7) == b"7"


def test_path_patterns_do_not_match_index_files(
    kind: tuple[type[RecordDataset], RecordFormat], tmp_path: Path
) -> None:
    assert len(read(kind[0], paths=(f"{tmp_path}/part-*",))) == 8
    with pytest.raises(UserError, match=r"/part-0\.i\*: expected a pattern that matches files"):
        read(kind[0], paths=(f"{tmp_path}/part-0.i*",))


@pytest.mark.parametrize("kind", DATASETS[:3], ids=lambda pair: pair[1].name, indirect=True)
def test_read_records_uses_index_paths(
    kind: tuple[type[IndexedDataset], RecordFormat], tmp_path: Path
) -> None:
    dataset, container = kind
    (tmp_path / "indexes").mkdir()
    for path in tmp_path.glob("*.idx"):
        path.rename(tmp_path / "indexes" / path.name)
    paths = (f"{tmp_path}/part-*{container.suffix}",)
    index = read(dataset, paths=paths, index_paths=(f"{tmp_path}/indexes/*.idx",))
    assert [index.read(i) for i in range(8)] == [b"%d" % i for i in range(8)]
    with pytest.raises(UserError, match="index_paths: expected 3 files, one for each file in 'paths', got 1"):
        read(dataset, paths=paths, index_paths=(f"{tmp_path}/indexes/part-0.idx",))
    with pytest.raises(UserError, match=f"{tmp_path}/part-0.idx: no index file for"):
        read(dataset, paths=paths)


def test_read_records_reports_missing_files(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        read(WebDataset, paths=(f"{tmp_path}/*.tar",))
    assert str(caught.value) == f"{tmp_path}/*.tar: expected a pattern that matches files, found no match"
    with pytest.raises(UserError) as caught:
        read(WebDataset, paths=(f"{tmp_path}/a.tar",))
    assert str(caught.value) == f"{tmp_path}/a.tar: no such file"


def test_read_records_rejects_folder_of_shards(
    kind: tuple[type[RecordDataset], RecordFormat], tmp_path: Path
) -> None:
    dataset, container = kind
    suggestion = re.escape(f"set for example {tmp_path}/*{container.suffix}")
    with pytest.raises(UserError, match=f"^{tmp_path}: .* in it, {suggestion}"):
        read(dataset, paths=(str(tmp_path),))


def test_lmdb_dataset_rejects_index_paths(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"unknown key; LMDB needs no index files; remove it"):
        LMDBDataset(transform_ops=CHAIN, paths=("a.lmdb",), index_paths=("a.idx",))  # type: ignore[call-arg]


def test_read_records_rejects_repeated_file(
    kind: tuple[type[RecordDataset], RecordFormat], tmp_path: Path
) -> None:
    dataset, container = kind
    first = tmp_path / f"part-0{container.suffix}"
    (tmp_path / "link").symlink_to(first)
    for again in (first, tmp_path / "link"):
        with pytest.raises(UserError, match=f"{again}: listed twice; list each file once"):
            read(dataset, paths=(f"{tmp_path}/part-*{container.suffix}", str(again)))


@pytest.mark.parametrize(
    ("name", "beside"),
    [
        ("a.tar", "a.idx"),
        ("a.b.rec", "a.b.idx"),
        ("a.tfrecord", "a.idx"),
        ("train-00001-of-01024", "train-00001-of-01024.idx"),
        ("v1.2", "v1.2.idx"),
    ],
)
def test_default_index_path_is_beside_the_shard(name: str, beside: str) -> None:
    assert default_index_path(Path("x") / name) == Path("x") / beside
