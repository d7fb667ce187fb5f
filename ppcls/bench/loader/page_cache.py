"""The system's page cache: what it holds of files, and how to make it forget them without being root.

Linux drops a file's clean pages on ``posix_fadvise(POSIX_FADV_DONTNEED)``. It is a wish: pages that another
process maps stay, and file systems that live in memory have nowhere else to keep them. So what became of it
is looked up, by ``mincore(2)``.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_LOOKED_AT = 64  # files, spread evenly
_PART = 16 << 20  # bytes of each
_DROPPED = 0.05  # share of pages that may stay
_TRIES = 3
_SLOWER = 4.0  # times; then files surely came from elsewhere than from memory


@dataclass(frozen=True)
class Dropped:
    """What became of a wish to forget files.

    Attributes:
        before: Share of their pages in memory right after they were read, 0..1.
        after: Share that was left.
        slower: How many times as long reading them then took as reading them again, at least.
    """

    before: float
    after: float
    slower: float = 1.0

    @property
    def cold(self) -> bool:
        """Whether the files are known to be read from the disk next time."""
        seen = self.before > 1 - _DROPPED and self.after < _DROPPED
        return seen or self.slower > _SLOWER

    def describe(self) -> str:
        """Returns a sentence where the files are not known to be cold; else nothing."""
        if self.cold:
            return ""
        if self.before <= 1 - _DROPPED:
            return (
                f"the system shows {self.before:.0%} of files in memory that were just read, so whether "
                "dropping them worked is not known"
            )
        return (
            f"{self.after:.0%} of the data set's pages stayed in memory: this file system does not honour "
            "POSIX_FADV_DONTNEED, or does not tell"
        )


def resident(path: Path) -> float:
    """Returns the share of a file's pages that are in memory, 0..1; 1 for an empty file.

    Of a large file its beginning stands for all. The kernel tells it to who may write the file, and says 1
    to all others.

    Raises:
        OSError: The file can't be opened, or its file system can't map it.
    """
    with path.open("rb") as file:
        size = min(os.fstat(file.fileno()).st_size, _PART)
        if not size:
            return 1.0
        # Private, so that its memory may be lent to ctypes; nothing writes to it.
        how = {"flags": mmap.MAP_PRIVATE, "prot": mmap.PROT_READ | mmap.PROT_WRITE}
        with mmap.mmap(file.fileno(), size, **how) as held:
            return _resident(held, size)


def _resident(held: mmap.mmap, size: int) -> float:
    found = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    begin = ctypes.c_ubyte.from_buffer(held)
    failed = _mincore(ctypes.addressof(begin), size, found)
    del begin  # a mapping that is lent can't be closed
    if failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return sum(each & 1 for each in found) / len(found)


def drop(paths: Iterable[Path]) -> None:
    """Asks the system to forget files' pages; those not yet written to the disk are written before.

    Raises:
        OSError: A file can't be opened.
    """
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def try_dropping(paths: Sequence[Path]) -> Dropped:
    """Reads some files, drops them, and returns what was in memory before and after.

    Args:
        paths: All files; those that are looked at are spread evenly among them.

    Raises:
        OSError: A file can't be read.
    """
    few = [paths[len(paths) * number // _LOOKED_AT] for number in range(_LOOKED_AT)]
    few = list(dict.fromkeys(few))
    _read(few)
    before = _mean(few)
    drop(few)
    after = _mean(few)
    return Dropped(before, after, min(_slower(few) for _ in range(_TRIES)))


def _slower(paths: Sequence[Path]) -> float:
    """Returns how many times as long reading dropped files takes as reading them again; drops them."""
    drop(paths)
    cold, warm = _read(paths), _read(paths)
    drop(paths)
    return cold / warm


def _read(paths: Sequence[Path]) -> float:
    """Reads the part of each file that is looked at; returns the seconds."""
    began = time.perf_counter()
    for path in paths:
        with path.open("rb") as file:
            file.read(_PART)
    return time.perf_counter() - began


def _mean(paths: Sequence[Path]) -> float:
    return sum(map(resident, paths)) / len(paths)


_libc = ctypes.CDLL(None, use_errno=True)
_mincore = _libc.mincore
_mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
_mincore.restype = ctypes.c_int
