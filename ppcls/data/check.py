"""Decodes every image of a data set, before training does."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from ppcls.config.transform import Transform
from ppcls.data.bad_images import BadImage, look_at, named
from ppcls.data.index import Index

_CHUNK = 256  # images handed to the threads at a time, so that an interrupt waits for few


def find_bad_images(
    index: Index, decoder: Transform, threads: int, advance: Callable[[int], object]
) -> list[BadImage]:
    """Reads and decodes every image, on several threads: decoders work without Python's lock.

    Args:
        index: The samples.
        decoder: The chain's first transform.
        threads: How many.
        advance: Told after each chunk of images how many it had.

    Returns:
        Those that can't be read or decoded, in the index's order.
    """
    bad: dict[int, str] = {}
    with ThreadPoolExecutor(threads) as pool:
        for begin in range(0, len(index), _CHUNK):
            chunk = range(begin, min(begin + _CHUNK, len(index)))
            for found in pool.map(lambda position: look_at(index, decoder, [position]), chunk):
                bad |= found
            advance(len(chunk))
    return named(index, bad)
