"""Decodes every image of a data set, before training does."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from ppcls.config.sections.transform import Transform
from ppcls.data.bad_images.lists import BadImage, to_bad_images
from ppcls.data.bad_images.search import find_undecodable
from ppcls.data.index.read import Index

_CHUNK = 256  # images handed to the threads at a time, so that an interrupt waits for few


def find_bad_images(index: Index, decoder: Transform, threads: int) -> Iterator[tuple[int, list[BadImage]]]:
    """Reads and decodes every image, on several threads: decoders work without Python's lock.

    Args:
        index: The samples.
        decoder: The chain's first transform.
        threads: How many.

    Yields:
        Of each chunk of images, in the index's order, how many it had, and those that can't be read or
        decoded.
    """
    with ThreadPoolExecutor(threads) as pool:
        for begin in range(0, len(index), _CHUNK):
            chunk = range(begin, min(begin + _CHUNK, len(index)))
            bad: dict[int, str] = {}
            for found in pool.map(lambda position: find_undecodable(index, decoder, [position]), chunk):
                bad |= found
            yield len(chunk), to_bad_images(index, bad)
