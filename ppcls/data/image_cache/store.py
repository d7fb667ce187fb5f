"""Decoded images in files, to which images are only appended.

Decisions:
- ``pixels-0`` to ``pixels-7`` have the images as ``.npy`` files, one after the other. There are several,
  because Linux lets only one thread at a time write to a file, which would be slower than many cores decode.
- ``journal`` has one record per image. A record is written when the pixels are on the disk, so each valid
  record has its pixels, also after a kill or a power failure. What is in a file of pixels after its last
  record is overwritten.
- A record of 0 bytes removes an image, whose file has become bad. Its old pixels are used by no later start.
- All processes map the pixels into memory and share them. Like every mapped file, they must not be truncated
  by another program.
"""

from __future__ import annotations

import io
import mmap
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

Array = NDArray[Any]
_FILES = 8  # files of pixels
_FIELDS = 6  # numbers of a record without its sum: position, file, offset, size, and both of the state
_RECORD = 8 * (_FIELDS + 1)  # bytes
_FACTORS = np.array(
    [
        0x9E3779B97F4A7C15,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x27D4EB2F165667C5,
        0x85EBCA77C2B2AE63,
        0xD6E8FEB86659FD93,
    ],
    np.uint64,
)
HEADER = 128  # bytes of the header of an image


class CachedImage(NamedTuple):
    """An image to store.

    Attributes:
        position: Position of the image in the data set.
        pixels: [H, W, C].
        state: State of the file from which it was decoded: time of its last change in ns, and its size.
    """

    position: int
    pixels: Array
    state: tuple[int, int]


class ImageStore:
    """Reads and writes the decoded images in a folder.

    Args:
        folder: The folder, which must exist.
        count: Number of images of the data set.

    Attributes:
        states: [N, 2] int64, state of the file from which each image was decoded; -1 for a missing image.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self._pixels = [folder / f"pixels-{number}" for number in range(_FILES)]
        self._journal = folder / "journal"
        self._places = np.zeros((count, 3), np.int64)  # file, offset, size; 0 bytes for a missing image
        self.states = np.full((count, 2), -1, np.int64)
        self._ends = np.zeros(_FILES, np.int64)  # of the valid pixels
        self._maps: list[mmap.mmap | None] = []
        self._load()

    @property
    def size(self) -> int:
        """Number of bytes of all images, including those that were replaced."""
        return int(self._ends.sum())

    def mostly_replaced(self, missing: NDArray[np.int64]) -> bool:
        """Returns whether images that were replaced, or will be, need more space than the others.

        Args:
            missing: Positions of the images that will be stored.
        """
        kept = self._places[:, 2].sum() - self._places[missing, 2].sum()
        return bool(self.size > 2 * kept)

    def clear(self) -> None:
        """Removes all images. No other process may use them.

        Raises:
            OSError: The files can't be written.
        """
        for path in (self._journal, *self._pixels):  # in this order, because a record needs its pixels
            with self._open(path) as file:
                file.truncate(0)
        self._places[:] = 0
        self.states[:] = -1
        self._ends[:] = 0

    def forget(self, positions: Iterable[int]) -> None:
        """Removes those of the images that are stored. Processes that use them already may continue.

        Raises:
            OSError: The disk or the memory is full.
        """
        stored = [position for position in positions if self._places[position, 2]]
        self._write([(position, 0, 0, 0, -1, -1) for position in stored])

    def append(self, images: Sequence[CachedImage]) -> None:
        """Stores images. Those that are stored already are replaced.

        Raises:
            OSError: The disk or the memory is full.
        """
        parts = [images[number::_FILES] for number in range(_FILES)]
        with ThreadPoolExecutor(_FILES) as pool:
            records = [*chain.from_iterable(pool.map(self._append_to, range(_FILES), parts))]
        self._write(records)

    def _append_to(self, number: int, images: Sequence[CachedImage]) -> list[tuple[int, ...]]:
        """Writes images to one of the files. Returns their records."""
        records = list[tuple[int, ...]]()
        if not images:
            return records
        end = int(self._ends[number])
        with self._open(self._pixels[number]) as file:
            file.seek(end)
            for image in images:
                header = _header(image.pixels.dtype.str, image.pixels.shape)
                content = np.ascontiguousarray(image.pixels).reshape(-1).view(np.uint8)
                file.write(header)
                file.write(content.data)
                size = len(header) + content.nbytes
                records.append((image.position, number, end, size, *image.state))
                end += size
            file.flush()
            os.fdatasync(file.fileno())
        return records

    def _write(self, records: Sequence[tuple[int, ...]]) -> None:
        """Appends records to the journal."""
        if not records:
            return
        values = np.array(records, np.int64)
        with self._open(self._journal) as journal:
            journal.seek(0, os.SEEK_END)
            journal.write(np.column_stack([values, _sums(values)]).tobytes())
            journal.flush()
            os.fdatasync(journal.fileno())
        self._add(values)

    def map(self) -> None:
        """Maps the images into memory."""
        self._maps = []
        for path, end in zip(self._pixels, self._ends.tolist(), strict=True):
            with self._open(path) as file:
                self._maps.append(mmap.mmap(file.fileno(), end, access=mmap.ACCESS_READ) if end else None)

    def read(self, position: int) -> memoryview | None:
        """Returns an image as the content of an ``.npy`` file; None for one that is missing."""
        number, offset, size = self._places[position].tolist()
        pixels = self._maps[number] if size and self._maps else None
        return memoryview(pixels)[offset : offset + size] if pixels is not None else None

    @staticmethod
    def _open(path: Path) -> io.BufferedRandom:
        return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+b")

    def _load(self) -> None:
        """Reads the journal up to the first invalid record."""
        for path in self._pixels:
            self._open(path).close()
        lengths = np.array([path.stat().st_size for path in self._pixels], np.int64)
        with self._open(self._journal) as journal:
            data = journal.read()
            values = np.frombuffer(data[: len(data) // _RECORD * _RECORD], np.int64)
            records = values.reshape(-1, _FIELDS + 1)
            position, number, offset, size = records[:, :4].T
            length = lengths[number % _FILES]
            valid = (
                (records[:, _FIELDS] == _sums(records[:, :_FIELDS]))
                & (position >= 0)
                & (position < len(self._places))
                & (number >= 0)
                & (number < _FILES)
                & (offset >= 0)
                & (size >= 0)
                & (size <= length)
                & (offset <= length - size)
            )
            kept = len(records) if valid.all() else int(valid.argmin())
            journal.truncate(kept * _RECORD)
            self._add(records[:kept, :_FIELDS])

    def _add(self, records: NDArray[np.int64]) -> None:
        if not len(records):
            return
        self._places[records[:, 0]] = records[:, 1:4]
        self.states[records[:, 0]] = records[:, 4:6]
        np.maximum.at(self._ends, records[:, 1], records[:, 2] + records[:, 3])


def entry_bytes(pixels: int, channels: int, dtype: str) -> int:
    """Returns the number of bytes that an image of a number of pixels needs in a store."""
    return HEADER + pixels * channels * np.dtype(dtype).itemsize


@lru_cache(maxsize=256)
def _header(dtype: str, shape: tuple[int, ...]) -> bytes:
    file = io.BytesIO()
    npy.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue()


def _sums(records: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns a sum for each record that shows whether it was written completely."""
    mixed = (np.ascontiguousarray(records).view(np.uint64) + np.uint64(1)) * _FACTORS
    mixed ^= mixed >> np.uint64(29)
    return np.asarray(mixed.sum(axis=1, dtype=np.uint64).view(np.int64))
