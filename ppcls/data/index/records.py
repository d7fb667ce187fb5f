"""Images in containers: the shards that a config names, as one index."""

from __future__ import annotations

import glob
from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ppcls.data.index.labels import check_labels
from ppcls.data.records.shard import INDEX_ENDING, OpenFiles, RecordFormat, Shard, default_index_path
from ppcls.errors import UserError

_SHARDS_AT_ONCE = 16  # whose labels are read: on a network drive each waits for its turn


class RecordIndex:
    """A `ppcls.data.index.read.Index` of the records of shards, one shard behind the other.

    Args:
        shards: At least one.

    Attributes:
        labels: [N] int64.
        source: Folder of the first shard.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = tuple(shards)
        self._ends = np.cumsum([len(shard.labels) for shard in shards]).tolist()
        self.labels: NDArray[np.int64] = np.concatenate([shard.labels for shard in shards])
        self.source = shards[0].path.parent if len(shards) > 1 else shards[0].path

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, position: int) -> str:
        """Returns the shard that holds a sample."""
        shard, _ = self._find(position)
        return str(shard.path)

    def where(self, position: int) -> str:
        """Returns the sample's place in its shard."""
        shard, number = self._find(position)
        return shard.where(number)

    def read(self, position: int) -> bytes | memoryview:
        """Returns the encoded image; see `ppcls.data.index.read.Index`."""
        shard, number = self._find(position)
        return shard.read(number)

    def _find(self, position: int) -> tuple[Shard, int]:
        place = bisect_right(self._ends, position)
        return self._shards[place], int(position - (self._ends[place - 1] if place else 0))


def read_records(
    container: RecordFormat, paths: Sequence[str], index_paths: Sequence[str] | None, class_num: int | None
) -> RecordIndex:
    """Reads the indexes and labels of shards, and no image.

    Args:
        container: Their format.
        paths: Files, or patterns such as ``train-*.tar``.
        index_paths: Their index files, in the same order, or patterns; None for those beside them.
        class_num: Number of classes of the model; None for any.

    Raises:
        UserError: No such file, not as many indexes as shards, damaged ones, or labels out of range.
    """
    found = _expand(paths, indexes=False)
    for path in found:
        if path.is_dir() and not container.in_folders:
            raise UserError(
                f"{path}: is a folder, expected {container.name} files; of files in it, write "
                f"{path}/*{container.suffix}, say"
            )
    if index_paths is None:
        indexes = [default_index_path(path) for path in found]
    else:
        indexes = _expand(index_paths, indexes=True)
    if len(indexes) != len(found):
        raise UserError(
            f"index_paths names {len(indexes)} files, but paths names {len(found)}; expected one for each"
        )
    files = OpenFiles()
    with ThreadPoolExecutor(_SHARDS_AT_ONCE) as pool:
        shards = list(pool.map(container.open, found, indexes, repeat(files)))
    index = RecordIndex(shards)
    check_labels(index.labels, lambda at: f"{index.name(at)}, {index.where(at)}", class_num)
    return index


def _expand(patterns: Sequence[str], *, indexes: bool) -> list[Path]:
    """Returns the files that patterns mean, each pattern's in the order of their names.

    Args:
        patterns: Files, or patterns.
        indexes: Whether index files are meant; else ``train-*`` means all but those beside the shards.

    Raises:
        UserError: A pattern means none, or a file is meant twice.
    """
    found: list[Path] = []
    for pattern in patterns:
        # Path.glob takes no absolute pattern.
        matches = sorted(glob.glob(pattern)) if glob.has_magic(pattern) else [pattern]  # noqa: PTH207
        if not indexes:
            matches = [each for each in matches if not each.endswith(INDEX_ENDING)]
        if not matches:
            raise UserError(f"{pattern}: no file is named so")
        found += map(Path, matches)
    seen: set[Path] = set()
    for path in found:
        if path.resolve() in seen:
            raise UserError(f"{path}: named twice; expected each file once")
        seen.add(path.resolve())
    return found
