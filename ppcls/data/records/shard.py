"""The base of all record formats: shard files, their index files, and reading records in any order."""

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

from ppcls.data.images.header import DecodeError, check_size
from ppcls.errors import UserError
from ppcls.files import open_regular, read_regular, retry_io

INDEX_SUFFIX = ".idx"
SHARD_SUFFIXES = (".tar", ".tfrecord", ".tfrecords", ".rec")
NUMBER = re.compile("[0-9]{1,18}")
_MAX_OPEN_FILES = 128  # of one dataset; the usual limit of a process is 1024

_BLOCK = 4096  # bytes to read at once

Int64Array = NDArray[np.int64]


@dataclass(frozen=True)
class ImageRecord:
    """A labelled image to write into a shard.

    Attributes:
        name: File name that is unique in the shard, such as ``00000007.jpg``.
        image: Encoded image.
        label: Class id, from 0.
    """

    name: str
    image: bytes
    label: int


class Shard(Protocol):
    """Random access to the records of one shard, which are numbered from 0."""

    @property
    def path(self) -> Path:
        """The file; for LMDB the folder."""

    @property
    def labels(self) -> Int64Array:
        """[N] int64, in the order of the records."""

    def read(self, number: int) -> bytes | memoryview:
        """Returns an encoded image, as a view if that avoids a copy.

        Raises:
            DecodeError: The record is damaged or can't be read.
        """

    def where(self, number: int) -> str:
        """Returns the location of a record for messages, such as ``record 7 at byte 4096``."""


class RecordFormat(ABC):
    """A container format.

    Attributes:
        name: Name for messages.
        suffix: File name suffix of a shard.
        is_folder: Whether a shard is a folder without an index file.
    """

    name: ClassVar[str]
    suffix: ClassVar[str]
    is_folder: ClassVar[bool] = False

    @abstractmethod
    def write(self, path: Path, records: Iterable[ImageRecord]) -> None:
        """Writes a new shard. The same records give the same bytes.

        Raises:
            UserError: The format can't store a record.
        """

    @abstractmethod
    def build_index(self, path: Path) -> str | None:
        """Returns the text of DALI's index file for a shard, or None if the format needs no index.

        Raises:
            UserError: The shard is empty, damaged or can't be read.
        """

    @abstractmethod
    def open(self, path: Path, index_path: Path, files: OpenFiles) -> Shard:
        """Reads the index and the labels of a shard, but no image.

        Raises:
            UserError: The shard or its index is empty, damaged or can't be read, or they don't match.
        """


class FileFormat(RecordFormat):
    """A format whose shards are single files, each with an index file."""

    def build_index(self, path: Path) -> str:
        """Returns the text of DALI's index file for a shard."""
        with open_shard_file(path) as file:
            text = "".join(self.index_lines(file))
        if not text:
            raise UserError(f"{path}: no {self.name} records in this file")
        return text

    def open(self, path: Path, index_path: Path, files: OpenFiles) -> FileShard:
        """Reads the index and the labels of a shard, but no image."""
        index = IndexFile(index_path, path, _read_index_text(index_path, path))
        with open_shard_file(path) as file:
            offsets, sizes, labels = self.read_samples(file, index)
        return FileShard(path, offsets, sizes, labels, self, files)

    @abstractmethod
    def index_lines(self, file: ShardFile) -> Iterable[str]:
        """Yields the lines of the index, or nothing if the shard has no records."""

    @abstractmethod
    def read_samples(self, file: ShardFile, index: IndexFile) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Returns offsets, sizes and labels of the records, each [N] int64."""

    @abstractmethod
    def extract_image(self, record: memoryview) -> bytes | memoryview:
        """Returns the encoded image in a record.

        Raises:
            DecodeError: The record is damaged.
        """


@dataclass(frozen=True)
class ShardFile:
    """A shard that is open for reading its structure.

    Attributes:
        path: The file.
        descriptor: File descriptor.
        size: Bytes of the file.
    """

    path: Path
    descriptor: int
    size: int

    def read(self, offset: int, size: int) -> bytes:
        """Returns ``size`` bytes from ``offset``, or fewer at the end of the file."""
        return os.pread(self.descriptor, size, offset)

    def damaged(self, offset: int, expected: str, found: str) -> UserError:
        """Returns the error for unexpected content at a byte offset."""
        return UserError(f"{self.path}, byte {offset}: expected {expected}, found {found}")


class BlockReader:
    """The bytes of a file, read block by block: skips most of an image in front of a label."""

    def __init__(self, file: ShardFile) -> None:
        self._file, self._begin, self._block = file, 0, b""

    def __getitem__(self, part: slice) -> bytes:
        if not self._begin <= part.start <= part.stop <= self._begin + len(self._block):
            self._begin = part.start
            self._block = self._file.read(part.start, max(_BLOCK, part.stop - part.start))
        return self._block[part.start - self._begin : part.stop - self._begin]


@contextmanager
def open_shard_file(path: Path) -> Iterator[ShardFile]:
    """Opens a shard for reading.

    Raises:
        UserError: It can't be opened, or is a pipe, which would block.
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
    """The text of an index file.

    Attributes:
        path: The index file.
        shard: The shard that it belongs to.
        text: Its content.
    """

    path: Path
    shard: Path
    text: str

    def mismatch(self, reason: str) -> UserError:
        """Returns the error for an index that was built from another file."""
        return UserError(f"{self.path}: not the index of {self.shard}: {reason}; {_how_to_build(self.shard)}")

    def parse_pairs(self, expected: str) -> Int64Array:
        """Parses lines of two whole numbers.

        Args:
            expected: Description of a line for messages.

        Returns:
            [N, 2] int64, all >= 0.

        Raises:
            UserError: There is no line, or a line has another form.
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
    """Returns the default index file of a shard: ``train-0.idx`` for ``train-0.tar``."""
    if path.suffix in SHARD_SUFFIXES:
        return path.with_suffix(INDEX_SUFFIX)
    return path.with_name(path.name + INDEX_SUFFIX)


def _read_index_text(index_path: Path, path: Path) -> str:
    """Reads the index file of the shard ``path``.

    Raises:
        UserError: It is missing, can't be read, or is not text.
    """
    try:
        return read_regular(index_path).decode()
    except FileNotFoundError:
        if not path.is_file():
            raise UserError(f"{path}: no such file") from None
        raise UserError(f"{index_path}: no index file for {path}; {_how_to_build(path)}") from None
    except OSError as error:
        raise UserError(f"{index_path}: can't read this index file: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{index_path}: an index file must be UTF-8 text; {_how_to_build(path)}") from None


def _how_to_build(path: Path) -> str:
    return f"build it with: ppcls dataset index {path}"


class OpenFiles:
    """Reads parts of files and keeps the most recently used files open.

    No file position moves while reading, so threads and forked processes can share open files.
    """

    def __init__(self) -> None:
        self._open = lru_cache(_MAX_OPEN_FILES)(_Descriptor)
        self._versions: dict[Path, tuple[int, int]] = {}

    def read(self, path: Path, offset: int, size: int) -> bytes:
        """Returns ``size`` bytes from ``offset``.

        Raises:
            DecodeError: The file is missing, too short, can't be read, or has changed since the first read;
                or ``size`` is above the limit of an image.
        """
        check_size(size)
        try:
            data = retry_io(lambda: self._read(path, offset, size))
        except OSError as error:
            raise DecodeError((error.strerror or str(error)).lower()) from None
        if len(data) < size:
            raise DecodeError(f"the file ends after {len(data)} of the record's {size} bytes")
        return data

    def _read(self, path: Path, offset: int, size: int) -> bytes:
        try:
            file = self._open(path)  # this reference keeps it open if other threads push it out of the cache
            data = os.pread(file.number, size, offset)
            status = os.fstat(file.number)
        except OSError:
            self._open.cache_clear()  # files on a network drive must be reopened after it was away
            raise
        version = status.st_size, status.st_mtime_ns
        if self._versions.setdefault(path, version) != version:
            raise DecodeError("the file was changed during the run, so its records may have moved")
        return data


class _Descriptor:
    """An open file that is closed with its last reference."""

    def __init__(self, path: Path) -> None:
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)

    def __del__(self) -> None:
        if hasattr(self, "number"):
            os.close(self.number)


@dataclass(frozen=True)
class FileShard:
    """A `Shard` that is a single file.

    Attributes:
        path: The file.
        offsets: [N] int64, first byte of each record.
        sizes: [N] int64, bytes of each record.
        labels: [N] int64.
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
        """Returns an encoded image; see `Shard`."""
        record = self.files.read(self.path, int(self.offsets[number]), int(self.sizes[number]))
        image = self.format.extract_image(memoryview(record))
        if not image:
            raise DecodeError("the image is empty")
        return image

    def where(self, number: int) -> str:
        """Returns the location of a record for messages."""
        return f"record {number} at byte {self.offsets[number]}"
