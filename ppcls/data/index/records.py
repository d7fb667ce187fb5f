"""Reads datasets in record files, and combines all shards into one index."""

from __future__ import annotations

import glob
from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ppcls.data.index.class_names import check_labels
from ppcls.data.records.shard import INDEX_SUFFIX, OpenFiles, RecordFormat, Shard, default_index_path
from ppcls.errors import UserError

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

    def name(self, position: int) -> str:
        """Returns the path of the shard that contains a sample."""
        shard, _ = self._find(position)
        return str(shard.path)

    def where(self, position: int) -> str:
        """Returns the location of a sample in its shard."""
        shard, number = self._find(position)
        return shard.where(number)

    def read(self, position: int) -> bytes | memoryview:
        """Returns the encoded image; see `ppcls.data.index.protocol.Index`."""
        shard, number = self._find(position)
        return shard.read(number)

    def _find(self, position: int) -> tuple[Shard, int]:
        at = bisect_right(self._ends, position)
        return self._shards[at], int(position - (self._ends[at - 1] if at else 0))


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
            f"index_paths: expected {len(shard_paths)} files, one for each file in 'paths', "
            f"got {len(indexes)}"
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
        if path.resolve() in seen:
            raise UserError(f"{path}: listed twice; list each file once")
        seen.add(path.resolve())
    return paths
