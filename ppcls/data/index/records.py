"""Data sets in record files, whose shards are combined into one index."""

from __future__ import annotations

import glob
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ppcls.config.base.fields import Index
from ppcls.data.index.base import Dataset
from ppcls.data.index.class_names import check_labels
from ppcls.data.records.lmdb import LMDBFormat
from ppcls.data.records.parquet import ParquetIndex, read_parquet
from ppcls.data.records.recordio import RecordIOFormat
from ppcls.data.records.shard import INDEX_SUFFIX, OpenFiles, RecordFormat, Shard, default_index_path
from ppcls.data.records.tfrecord import TFRecordFormat
from ppcls.data.records.webdataset import WebDatasetFormat
from ppcls.errors import UserError, counted
from ppcls.files import IMAGE_EXTENSIONS, real_path
from ppcls.files.urls import is_url

if TYPE_CHECKING:
    from ppcls.data.records.shard import FileShard
    from ppcls.data.stored.shards import StoredRecords
    from ppcls.files.objects import ObjectInfo

_PARALLEL_SHARDS = 16  # shards that are opened at the same time, because network drives have a high latency


class RecordIndex:
    """Implements `ppcls.data.index.protocol.Index` for a sequence of shards.

    Args:
        shards: At least one shard.

    Attributes:
        labels: [N] int64, labels of all shards.
        source: Path of the shard; the folder of the first shard if there are several.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = tuple(shards)
        self._ends = np.cumsum([len(shard.labels) for shard in shards]).tolist()
        self.labels: NDArray[np.int64] = np.concatenate([shard.labels for shard in shards])
        self.source = shards[0].path.parent if len(shards) > 1 else shards[0].path

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shard_ends(self) -> tuple[int, ...]:
        """Position after the last sample of each shard."""
        return tuple(self._ends)

    def name(self, position: int) -> str:
        """Returns the path of the shard that contains a sample."""
        shard, _ = self._find(position)
        return str(shard.path)

    def where(self, position: int) -> str:
        """Returns the location of a sample in its shard."""
        shard, number = self._find(position)
        return shard.where(number)

    def find(self, places: Collection[tuple[str, str]]) -> list[int]:
        """Returns the positions of samples. See `ppcls.data.index.protocol.find_samples`."""
        names = {name for name, _ in places}
        starts = [0, *self._ends]
        return [
            start + number
            for start, shard in zip(starts, self._shards, strict=False)
            if str(shard.path) in names
            for number in range(len(shard.labels))
            if (str(shard.path), shard.where(number)) in places
        ]

    def read(self, position: int) -> bytes | memoryview:
        """Returns the encoded image; see `ppcls.data.index.protocol.Index`."""
        shard, number = self._find(position)
        return shard.read(number)

    def _find(self, position: int) -> tuple[Shard, int]:
        at = bisect_right(self._ends, position)
        return self._shards[at], int(position - (self._ends[at - 1] if at else 0))


class StoredShards(RecordIndex):
    """Implements `ppcls.data.index.protocol.Index` for shards in object storage.

    Args:
        shards: The shards.
        records: Reads their records.

    Attributes:
        total: Size of all shards in bytes.
        ahead: Number of images whose shards are downloaded ahead.
    """

    def __init__(self, shards: Sequence[FileShard], records: StoredRecords) -> None:
        super().__init__(shards)
        self._records = records
        self._names = [str(shard.path)[len(records.cache.url) + 1 :] for shard in shards]
        self.total = sum(records.infos[name].size for name in self._names)
        share = min(records.cache.limit / 4 / max(self.total, 1), 1.0)
        self.ahead = max(int(len(self) * share), 1)

    @property
    def limit(self) -> int:
        """Largest size of all copies, in bytes."""
        return self._records.cache.limit

    def objects(self, positions: NDArray[np.int64]) -> Iterable[tuple[str, ObjectInfo]]:
        """Returns the names, sizes and versions of the shards of samples, in the order of their first use."""
        numbers = np.searchsorted(self.shard_ends, positions, side="right")
        for number in dict.fromkeys(numbers.tolist()):
            name = self._names[number]
            yield name, self._records.infos[name]

    def fetch(self, name: str, info: ObjectInfo) -> None:
        """Downloads a shard. See `StoredRecords.fetch`."""
        self._records.fetch(name, info)


def read_records(
    record_format: RecordFormat,
    paths: Sequence[str],
    index_paths: Sequence[str] | None,
    class_num: int | None,
) -> RecordIndex:
    """Reads the indexes and labels of shards without reading images.

    Args:
        record_format: Format of the shards.
        paths: Paths of shards, or patterns such as ``train-*.tar``.
        index_paths: Paths of the index files in the same order, or patterns; None for the default paths.
        class_num: Number of classes of the model; None if any label >= 0 is valid.

    Raises:
        UserError: A file is missing or damaged, the number of index files differs from the number of shards,
            or labels are out of range.
    """
    shard_paths = _expand_patterns(paths, indexes=False)
    for path in shard_paths:
        if path.is_dir() and not record_format.is_folder:
            raise UserError(
                f"{path}: expected {record_format.name} files, found a folder; to use the files in it, set "
                f"for example {path}/*{record_format.suffix}"
            )
    if index_paths is None:
        indexes = [default_index_path(path) for path in shard_paths]
    else:
        indexes = _expand_patterns(index_paths, indexes=True)
    if len(indexes) != len(shard_paths):
        raise UserError(
            f"index_paths: expected {counted(len(shard_paths), 'file')}, one for each file in 'paths', got "
            f"{len(indexes)}"
        )
    files = OpenFiles()
    with ThreadPoolExecutor(_PARALLEL_SHARDS) as pool:
        shards = list(pool.map(record_format.open, shard_paths, indexes, repeat(files)))
    index = RecordIndex(shards)
    check_labels(index.labels, lambda at: f"{index.name(at)}, {index.where(at)}", class_num)
    return index


def _expand_patterns(patterns: Sequence[str], *, indexes: bool) -> list[Path]:
    """Returns the files that match the patterns. The matches of each pattern are sorted.

    Args:
        patterns: Paths, or patterns such as ``train-*.tar``.
        indexes: Whether the patterns are for index files. If not, files with the suffix of index files are
            ignored.
    """
    paths: list[Path] = []
    for pattern in patterns:
        # Path.glob does not accept absolute patterns.
        matches = sorted(glob.glob(pattern)) if glob.has_magic(pattern) else [pattern]  # noqa: PTH207
        if not indexes:
            matches = [match for match in matches if not match.endswith(INDEX_SUFFIX)]
        if not matches:
            raise UserError(f"{pattern}: expected a pattern that matches files, found no match")
        paths += map(Path, matches)
    seen: set[Path] = set()
    for path in paths:
        if real_path(path) in seen:
            raise UserError(f"{path}: listed twice; list each file once")
        seen.add(real_path(path))
    return paths


class PathsDataset(Dataset, abstract=True):
    """Images and labels in the files of a list of paths."""

    paths: tuple[str, ...] = Field(min_length=1)
    """Files, or patterns such as `train-*.tar`. Files of a pattern are read in the order of their names."""

    @property
    def place(self) -> str:
        """Paths of the files."""
        return ", ".join(self.paths)

    @property
    def label_place(self) -> str:
        """Path of the first file, or its pattern."""
        return self.paths[0]


class RecordDataset(PathsDataset, abstract=True):
    """Images and labels in container files."""

    @property
    def record_format(self) -> RecordFormat:
        """Format of the files, with the options of the data set."""
        raise NotImplementedError(f"{self.kind} does not define the format of its files")

    def read(self, class_num: int | None) -> RecordIndex:
        """Returns the index of the samples in all files."""
        return read_records(self.record_format, self.paths, None, class_num)


class ParquetDataset(PathsDataset):
    """Images and labels in Parquet files, such as those of image data sets on the Hugging Face Hub.

    All encoded images are kept in memory. Needs the extra `parquet`.
    """

    image_column: str = "image"
    """Column of the encoded images: binary values, or structures with the field `bytes`."""
    label_column: str = "label"
    """Column of the labels, 0 to the number of classes - 1."""

    def read(self, class_num: int | None) -> ParquetIndex:
        """Returns the index of the rows in all files.

        Raises:
            UserError: pyarrow is not installed, a file is missing or damaged, or a column does not fit.
        """
        files = _expand_patterns(self.paths, indexes=False)
        index = read_parquet(files, self.image_column, self.label_column)
        check_labels(index.labels, lambda at: f"{index.name(at)}, {index.where(at)}", class_num)
        return index


class IndexedDataset(RecordDataset, abstract=True):
    """Container files with index files, which `tools/dataset.py index` writes."""

    index_paths: tuple[str, ...] | None = None
    """Index files in DALI's format, one per file, in the order of `paths`; default: the paths of the files
    with the extension `.idx`."""

    def read(self, class_num: int | None) -> RecordIndex:
        """Returns the index of the samples in all files."""
        if any(map(is_url, (*self.paths, *(self.index_paths or ())))):
            from ppcls.data.stored.shards import open_stored_shards

            index = StoredShards(
                *open_stored_shards(self.record_format, self.paths, self.index_paths, self.storage_cache)
            )
            check_labels(index.labels, lambda at: f"{index.name(at)}, {index.where(at)}", class_num)
            return index
        return read_records(self.record_format, self.paths, self.index_paths, class_num)


class WebDataset(IndexedDataset):
    """Tar files with two entries per sample, image and label, such as ``0007.jpg`` and ``0007.cls``."""

    extensions: tuple[str, ...] = IMAGE_EXTENSIONS
    """File extensions of the images, in lower case."""

    @property
    def record_format(self) -> RecordFormat:
        """Format of tar files with these extensions."""
        return WebDatasetFormat(self.extensions)


class TFRecordDataset(IndexedDataset):
    """TFRecord files with ``image/encoded`` and ``image/class/label``, as in TensorFlow's ImageNet."""

    first_label: Index = 0
    """Label of the first class in the files. Use 1 for TensorFlow's ImageNet."""

    @property
    def record_format(self) -> RecordFormat:
        """Format of TFRecord files with this first label."""
        return TFRecordFormat(self.first_label)


class RecordIODataset(IndexedDataset):
    """RecordIO files of MXNet with image headers, as MXNet's tool im2rec writes them."""

    @property
    def record_format(self) -> RecordFormat:
        """Format of RecordIO files."""
        return RecordIOFormat()


class LMDBDataset(RecordDataset):
    """LMDB folders in the format of Caffe2, with an encoded image and an int32 label per key."""

    key_hints: ClassVar[Mapping[str, str]] = {"index_paths": "LMDB needs no index files; remove it"}

    @property
    def record_format(self) -> RecordFormat:
        """Format of LMDB folders."""
        return LMDBFormat()
