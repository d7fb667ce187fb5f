"""Decodes all images of a dataset before training does."""

from __future__ import annotations

from collections.abc import Iterator

from ppcls.config.sections.transform import Transform
from ppcls.data.bad_images.lists import BadImage, to_bad_images
from ppcls.data.bad_images.search import find_undecodable
from ppcls.data.index.protocol import Index
from ppcls.dataset_tools.jobs import map_on_threads


def find_bad_images(index: Index, decoder: Transform, threads: int) -> Iterator[list[BadImage]]:
    """Reads and decodes all images on threads.

    Args:
        index: The dataset.
        decoder: First transform of the chain.
        threads: Number of threads.

    Yields:
        For each image a list with the image if it can't be read or decoded, or an empty list.
    """

    def check(position: int) -> dict[int, str]:
        return find_undecodable(index, decoder, [position])

    for _, reasons in map_on_threads(check, range(len(index)), threads):
        yield to_bad_images(index, reasons)
