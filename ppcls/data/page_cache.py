"""Removes files from the page cache of the operating system, and reports which part of them is in it.

A benchmark that has read the files before measures memory, not the disk.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np


def evict(paths: Iterable[Path]) -> None:
    """Removes files from the page cache. Pages that are not written to the disk yet are written first.

    The system may ignore this, for example for files that only exist in memory (tmpfs). `resident_share`
    shows whether it did.
    """
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def resident_share(paths: Sequence[Path]) -> float:
    """Returns the share of the pages of files that are in the page cache, 0..1.

    Linux reports all pages of files as cached that this user can't write, so that 1 can also mean unknown.

    Raises:
        OSError: A file can't be read, or the system can't report its pages.
    """
    cached = 0
    total = 0
    system = ctypes.CDLL(None, use_errno=True)
    for path in paths:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if not size:
                continue
            with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as memory:
                content = np.frombuffer(memory, np.uint8)
                pages = -(-size // mmap.PAGESIZE)
                flags = (ctypes.c_ubyte * pages)()
                address = ctypes.c_void_p(content.ctypes.data)
                failed = system.mincore(address, ctypes.c_size_t(size), flags)
                del content  # the file can't be unmapped before
                if failed:
                    number = ctypes.get_errno()
                    raise OSError(number, os.strerror(number), str(path))
        cached += sum(flag & 1 for flag in flags)
        total += pages
    return cached / total if total else 0.0
