"""Reads containers that are objects of a storage, such as the shards of a WebDataset.

Decisions:
- A shard is downloaded as a whole when one of its images is needed. A request per image would be slow and
  expensive, and the samplers that fit containers use the images of few shards at a time.
- Offsets, sizes and labels of the records are stored on this machine when a shard is read for the first time,
  because labels are in the shards and samplers need all of them.
"""

from __future__ import annotations

import fnmatch
import io
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.data.images.header import check_size
from ppcls.data.records.shard import (
    INDEX_SUFFIX,
    FileFormat,
    FileShard,
    OpenFiles,
    RecordFormat,
    default_index_path,
    how_to_rebuild,
)
from ppcls.data.stored.roots import naming, stored_objects
from ppcls.errors import DecodeError, UserError, counted
from ppcls.files.damaged import NUMPY_ERRORS
from ppcls.files.object_cache import GIB, ObjectCache, data_folder, lock, write_new
from ppcls.files.objects import ObjectInfo
from ppcls.files.urls import UrlPath

_PARALLEL_SHARDS = 4  # shards that are opened at the same time
_MAGIC = frozenset("*?[")


@dataclass(frozen=True)
class StoredRecords:
    """Reads records of shards in object storage. Takes the place of `OpenFiles`.

    Attributes:
        cache: Copies of the shards.
        infos: Size and version of each shard, by its name.
    """

    cache: ObjectCache
    infos: dict[str, ObjectInfo]

    def read(self, path: Path, offset: int, size: int) -> bytes:
        """Returns ``size`` bytes of the shard at the address ``path`` from ``offset``.

        Raises:
            DecodeError: The shard ends before, or ``size`` exceeds the maximum size of an image.
            StorageError: The storage can't be read.
            UserError: The local disk is full.
        """
        check_size(size)
        name = str(path)[len(self.cache.url) + 1 :]
        while True:
            copy = self.fetch(name, self.infos[name])
            try:
                descriptor = os.open(copy, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:  # removed meanwhile, because other copies were needed
                continue
            try:
                data = os.pread(descriptor, size, offset)
            finally:
                os.close(descriptor)
            if len(data) < size:
                raise DecodeError(f"the file ends after {len(data)} of the record's {size} bytes")
            return data

    def fetch(self, name: str, info: ObjectInfo) -> Path:
        """Downloads a shard unless there is a copy, and returns the path of the copy.

        Raises:
            UserError: The shard was removed from the storage, or the local disk is full.
            StorageError: The storage can't be read.
        """
        try:
            return self.cache.fetch(name, info)
        except FileNotFoundError:
            raise UserError(f"{self.cache.url}/{name}: was removed from the storage during the run") from None


def open_stored_shards(
    record_format: RecordFormat,
    patterns: Sequence[str],
    index_patterns: Sequence[str] | None,
    storage_cache: float,
) -> tuple[list[FileShard], StoredRecords]:
    """Reads the indexes and labels of shards in object storage.

    Args:
        record_format: Format of the shards.
        patterns: Addresses, or patterns such as ``s3://bucket/pets/train-*.tar``, in one folder.
        index_patterns: Addresses of index files, in the same order; None for the default addresses. Without
            an index file, the index is made from the shard.
        storage_cache: Largest size of the copies, in GiB.

    Raises:
        UserError: An object is missing or damaged.
        StorageError: The storage can't be read.
    """
    if not isinstance(record_format, FileFormat):
        raise UserError(
            f"{patterns[0]}: {record_format.name} needs a disk; convert the images to WebDataset for object "
            "storage (ppcls dataset convert webdataset)"
        )
    folders = {pattern.rpartition("/")[0] for pattern in (*patterns, *(index_patterns or ()))}
    if len(folders) > 1:
        raise UserError(f"paths: expected addresses in one folder, got {', '.join(sorted(folders))}")
    (folder,) = folders
    infos = stored_objects(folder)
    names = _expand(patterns, folder, [name for name in infos if not name.endswith(INDEX_SUFFIX)])
    if index_patterns is None:
        indexes = [str(default_index_path(Path(name))) for name in names]
    else:
        indexes = _expand(index_patterns, folder, list(infos))
        if len(indexes) != len(names):
            raise UserError(
                f"index_paths: expected {counted(len(names), 'object')}, one for each in 'paths', got "
                f"{len(indexes)}"
            )
    records = StoredRecords(ObjectCache(folder, int(storage_cache * GIB)), infos)
    with ThreadPoolExecutor(_PARALLEL_SHARDS) as pool:
        return list(pool.map(_open, names, indexes, repeat(record_format), repeat(records))), records


def _expand(patterns: Sequence[str], folder: str, names: Sequence[str]) -> list[str]:
    """Returns the names of objects that match patterns. The matches of each pattern are sorted.

    Raises:
        UserError: A pattern matches nothing, or an object is listed twice.
    """
    expanded: list[str] = []
    for pattern in patterns:
        name = pattern[len(folder) + 1 :]
        matching = fnmatch.filter(names, name) if _MAGIC & set(name) else {name} & set(names)
        matches = sorted(match for match in matching if "/" not in match)  # as a star in a shell
        if not matches:
            raise UserError(f"{pattern}: no such object; expected an address, or a pattern that matches some")
        expanded += matches
    if twice := [name for name in dict.fromkeys(expanded) if expanded.count(name) > 1]:
        raise UserError(f"{folder}/{twice[0]}: listed twice; list each object once")
    return expanded


def _open(name: str, index: str, record_format: FileFormat, records: StoredRecords) -> FileShard:
    """Returns a shard. What its records are is stored on this machine."""
    info = records.infos[name]
    index_version = records.infos[index].version if index in records.infos else ""
    key = f"{index_version}\0{record_format!r}\0{info.version}"
    file = data_folder(records.cache.url) / "records" / records.cache.path(name, key).name
    with lock(file):
        if not file.is_file():
            _store_records(file, name, index, record_format, records)
        try:
            offsets, sizes, labels = _read_records(file)
        except NUMPY_ERRORS:  # damaged
            file.unlink(missing_ok=True)
            _store_records(file, name, index, record_format, records)
            offsets, sizes, labels = _read_records(file)
    url = UrlPath(f"{records.cache.url}/{name}")
    files: OpenFiles = records  # type: ignore[assignment]
    return FileShard(url, offsets, sizes, labels, record_format, files)


def _read_records(file: Path) -> list[NDArray[Any]]:
    with np.load(file, allow_pickle=False) as arrays:
        return [arrays[each] for each in ("offsets", "sizes", "labels")]


def _store_records(
    file: Path, name: str, index: str, record_format: FileFormat, records: StoredRecords
) -> None:
    """Writes offsets, sizes and labels of the records of a shard to a file."""
    while True:
        shard = records.fetch(name, records.infos[name])
        try:
            _store_records_of(shard, file, name, index, record_format, records)
        except UserError:
            if shard.exists():
                raise
            # Removed meanwhile, because other copies were needed.
        else:
            return


def _store_records_of(
    shard: Path, file: Path, name: str, index: str, record_format: FileFormat, records: StoredRecords
) -> None:
    """Implements `_store_records` for a copy of the shard.

    Raises:
        UserError: The copy is missing or damaged.
    """
    url = f"{records.cache.url}/{name}"
    index_file = file.with_suffix(INDEX_SUFFIX)
    # Without an index in the storage, one is made from the shard.
    index_name = f"{records.cache.url}/{index}" if index in records.infos else f"the index of {url}"
    with naming(url, shard), naming(index_name, index_file):
        if index in records.infos:
            write_new(index_file, records.cache.read(index, records.infos[index].version))
        else:
            write_new(index_file, record_format.build_index(shard).encode())
        try:
            opened = record_format.open(shard, index_file, OpenFiles())
        except UserError as error:
            # Without an index, the next run makes one. The command that writes one needs a disk.
            error.args = (str(error).replace(how_to_rebuild(shard), "delete it"),)
            raise
    content = io.BytesIO()
    np.savez(content, offsets=opened.offsets, sizes=opened.sizes, labels=opened.labels)
    write_new(file, content.getvalue())
    index_file.unlink(missing_ok=True)
