"""A shard: one file of a container, and how its records are read in any order."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from ppcls.data.records.links import NOT_REGULAR, is_special_file
from ppcls.data.transforms.numpy_ops import DecodeError
from ppcls.errors import UserError
from ppcls.files import retry_io

INDEX_ENDING = ".idx"
SHARD_SUFFIXES = (".tar", ".tfrecord", ".tfrecords", ".rec")
_NUMBER = re.compile("[0-9]{1,18}")
_MOST_OPEN = 128  # of a container's files; systems allow a process 1024


@dataclass(frozen=True)
class ImageRecord:
    """A labelled image on its way into a container.

    Attributes:
        name: Unique in the shard, with the image's ending, such as ``00000007.jpg``.
        image: The encoded image.
        label: From 0.
    """

    name: str
    image: bytes
    label: int


class Shard(Protocol):
    """The records of one file, by number from 0."""

    @property
    def path(self) -> Path:
        """The file; LMDB's folder."""

    @property
    def labels(self) -> NDArray[np.int64]:
        """[N] int64, as the records have them."""

    def read(self, number: int) -> bytes | memoryview:
        """Returns an encoded image; a view where the bytes around it would be a copy to drop.

        Raises:
            DecodeError: The record is damaged or can't be read.
        """

    def where(self, number: int) -> str:
        """Returns a record's place, such as ``record 7 at byte 4096``."""


class OpenFiles:
    """Reads parts of files, and keeps the files last used open.

    Reading moves no file position, so threads and forked processes may share an open file.
    """

    def __init__(self) -> None:
        self._open = lru_cache(_MOST_OPEN)(_Descriptor)
        self._seen: dict[Path, tuple[int, int]] = {}

    def read(self, path: Path, offset: int, size: int) -> bytes:
        """Returns ``size`` bytes from ``offset``.

        Raises:
            DecodeError: The file is missing, too short, can't be read, or is another than at the first read.
        """
        try:
            data = retry_io(lambda: self._read(path, offset, size))
        except OSError as error:
            raise DecodeError((error.strerror or str(error)).lower()) from None
        if len(data) < size:
            raise DecodeError(f"the file ends after {len(data)} of the record's {size} bytes")
        return data

    def _read(self, path: Path, offset: int, size: int) -> bytes:
        try:
            file = self._open(path)  # held while it is read: others may push it out of the cache
            data = os.pread(file.number, size, offset)
            status = os.fstat(file.number)
        except OSError:
            self._open.cache_clear()  # a network drive that is back wants its files opened anew
            raise
        now = status.st_size, status.st_mtime_ns
        if self._seen.setdefault(path, now) != now:
            raise DecodeError("the file was changed while the run used it, so records may lie elsewhere")
        return data


class _Descriptor:
    """An open file; closed when nobody reads from it any more."""

    def __init__(self, path: Path) -> None:
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if hasattr(self, "number"):
            os.close(self.number)


@dataclass(frozen=True)
class FileShard:
    """A `Shard` whose records are parts of a file.

    Attributes:
        path: The file.
        offsets: [N] int64, bytes.
        sizes: [N] int64, bytes.
        labels: [N] int64.
        image: Takes the image out of a record's bytes; raises `DecodeError` where the record is damaged.
        files: Reads the records.
    """

    path: Path
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    labels: NDArray[np.int64]
    image: Callable[[memoryview], bytes | memoryview]
    files: OpenFiles

    def read(self, number: int) -> bytes | memoryview:
        """Returns an encoded image; see `Shard`."""
        record = self.files.read(self.path, int(self.offsets[number]), int(self.sizes[number]))
        image = self.image(memoryview(record))
        if not image:
            raise DecodeError("the image is empty")
        return image

    def where(self, number: int) -> str:
        """Returns a record's place."""
        return f"record {number} at byte {self.offsets[number]}"


class RecordFormat(Protocol):
    """A kind of container.

    Attributes:
        name: As messages call it.
        suffix: Of a shard's name.
        in_folders: Whether a shard is a folder, and needs no index file.
    """

    name: str
    suffix: str
    in_folders: bool

    def write(self, path: Path, records: Iterable[ImageRecord]) -> None:
        """Writes a new shard.

        Raises:
            UserError: A record that the format can't hold.
        """

    def index(self, path: Path) -> str | None:
        """Returns the text of DALI's index file of a shard; None where the format needs none.

        Raises:
            UserError: The shard can't be read, is damaged or empty.
        """

    def open(self, path: Path, index_path: Path, files: OpenFiles) -> Shard:
        """Reads the index and the labels of a shard, and no image.

        Raises:
            UserError: The shard or its index can't be read, is damaged or empty, or another's.
        """


def default_index_path(path: Path) -> Path:
    """Returns where a shard's index file is by default: ``train-0.tar`` has ``train-0.idx``."""
    if path.suffix in SHARD_SUFFIXES:
        return path.with_suffix(INDEX_ENDING)
    return path.with_name(path.name + INDEX_ENDING)


def open_file(path: Path) -> BinaryIO:
    """Opens a shard for reading.

    Raises:
        UserError: It can't be opened, or is a pipe, which would be waited for.
    """
    _refuse_special(path)
    try:
        return path.open("rb")
    except OSError as error:
        raise UserError(f"{path}: can't read this file: {(error.strerror or str(error)).lower()}") from None


def _refuse_special(path: Path) -> None:
    if is_special_file(path):
        raise UserError(f"{path}: {NOT_REGULAR}")


def damaged(path: Path, offset: int, expected: str, found: str) -> UserError:
    """Returns the error of a file that is not what it should be at a byte."""
    return UserError(f"{path}, byte {offset}: expected {expected}, found {found}")


def read_index_file(index_path: Path, path: Path) -> str:
    """Reads the index file of the shard ``path``.

    Raises:
        UserError: It is missing, can't be read, or is no text.
    """
    cure = f"make it by: python tools/dataset.py index {path}"
    _refuse_special(index_path)
    try:
        return index_path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if not path.is_file():
            raise UserError(f"{path}: no such file") from None
        raise UserError(f"{index_path}: no such index file, of {path}; {cure}") from None
    except OSError as error:
        raise UserError(f"{index_path}: can't read this index file: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(
            f"{index_path}: expected the text of an index file, found other bytes; {cure}"
        ) from None


def read_pairs(index_path: Path, path: Path, expected: str) -> NDArray[np.int64]:
    """Reads an index file of two whole numbers a line, the second or first an offset.

    Args:
        index_path: The index file.
        path: The shard it belongs to.
        expected: What a line holds, for messages.

    Returns:
        [N, 2] int64, none negative.

    Raises:
        UserError: It can't be read, is empty, or has another line; that line by number.
    """
    text = read_index_file(index_path, path)
    for number, line in enumerate(text.split("\n"), start=1):
        fields = line.split()
        if fields and not (len(fields) == 2 and all(map(_NUMBER.fullmatch, fields))):
            raise UserError(f"{index_path}, line {number}: expected {expected}, found {line[:60]!r}")
    pairs = np.array(text.split(), np.int64).reshape(-1, 2)
    if not len(pairs):
        raise UserError(f"{index_path}: the index is empty; expected lines of {expected}")
    return pairs


def other_file(index_path: Path, path: Path, why: str) -> UserError:
    """Returns the error of an index that was made of another file than ``path``."""
    return UserError(
        f"{index_path}: not the index of {path}: {why}; make it by: python tools/dataset.py index {path}"
    )
