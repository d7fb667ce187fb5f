"""The operating system's page cache: loads files into it, and drops them from it without root rights.

Linux drops the clean pages of a file on ``posix_fadvise(POSIX_FADV_DONTNEED)``, but file systems may ignore
it. So `slowdown_when_dropped` measures whether dropped files are read more slowly.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

COLD_SLOWDOWN = 2.0  # factor from which dropped files certainly come from the disk
_SAMPLED = 64  # files, evenly spread
_PART = 16 << 20  # bytes read of each
_TRIES = 3


def drop(paths: Iterable[Path]) -> None:
    """Asks the system to drop files from the page cache, after writing modified pages to the disk.

    Raises:
        OSError: A file cannot be opened.
    """
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def slowdown_when_dropped(paths: Sequence[Path]) -> float:
    """Returns how many times longer reading takes after files were dropped, the least of a few tries.

    Raises:
        OSError: A file cannot be read.
    """
    few = list(dict.fromkeys(paths[len(paths) * number // _SAMPLED] for number in range(_SAMPLED)))
    slowdowns = []
    for _ in range(_TRIES):
        drop(few)
        cold = _read_seconds(few)
        slowdowns.append(cold / _read_seconds(few))
    drop(few)
    return min(slowdowns)


def _read_seconds(paths: Sequence[Path]) -> float:
    began = time.perf_counter()
    for path in paths:
        with path.open("rb") as file:
            file.read(_PART)
    return time.perf_counter() - began


class PageCache:
    """Brings files into the page cache or out of it, unless they are already.

    Args:
        files: Files.
        read_all: Reads all images.
    """

    def __init__(self, files: Sequence[Path], read_all: Callable[[], None]) -> None:
        self._files, self._read_all, self._warm = files, read_all, False

    def prepare(self, *, cold: bool) -> None:
        """Drops the files if ``cold``, otherwise loads them."""
        if cold:
            drop(self._files)
        elif not self._warm:
            self._read_all()
        self._warm = not cold
