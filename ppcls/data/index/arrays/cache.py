"""Caches arrays that all processes of a machine compute from the same files, and maps them into memory.

The arrays are in one file, which contains only numbers and bytes. A record in ``$PPCLS_HOME`` has the state
(inode, size and times) of this file and of its source. Arrays are used only if both states are unchanged, so
a file of arrays that another program wrote, such as one from an archive, is never used.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import mmap
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from ppcls.errors import UserError
from ppcls.files import atomic_write, open_append, open_regular, print_error, read_regular, write_text
from ppcls.zoo import cache_folder

Arrays = Mapping[str, NDArray[Any]]
State = list[int]

_MAGIC = b"ppcls arrays 1\n"
_ALIGNMENT = 64  # bytes
_MAX_HEADER = 1 << 16  # bytes
_BLOCK = 1 << 22  # bytes that are written or hashed together
_DTYPE = re.compile(r"\|S[1-9][0-9]{0,3}|<i8|<u8|<f4|\|u1|\|b1")
SETTLED = 2 * 10**9  # ns; a file may change once more without a new time stamp within this time


def file_state(status: os.stat_result) -> State:
    """Returns numbers that change if a file or folder is replaced or written: inode, size and times."""
    return [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


@dataclass(frozen=True)
class Source:
    """What arrays are computed from.

    Attributes:
        read_state: Returns numbers that change if the source changes. See `file_state`.
        changed: Time of the last change in ns.
        digest: Returns a hash of the content. Arrays remain valid if only the state changed, for example
            after a copy. None if only the state counts.
        is_valid: Returns whether arrays that were written for the current state are still valid.
    """

    read_state: Callable[[], State]
    changed: int = 0
    digest: Callable[[], str] | None = None
    is_valid: Callable[[Arrays], bool] = lambda _: True


@dataclass(frozen=True)
class ArrayCache:
    """Arrays in a file.

    Attributes:
        key: Text that identifies the source and all settings that the arrays depend on.
        name: Name of the source, for messages.
        beside: File beside which the arrays are stored if its folder is writable; None to store them in
            ``$PPCLS_HOME``.
    """

    key: str
    name: str
    beside: Path | None = None

    def get(self, source: Source, compute: Callable[[], Arrays]) -> Arrays:
        """Returns the arrays, which are computed by one process of the machine and read by the others.

        Args:
            source: The source of the arrays.
            compute: Computes the arrays.

        Returns:
            Read-only arrays. If no file can be written, they are the result of ``compute``, and a line on
            standard error reports the reason.
        """
        state = source.read_state()
        if (arrays := self.load(source)) is not None:
            return arrays
        try:
            lock = self._open_lock()
        except (OSError, UserError) as error:
            self._report(error)
            return compute()
        with lock:  # closing the file releases the lock
            for load in (self._load, self._check_content):
                if (arrays := load(source, state)) is not None:
                    return arrays
            arrays = compute()
            try:
                return self._store(source, state, arrays)
            except OSError as error:
                self._report(error)
                return arrays

    def load(self, source: Source) -> Arrays | None:
        """Returns the stored arrays; None if there are none, or if they are no longer valid."""
        return self._load(source, source.read_state())

    @property
    def _folder(self) -> Path:
        return cache_folder("arrays")

    @property
    def _token(self) -> str:
        return hashlib.blake2b(os.fsencode(self.key), digest_size=12).hexdigest()

    @property
    def _record(self) -> Path:
        return self._folder / f"{self._token}.json"

    def _places(self) -> list[Path]:
        """Returns the paths at which the file of arrays may be, the preferred one first."""
        inside = self._folder / f"{self._token}.arrays"
        if self.beside is None:
            return [inside]
        return [self.beside.with_name(f".{self.beside.name[:200]}.{self._token[:8]}.arrays"), inside]

    def _open_lock(self) -> TextIO:
        """Waits until no other process of the machine computes these arrays, and returns the lock's file.

        Raises:
            OSError, UserError: The folder in ``$PPCLS_HOME`` is not writable.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        file = open_append(self._folder / f"{self._token}.lock")
        # A file system without locks lets several processes compute the same arrays. Each of them replaces
        # the file as a whole, so the result is the same.
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        return file

    def _report(self, error: Exception) -> None:
        print_error(
            f"{self.name}: the list of images can't be cached, so each process reads it: {error}; set "
            "PPCLS_HOME to a writable folder"
        )

    def _read_record(self) -> dict[str, Any] | None:
        """Returns the record if it is valid."""
        try:
            record = json.loads(read_regular(self._record))
        except (OSError, ValueError, RecursionError):  # missing or damaged: the arrays are computed again
            return None
        fields = {"source": list, "digest": str, "settled": bool, "arrays": list, "place": int}
        if not isinstance(record, dict) or any(
            not isinstance(record.get(name), kind) for name, kind in fields.items()
        ):
            return None
        return record

    def _load(self, source: Source, state: State) -> Arrays | None:
        """Returns the arrays if neither the source nor the file of arrays changed since they were written."""
        record = self._read_record()
        if record is None or not record["settled"] or record["source"] != state:
            return None
        arrays = self._map(record)
        return arrays if arrays is not None and source.is_valid(arrays) else None

    def _check_content(self, source: Source, state: State) -> Arrays | None:
        """Returns the arrays if the content of the source is unchanged, and updates the record."""
        record = self._read_record()
        if record is None or source.digest is None or not record["digest"]:
            return None
        arrays = self._map(record)
        if arrays is None or source.digest() != record["digest"]:
            return None
        with suppress(OSError):  # the next process checks the content again
            self._write_record(source, state, record)
        return arrays

    def _map(self, record: Mapping[str, Any]) -> Arrays | None:
        places = self._places()
        if not 0 <= record["place"] < len(places):
            return None
        return map_arrays(places[record["place"]], record["arrays"])

    def _store(self, source: Source, state: State, arrays: Arrays) -> Arrays:
        """Writes arrays, and returns them mapped into memory.

        Raises:
            OSError: No place is writable.
        """
        digest = "" if source.digest is None else source.digest()
        if source.read_state() != state:  # it changed meanwhile
            return arrays
        *preferred, last = enumerate(self._places())
        for number, place in preferred:
            with suppress(OSError):  # the folder of the source may be read-only
                return self._store_at(source, place, arrays, {"digest": digest, "place": number}, state)
        number, place = last
        return self._store_at(source, place, arrays, {"digest": digest, "place": number}, state)

    def _store_at(
        self, source: Source, place: Path, arrays: Arrays, record: dict[str, Any], state: State
    ) -> Arrays:
        if not _has_content(place, arrays):
            with atomic_write(place) as file:
                for block in _file_blocks(arrays):
                    file.write(block)
        record["arrays"] = file_state(place.stat())
        self._write_record(source, state, record)
        return map_arrays(place, record["arrays"]) or arrays

    def _write_record(self, source: Source, state: State, record: Mapping[str, Any]) -> None:
        settled = time.time_ns() - source.changed > SETTLED
        text = json.dumps({**record, "source": state, "settled": settled})
        write_text(self._record, text)


def _has_content(path: Path, arrays: Arrays) -> bool:
    """Returns whether a file contains these arrays, for example because another user wrote them."""
    try:
        with open_regular(path) as file:
            return all(file.read(len(block)) == block for block in _file_blocks(arrays)) and not file.read(1)
    except OSError:
        return False


def _file_blocks(arrays: Arrays) -> Iterator[bytes | memoryview]:
    """Yields the content of a file of arrays."""
    header = json.dumps({name: [array.dtype.str, list(array.shape)] for name, array in arrays.items()})
    start = _MAGIC + b"%d\n" % len(header) + header.encode()
    yield start + bytes(-len(start) % _ALIGNMENT)
    for array in arrays.values():
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        for at in range(0, len(data), _BLOCK):
            yield data[at : at + _BLOCK]
        yield bytes(-len(data) % _ALIGNMENT)


def map_arrays(path: Path, state: State) -> Arrays | None:
    """Maps a file of arrays into memory; None if it is missing, damaged, or does not have this state.

    The file contains no code, and its header cannot cause an allocation or an access outside of the file.
    """
    try:
        with open_regular(path) as file:
            if file_state(os.fstat(file.fileno())) != state:
                return None
            layout, start = _read_header(file.read(_MAX_HEADER))
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError, RecursionError):
        return None
    arrays = {}
    for name, (dtype, shape) in layout.items():
        count = math.prod(shape)
        size = count * dtype.itemsize
        if start + size > len(data):
            return None
        arrays[name] = np.frombuffer(data, dtype, count, start).reshape(shape)
        start += size + -size % _ALIGNMENT
    return arrays if start == len(data) else None


def _read_header(data: bytes) -> tuple[dict[str, tuple[np.dtype[Any], tuple[int, ...]]], int]:
    """Returns dtype and shape of each array, and the offset of the first one.

    Raises:
        ValueError: The header is invalid.
    """
    magic, _, rest = data.partition(b"\n")
    size, _, rest = rest.partition(b"\n")
    if magic + b"\n" != _MAGIC or not re.fullmatch(rb"[0-9]{1,5}", size) or int(size) > len(rest):
        raise ValueError("the file does not start with the header of arrays")
    layout = json.loads(rest[: int(size)])
    if not isinstance(layout, dict):
        raise ValueError("expected an object")
    arrays = {}
    for name, item in layout.items():
        if not (isinstance(item, list) and len(item) == 2):
            raise ValueError(f"{name}: expected dtype and shape")
        dtype, shape = item
        if not (isinstance(dtype, str) and _DTYPE.fullmatch(dtype)):
            raise ValueError(f"{name}: unexpected dtype")
        if not (isinstance(shape, list) and 1 <= len(shape) <= 2 and all(map(_is_size, shape))):
            raise ValueError(f"{name}: unexpected shape")
        arrays[name] = (np.dtype(dtype), tuple(shape))
    start = len(_MAGIC) + len(size) + 1 + int(size)
    return arrays, start + -start % _ALIGNMENT


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 48
