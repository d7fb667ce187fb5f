"""Measures how fast the images of a data set are read from their disk, or from the page cache."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ppcls.data.images.header import DecodeError
from ppcls.data.index.protocol import Index
from ppcls.data.page_cache import evict, resident_share

CHECKED_FILES = 64  # number of files whose pages are counted
EVICTED = 0.05  # largest share of pages in memory at which files count as removed from it


@dataclass(frozen=True)
class ReadSpeed:
    """Speed at which several threads read encoded images.

    Attributes:
        images: Number of images that were read.
        size: Their size in bytes.
        seconds: Elapsed time.
        resident: Share of the files that was in the page cache at the start, 0..1.
    """

    images: int
    size: int
    seconds: float
    resident: float

    @property
    def images_per_second(self) -> float:
        """Images per second."""
        return self.images / self.seconds

    @property
    def megabytes_per_second(self) -> float:
        """Megabytes (10^6 bytes) per second."""
        return self.size / self.seconds / 1e6

    @property
    def is_cold(self) -> bool:
        """Whether the images were read from the disk and not from memory."""
        return self.resident <= EVICTED


def time_reading(
    index: Index, positions: Sequence[int], threads: int, seconds: float, *, cold: bool
) -> ReadSpeed:
    """Measures how fast threads read the samples at positions, once and in this order.

    Args:
        index: The samples.
        positions: Positions in the index.
        threads: Number of threads.
        seconds: Time after which no further image is read.
        cold: Whether to remove the files from the page cache first. If not, they are read once before.

    Raises:
        OSError: The samples are not in files, or the system can't remove them from the page cache.
    """
    files = [Path(name) for name in dict.fromkeys(map(index.name, positions))]
    if cold:
        evict(files)
    else:
        _read(index, positions, threads, float("inf"))
    resident = resident_share(files[:CHECKED_FILES])
    began = time.perf_counter()
    sizes = _read(index, positions, threads, began + seconds)
    return ReadSpeed(len(sizes), sum(sizes), time.perf_counter() - began, resident)


def _read(index: Index, positions: Sequence[int], threads: int, deadline: float) -> list[int]:
    """Reads samples until the deadline. Returns their sizes in bytes, 0 for an unreadable one."""
    remaining = iter(positions)
    sizes: list[int] = []

    def work() -> None:
        for position in remaining:  # a list's iterator can be shared by threads
            try:
                sizes.append(len(index.read(position)))
            except DecodeError:
                sizes.append(0)
            if time.perf_counter() > deadline:
                return

    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work) for _ in range(threads)]:
            done.result()
    return sizes
