"""Data sets in object storage: the same samples as on a disk, few requests, bounded copies, and failures."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fault_proxy import FaultProxy
from loader_conformance import MAKERS, ORDER, TRAIN, photo_files
from s3_server import BUCKET, s3_server

from ppcls.data.index.base import Dataset
from ppcls.data.index.files import FileIndex
from ppcls.data.index.folders import ImageFolderDataset
from ppcls.data.index.image_lists import ImageNetDataset
from ppcls.data.index.protocol import Index, describe_index
from ppcls.data.index.records import StoredShards, TFRecordDataset, WebDataset
from ppcls.data.records.formats import FORMATS
from ppcls.data.records.shard import ImageRecord, default_index_path
from ppcls.data.sampling.epoch_samplers import ShardWindowSampler
from ppcls.data.sampling.order import Cursor, Order
from ppcls.data.stored.ahead import ReadAhead
from ppcls.data.stored.files import StoredFiles
from ppcls.data.stored.shards import StoredRecords
from ppcls.errors import DecodeError, UserError
from ppcls.files import objects
from ppcls.files.object_cache import GIB, ObjectCache, data_folder
from ppcls.files.objects import ObjectInfo, Objects, StorageError

URL = f"s3://{BUCKET}/pets"
FAULTS = ("busy", "reset", "internal", "expired", "denied")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    monkeypatch.setattr(objects, "RETRY_DELAYS", (0.0,) * 5)
    with s3_server(monkeypatch, tmp_path / "home") as proxy:
        gc.freeze()  # the collection below visits only new objects: those of moto take a quarter of a second
        yield proxy
        gc.collect()  # ends the threads of loaders, which would connect to the real S3


@pytest.fixture
def files(photos: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> FileIndex:
    found = photo_files(photos, tmp_path_factory)
    assert isinstance(found, FileIndex)
    return found


def upload(folder: Path, url: str = URL) -> None:
    address = Objects(url)
    for file in folder.rglob("*"):
        if file.is_file():
            address.upload(file, file.relative_to(folder).as_posix())


def listed(files: FileIndex) -> ImageNetDataset:
    """Uploads the images and their list, and returns the data set of the objects."""
    address = Objects(URL)
    for position in range(len(files)):
        address.write(Path(files.name(position)).name, files.read(position))
    address.upload(files.source, "list.txt")
    return dataset(ImageNetDataset, image_root=URL, cls_label_path=f"{URL}/list.txt")


def dataset(kind: Any, **keys: Any) -> Any:
    return kind(transform_ops=tuple(op.spec for op in TRAIN), **keys)


def class_folders(files: FileIndex, root: Path) -> Path:
    for position, label in enumerate(files.labels):
        folder = root / ("cat", "dog", "emu")[int(label) % 3]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / Path(files.name(position)).name).write_bytes(files.read(position))
    return root


def write_shards(files: FileIndex, folder: Path, kind: str = "webdataset", size: int = 3) -> Path:
    form = FORMATS[kind]
    folder.mkdir()
    for begin in range(0, len(files), size):
        path = folder / f"train-{begin:02}{form.suffix}"
        positions = range(begin, min(begin + size, len(files)))
        form.write(path, [ImageRecord(f"{i}.jpg", files.read(i), int(files.labels[i])) for i in positions])
        default_index_path(path).write_text(str(form.build_index(path)))
    return folder


def content(index: Index) -> list[tuple[bytes, Any]]:
    return [(bytes(index.read(i)), index.labels[i].tolist()) for i in range(len(index))]


def gets(server: FaultProxy) -> Counter[str]:
    """Returns the number of times that each object was read."""
    return Counter(path for method, path in server.served if method == "GET" and path.count("/") > 2)


def test_list_has_the_samples_of_the_disk_and_reads_each_object_once(
    server: FaultProxy, files: FileIndex
) -> None:
    data = listed(files)
    server.served.clear()
    index = data.read(21)
    assert isinstance(index, StoredFiles)
    assert content(index) == content(files)
    assert content(data.read(21)) == content(files)  # from the copies
    assert set(gets(server).values()) == {1}
    assert index.name(2) == f"{URL}/{Path(files.name(2)).name}"
    assert index.where(2) == f"{URL}/list.txt, line 3"
    assert index.find([(index.name(2), index.where(2))]) == [2]
    assert describe_index(index) == describe_index(files), "a run can move from a disk to object storage"


def test_folder_has_the_classes_and_the_split_of_the_disk(
    server: FaultProxy, files: FileIndex, tmp_path: Path
) -> None:
    root = class_folders(files, tmp_path / "pets")
    upload(root)
    Objects(URL).write("cat/", b"")  # the console of S3 makes such objects for folders
    for part in ("train", "val"):
        ours, theirs = (
            dataset(ImageFolderDataset, image_root=place, part=part, val_share=0.3)
            for place in (URL, str(root))
        )
        assert ours.folder_classes == theirs.folder_classes == ("cat", "dog", "emu")
        index = ours.read(3)
        assert content(index) == content(theirs.read(3))
        assert index.name(0).startswith(f"{URL}/cat/")
    before = index.read(0)
    Objects(URL).write(index.name(0)[len(URL) + 1 :], b"replaced")
    assert index.read(0) == before, "a run keeps its samples"


def test_parts_of_a_folder_are_its_subfolders(server: FaultProxy, files: FileIndex, tmp_path: Path) -> None:
    for part in ("train", "valid"):
        upload(class_folders(files, tmp_path / part), f"{URL}/{part}")
    index = dataset(ImageFolderDataset, image_root=URL, part="val").read(3)
    assert index.name(0).startswith(f"{URL}/valid/cat/")
    assert len(content(index)) == len(files)


@pytest.mark.parametrize(
    ("form", "kind", "with_index"),
    [
        ("webdataset", WebDataset, True),
        ("tfrecord", TFRecordDataset, False),
        pytest.param("webdataset", WebDataset, False, marks=pytest.mark.slow),
        pytest.param("tfrecord", TFRecordDataset, True, marks=pytest.mark.slow),
    ],
)
def test_containers_have_the_samples_of_the_disk(
    server: FaultProxy, files: FileIndex, tmp_path: Path, form: str, kind: type[Dataset], with_index: bool
) -> None:
    folder = write_shards(files, tmp_path / "shards", form)
    if not with_index:
        for each in folder.glob("*.idx"):
            each.unlink()
    upload(folder)
    suffix = FORMATS[form].suffix
    server.served.clear()
    keys = {} if form == "webdataset" else {"first_label": 0}
    index = dataset(kind, paths=[f"{URL}/train-*{suffix}"], **keys).read(21)
    assert content(index) == content(files)
    assert set(gets(server).values()) == {1}
    assert index.name(4) == f"{URL}/train-03{suffix}"
    server.served.clear()
    again = dataset(kind, paths=[f"{URL}/train-*{suffix}"], **keys).read(21)
    assert again.labels.tolist() == files.labels.tolist()
    assert not gets(server), "labels and copies remain for the next run"
    stored = [file for file in (data_folder(URL) / "records").rglob("*") if file.read_bytes()[:2] == b"PK"]
    assert stored
    for file in stored:
        file.write_bytes(file.read_bytes()[:-30])
    repaired = dataset(kind, paths=[f"{URL}/train-*{suffix}"], **keys).read(21)
    assert repaired.labels.tolist() == files.labels.tolist()


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("dali-cpu", "files"),
        *(
            pytest.param(kind, source, marks=pytest.mark.slow)
            for kind in ("dali-cpu", "paddle-0", "paddle-2")
            for source in ("files", "shards")
            if (kind, source) != ("dali-cpu", "files")
        ),
    ],
)
def test_loaders_yield_the_batches_of_the_disk_although_requests_fail(
    server: FaultProxy, files: FileIndex, tmp_path: Path, kind: str, source: str
) -> None:
    """Every third request fails, in each of the ways in which servers and networks fail."""
    if source == "files":
        data = listed(files)
    else:
        upload(write_shards(files, tmp_path / "shards"))
        data = dataset(WebDataset, paths=[f"{URL}/*.tar"])
    server.fault = lambda method, path, number: None if number % 3 else FAULTS[number // 3 % len(FAULTS)]
    order = ORDER
    loaders = [MAKERS[kind](index, order, TRAIN) for index in (data.read(21), files)]
    for ours, theirs in zip(*loaders, strict=True):
        np.testing.assert_array_equal(np.asarray(ours.image), np.asarray(theirs.image))
        np.testing.assert_array_equal(np.asarray(ours.label), np.asarray(theirs.label))


@pytest.mark.parametrize(
    "kind", ["dali-cpu", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("paddle-0", "paddle-2"))]
)
def test_storage_that_stays_away_is_an_error_for_another_try(
    server: FaultProxy, files: FileIndex, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = listed(files).read(21)
    monkeypatch.setattr(objects, "RETRY_DELAYS", ())
    loader = MAKERS[kind](index, ORDER, TRAIN)
    server.fault = lambda method, path, number: "busy"
    with pytest.raises(StorageError, match=rf"{URL}/.* can't read this object: .*SlowDown") as caught:
        list(loader)
    assert caught.value.code == 75


def test_missing_object_is_a_bad_image(server: FaultProxy, files: FileIndex) -> None:
    index = listed(files).read(21)
    Objects(URL).remove([Path(files.name(3)).name])
    with pytest.raises(DecodeError, match="no such object"):
        index.read(3)


def test_processes_share_copies_and_wait_for_one_download(server: FaultProxy, files: FileIndex) -> None:
    index = listed(files).read(21)
    server.served.clear()
    server.delay = 0.02
    children = []
    for _ in range(3):
        if not (child := os.fork()):
            try:
                os._exit(int(content(index) != content(files)))
            finally:
                os._exit(2)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]
    assert set(gets(server).values()) == {1}


def test_copies_stay_within_the_limit_and_shards_are_read_once_per_epoch(
    server: FaultProxy, files: FileIndex, tmp_path: Path
) -> None:
    folder = write_shards(files, tmp_path / "shards", size=1)
    upload(folder)
    sizes = [path.stat().st_size for path in folder.glob("*.tar")]
    limit = sum(sizes) // 2
    index = dataset(WebDataset, paths=[f"{URL}/*.tar"], storage_cache=limit / GIB).read(21)
    assert isinstance(index, StoredShards)
    server.served.clear()
    order = Order(ShardWindowSampler(index.shard_ends, 2), batch_size=2, seed=3)
    expected = content(files)
    for epoch in range(2):
        for step in range(len(order)):
            samples = order.at(Cursor(epoch, step))
            for position in samples.indices[: samples.valid].tolist():
                assert (bytes(index.read(position)), int(index.labels[position])) == expected[position]
            copies = (data_folder(URL) / "copies").glob("*/*")
            assert sum(path.stat().st_size for path in copies) <= limit + max(sizes)
    assert max(gets(server).values()) <= 2, "each shard once per epoch"


def test_shard_whose_copy_is_removed_before_it_is_read_is_downloaded_again(
    server: FaultProxy, files: FileIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As other threads do that open shards, if the limit of the copies is small."""
    upload(write_shards(files, tmp_path / "shards", size=1))
    fetch, removed = StoredRecords.fetch, list[str]()

    def fetch_in_vain(self: StoredRecords, name: str, info: ObjectInfo) -> Path:
        copy = fetch(self, name, info)
        if name not in removed:
            removed.append(name)
            copy.unlink()
        return copy

    monkeypatch.setattr(StoredRecords, "fetch", fetch_in_vain)
    index = dataset(WebDataset, paths=[f"{URL}/*.tar"]).read(21)
    assert len(index) == len(removed) == 21


def test_next_batches_are_downloaded_ahead(server: FaultProxy, files: FileIndex) -> None:
    index = listed(files).read(21)
    assert isinstance(index, StoredFiles)
    index.ahead = 8
    order = Order(ShardWindowSampler((len(files),), 1), batch_size=4)
    ahead = ReadAhead(index, order)
    cache = ObjectCache(URL, GIB)

    def wait_for(steps: range) -> None:
        positions = np.concatenate([order.at(Cursor(0, step)).indices for step in steps])
        for name, _ in index.objects(positions):
            while not cache.path(name, "").exists():
                pass

    ahead.move(Cursor(0, 0))
    wait_for(range(2))
    names = [name for name, _ in index.objects(order.at(Cursor(0, 3)).indices)]
    assert not any(cache.path(name, "").exists() for name in names)
    ahead.move(Cursor(0, 2))
    wait_for(range(4))
    ahead.close()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"paths": (f"{URL}/none-*.tar",)}, f"{URL}/none-*.tar: no such object"),
        ({"paths": (f"{URL}/*.tar", f"{URL}/train-00.tar")}, "train-00.tar: listed twice"),
        ({"paths": (f"{URL}/*.tar", "s3://other/x.tar")}, "expected addresses in one folder"),
        ({"paths": (f"{URL}/*.tar",), "index_paths": (f"{URL}/train-00.idx",)}, "expected 7 objects, one"),
    ],
)
def test_wrong_addresses_are_explained(
    server: FaultProxy, files: FileIndex, tmp_path: Path, keys: dict[str, Any], message: str
) -> None:
    upload(write_shards(files, tmp_path / "shards"))
    with pytest.raises(UserError) as caught:
        dataset(WebDataset, **keys).read(21)
    assert message in str(caught.value)


def test_errors_name_the_addresses(server: FaultProxy, files: FileIndex, tmp_path: Path) -> None:
    address = Objects(URL)
    with pytest.raises(UserError, match=f"^{URL}/list.txt: no such object"):
        dataset(ImageNetDataset, image_root=URL, cls_label_path=f"{URL}/list.txt").read(21)
    address.write("list.txt", b"a.jpg x\n")
    with pytest.raises(UserError, match=f"{URL}/list.txt, line 1: "):
        dataset(ImageNetDataset, image_root=URL, cls_label_path=f"{URL}/list.txt").read(21)
    address.write("train-0.tar", b"no tar")
    with pytest.raises(UserError, match=f"^{URL}/train-0.tar"):
        dataset(WebDataset, paths=[f"{URL}/train-0.tar"]).read(21)
    with pytest.raises(UserError, match=f"^{URL}/gone: no objects at this address"):
        dataset(ImageFolderDataset, image_root=f"{URL}/gone").read(21)
    with pytest.raises(UserError, match=f"^{URL}: "):
        dataset(ImageFolderDataset, image_root=URL).read(21)


def test_full_disk_is_explained(
    server: FaultProxy, files: FileIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = listed(files).read(21)

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Objects, "download", fail)
    with pytest.raises(
        UserError, match="No space left on device; free space, or set storage_cache"
    ) as caught:
        index.read(0)
    assert caught.value.code == 2


def test_interrupted_downloads_are_removed(
    server: FaultProxy, files: FileIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed(files)
    cache = ObjectCache(URL, 1)
    name = Path(files.name(0)).name
    path = cache.fetch(name, ObjectInfo(-1, ""))
    left = path.with_name(".00000000.left")
    left.write_bytes(b"half")
    os.utime(left, (0, 0))
    cache.fetch(Path(files.name(1)).name, ObjectInfo(-1, ""))
    assert not left.exists()


def test_download_of_another_size_is_repeated(server: FaultProxy, files: FileIndex, tmp_path: Path) -> None:
    Objects(URL).write("a", b"1234")
    with pytest.raises(StorageError, match="expected 5 bytes, received 4"):
        Objects(URL).download("a", tmp_path / "a", 5)
    assert not list(tmp_path.glob("*a*"))
