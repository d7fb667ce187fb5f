"""Defines the base classes of record formats, and reads shard files, index files and records.

A shard is a file or folder with many records. Its index file has the offsets of the records, so that they can
be read in any order.

Decisions:
- Index files have the formats of DALI's tools, so that files of either fit the other.
- DALI's own readers are not used. They follow the order of the file, or shuffle within a buffer, so that the
  order of an epoch would depend on the number of processes, and a run could not resume with the rest of it.
- Labels are read when a data set is opened, and images when they are needed. An invalid label is then an
  error before the training starts.
- Records are read with `pread` and copied once. To map the files into memory is faster (docs/data.md), but a
  file that another program truncates would then end the process with SIGBUS instead of an error.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from ppcls.commands import command_line
from ppcls.data.images.header import DecodeError, check_size
from ppcls.errors import UserError
from ppcls.files import open_regular, read_regular, retry_io

INDEX_SUFFIX = ".idx"
SHARD_SUFFIXES = (".tar", ".tfrecord", ".tfrecords", ".rec")
NUMBER = re.compile("[0-9]{1,18}")
_MAX_OPEN_FILES = 128  # maximum number of open files per dataset; the usual limit of a process is 1,024

_BLOCK = 4096  # number of bytes to read at once

Int64Array = NDArray[np.int64]


@dataclass(frozen=True)
class ImageRecord:
    """A labelled image that is written to a shard.

    Attributes:
        name: File name, unique in the shard, such as ``00000007.jpg``.
        image: Encoded image.
        label: Class id, from 0.
    """

    name: str
    image: bytes
    label: int


class Shard(Protocol):
    """Reads the records of one shard in any order. The records are numbered from 0."""

    @property
    def path(self) -> Path:
        """Path of the file; for LMDB, path of the folder."""

    @property
    def labels(self) -> Int64Array:
        """Labels, [N] int64, in the order of the records."""

    def read(self, number: int) -> bytes | memoryview:
        """Returns the encoded image of a record, as a view if possible.

        Raises:
            DecodeError: The record is damaged or can't be read.
        """

    def where(self, number: int) -> str:
        """Returns the location of a record, for messages, such as ``record 7 at byte 4096``."""


class RecordFormat(ABC):
    """Base class of record formats.

    Attributes:
        name: Name of the format, for messages.
        suffix: Suffix of a shard's file name.
        is_folder: Whether a shard is a folder without an index file.
    """

    name: ClassVar[str]
    suffix: ClassVar[str]
    is_folder: ClassVar[bool] = False

    @abstractmethod
    def write(self, path: Path, records: Iterable[ImageRecord]) -> None:
        """Writes a new shard. Equal records result in equal bytes.

        Raises:
            UserError: The format can't store a record.
        """

    @abstractmethod
    def build_index(self, path: Path) -> str | None:
        """Returns the text of a shard's index file, in DALI's format; None if the format needs no index.

        Raises:
            UserError: The shard is empty or damaged, or can't be read.
        """

    @abstractmethod
    def open(self, path: Path, index_path: Path, files: OpenFiles) -> Shard:
        """Reads the index and the labels of a shard without reading images.

        Args:
            path: Path of the shard.
            index_path: Path of the index file; not used if the format needs no index.
            files: Reads the records later.

        Raises:
            UserError: The shard or its index is empty or damaged, or can't be read; or they don't match.
        """


class FileFormat(RecordFormat):
    """Base class of formats whose shards are single files, each with an index file."""

    def build_index(self, path: Path) -> str:
        """Returns the text of a shard's index file, in DALI's format. See `RecordFormat`."""
        with open_shard_file(path) as file:
            text = "".join(self.index_lines(file))
        if not text:
            raise UserError(f"{path}: expected a file with {self.name} records, found none")
        return text

    def open(self, path: Path, index_path: Path, files: OpenFiles) -> FileShard:
        """Reads the index and the labels of a shard without reading images. See `RecordFormat`."""
        index = IndexFile(index_path, path, _read_index_text(index_path, path))
        with open_shard_file(path) as file:
            offsets, sizes, labels = self.read_samples(file, index)
        return FileShard(path, offsets, sizes, labels, self, files)

    @abstractmethod
    def index_lines(self, file: ShardFile) -> Iterable[str]:
        """Yields the lines of the index, or nothing if the shard has no records."""

    @abstractmethod
    def read_samples(self, file: ShardFile, index: IndexFile) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Returns offsets in bytes, sizes in bytes and labels of the records, each [N] int64."""

    @abstractmethod
    def extract_image(self, record: memoryview) -> bytes | memoryview:
        """Returns the encoded image in a record.

        Raises:
            DecodeError: The record is damaged.
        """


@dataclass(frozen=True)
class ShardFile:
    """A shard file that is open for reading.

    Attributes:
        path: Path of the file.
        descriptor: File descriptor.
        size: Size of the file in bytes.
    """

    path: Path
    descriptor: int
    size: int

    def read(self, offset: int, size: int) -> bytes:
        """Returns ``size`` bytes from ``offset``, or fewer bytes at the end of the file."""
        return os.pread(self.descriptor, size, offset)

    def damaged(self, offset: int, expected: str, found: str) -> UserError:
        """Returns the error for unexpected data at a byte offset."""
        return UserError(f"{self.path}, byte {offset}: expected {expected}, found {found}")


class BlockReader:
    """Reads the bytes of a file in blocks, so that most of an image in front of a label is not read."""

    def __init__(self, file: ShardFile) -> None:
        self._file = file
        self._begin = 0
        self._block = b""

    def __getitem__(self, part: slice) -> bytes:
        if not self._begin <= part.start <= part.stop <= self._begin + len(self._block):
            self._begin = part.start
            self._block = self._file.read(part.start, max(_BLOCK, part.stop - part.start))
        return self._block[part.start - self._begin : part.stop - self._begin]


@contextmanager
def open_shard_file(path: Path) -> Iterator[ShardFile]:
    """Returns a context in which a shard is open for reading.

    Raises:
        UserError: The file can't be opened or is not a regular file.
    """
    with ExitStack() as stack:
        try:
            file = stack.enter_context(open_regular(path))
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise UserError(f"{path}: can't read this file: {reason}") from None
        yield ShardFile(path, file.fileno(), os.fstat(file.fileno()).st_size)


@dataclass(frozen=True)
class IndexFile:
    """An index file.

    Attributes:
        path: Path of the index file.
        shard: Path of the shard.
        text: Contents of the index file.
    """

    path: Path
    shard: Path
    text: str

    def mismatch(self, reason: str) -> UserError:
        """Returns the error for an index that does not match the shard."""
        return UserError(
            f"{self.path}: not the index of {self.shard}: {reason}; {how_to_rebuild(self.shard)}"
        )

    def parse_pairs(self, expected: str) -> Int64Array:
        """Parses an index with two whole numbers per line.

        Args:
            expected: Description of a line, for messages.

        Returns:
            The numbers of each line, [N, 2] int64, all >= 0.

        Raises:
            UserError: The index is empty, or a line does not consist of two whole numbers.
        """
        for number, line in enumerate(self.text.split("\n"), start=1):
            fields = line.split()
            if fields and not (len(fields) == 2 and all(map(NUMBER.fullmatch, fields))):
                raise UserError(f"{self.path}, line {number}: expected {expected}, found {line[:60]!r}")
        pairs = np.array(self.text.split(), np.int64).reshape(-1, 2)
        if not len(pairs):
            raise UserError(f"{self.path}: the index is empty; expected lines of {expected}")
        return pairs


def default_index_path(path: Path) -> Path:
    """Returns the default path of a shard's index file, such as ``train-0.idx`` for ``train-0.tar``."""
    if path.suffix in SHARD_SUFFIXES:
        return path.with_suffix(INDEX_SUFFIX)
    return path.with_name(path.name + INDEX_SUFFIX)


def _read_index_text(index_path: Path, path: Path) -> str:
    """Returns the text of the index file of the shard ``path``."""
    try:
        return read_regular(index_path).decode()
    except FileNotFoundError:
        if not path.is_file():
            raise UserError(f"{path}: no such file") from None
        raise UserError(f"{index_path}: no index file for {path}; {_how_to_build(path)}") from None
    except OSError as error:
        raise UserError(f"{index_path}: can't read this index file: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(
            f"{index_path}: expected an index file of UTF-8 text, found other data; {how_to_rebuild(path)}"
        ) from None


def how_to_rebuild(path: Path) -> str:
    """Returns what to do about the wrong index of a container: the command does not overwrite it."""
    return f"delete it, and {_how_to_build(path)}"


def _how_to_build(path: Path) -> str:
    return f"build it with: {command_line('dataset', 'index', path)}"


class OpenFiles:
    """Reads parts of files, and keeps the most recently used files open.

    Reading does not use the position of a file, so threads and forked processes can share open files.
    """

    def __init__(self) -> None:
        self._open = lru_cache(_MAX_OPEN_FILES)(_Descriptor)
        self._versions: dict[Path, tuple[int, int]] = {}

    def read(self, path: Path, offset: int, size: int) -> bytes:
        """Returns ``size`` bytes from ``offset``.

        Raises:
            DecodeError: The file is missing, is too short, can't be read, or has changed since the first
                read; or ``size`` exceeds the maximum size of an image, or there is not enough memory.
        """
        check_size(size)
        try:
            data = retry_io(lambda: self._read(path, offset, size))
        except OSError as error:
            raise DecodeError((error.strerror or str(error)).lower()) from None
        except MemoryError:  # one image must not end a run or a server
            raise DecodeError("there is not enough memory to read the record") from None
        if len(data) < size:
            raise DecodeError(f"the file ends after {len(data)} of the record's {size} bytes")
        return data

    def _read(self, path: Path, offset: int, size: int) -> bytes:
        try:
            # This reference keeps the file open if other threads evict it from the cache.
            file = self._open(path)
            data = os.pread(file.number, size, offset)
            status = os.fstat(file.number)
        except OSError:
            self._open.cache_clear()  # files on a network drive must be reopened after an interruption
            raise
        version = status.st_size, status.st_mtime_ns
        if self._versions.setdefault(path, version) != version:
            raise DecodeError("the file was changed during the run, so its records may have moved")
        return data


class _Descriptor:
    """An open file, which is closed when the last reference to this object disappears."""

    def __init__(self, path: Path) -> None:
        # O_NONBLOCK, because opening a pipe that replaced the file would otherwise wait for a writer.
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)

    def __del__(self) -> None:
        if hasattr(self, "number"):
            os.close(self.number)


@dataclass(frozen=True)
class FileShard:
    """Implements `Shard` for a single file.

    Attributes:
        path: Path of the file.
        offsets: [N] int64, offset of each record in bytes.
        sizes: [N] int64, size of each record in bytes.
        labels: Label of each record, [N] int64.
        format: Format of the records.
        files: Reads the records.
    """

    path: Path
    offsets: Int64Array
    sizes: Int64Array
    labels: Int64Array
    format: FileFormat
    files: OpenFiles

    def read(self, number: int) -> bytes | memoryview:
        """Returns the encoded image of a record. See `Shard`."""
        record = self.files.read(self.path, int(self.offsets[number]), int(self.sizes[number]))
        image = self.format.extract_image(memoryview(record))
        if not image:
            raise DecodeError("the record has an image of 0 bytes")
        return image

    def where(self, number: int) -> str:
        """Returns the location of a record, for messages."""
        return f"record {number} at byte {self.offsets[number]}"
