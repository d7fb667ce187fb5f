"""Loads pairs of images of the same scene, such as a blurred and a sharp photo, with equal transforms.

All random decisions about a sample depend only on seed, epoch, position and image size. So two loaders with
the same order and chain, one for the first and one for the second images of the pairs, choose equal windows,
flips and colours on every backend.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from ppcls.data.index.files import FileIndex
from ppcls.errors import UserError, raise_line_errors
from ppcls.files import read_regular

if TYPE_CHECKING:  # batch imports Paddle, which reading a list of pairs does not need
    from ppcls.data.loaders.batch import Batch, Loader

_EXIF_ORIENTATION = 0x0112  # EXIF 2.32, 4.6.4
_FIRST_SWAPPED = 5  # orientations 5 to 8 swap height and width


class PairLoader:
    """Yields pairs of batches whose rows show the same scenes.

    Args:
        first: Loader of the first images of the pairs.
        second: Loader of the second images, with the same order and chain. Both images of a pair must have
            the same size, which `read_pairs` checks.

    Raises:
        ValueError: The loaders have different orders.
    """

    def __init__(self, first: Loader, second: Loader) -> None:
        if first.order != second.order:
            raise ValueError("expected two loaders with equal orders, got different orders")
        self._first = first
        self._second = second
        self.order = first.order

    def __len__(self) -> int:
        """Returns the number of batches per epoch."""
        return len(self.order)

    def __iter__(self) -> Iterator[tuple[Batch, Batch]]:
        """Yields the pairs of batches from the current position to the end of the epoch."""
        # The first loader is ahead if the second one failed before.
        self._first.load_state_dict(self._second.state_dict())
        yield from zip(self._first, self._second, strict=True)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position after the last pair of batches that was yielded."""
        return self._second.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Moves both loaders to a position that `state_dict` returned. See `Order.restore` for errors."""
        self._first.load_state_dict(state)
        self._second.load_state_dict(state)


def read_pairs(root: Path, listing: Path, delimiter: str = " ") -> tuple[FileIndex, FileIndex]:
    """Reads a list of pairs, and checks the sizes of the images by their headers.

    Args:
        root: Folder of the images.
        listing: List file. Each line has two paths relative to ``root``, separated by the delimiter.
        delimiter: Text between the paths. The paths must not contain it.

    Returns:
        Index of the first images and index of the second images. All labels are 0.

    Raises:
        UserError: The list can't be read or is empty; or a line does not have two paths, an image is missing,
            or the images of a pair differ in size. The message lists the line numbers.
    """
    try:
        text = read_regular(listing).decode("utf-8-sig", "surrogateescape")
    except OSError as error:
        raise UserError(f"{listing}: can't read this list of pairs: {error.strerror}") from None
    pairs: dict[int, list[str]] = {}  # by line number
    problems: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        pairs[number] = [path.strip() for path in line.split(delimiter)]
        if problem := _find_problem(root, pairs[number], delimiter):
            problems.append(f"{listing}, line {number}: {problem}")
    raise_line_errors(problems)
    if not pairs:
        raise UserError(f"{listing}: the list is empty; expected lines of 'first{delimiter}second'")
    labels = np.zeros(len(pairs), np.int64)
    numbers = np.array(list(pairs), np.int64)
    first, second = (
        FileIndex(root, np.array([os.fsencode(path) for path in paths]), labels, listing, numbers)
        for paths in zip(*pairs.values(), strict=True)
    )
    return first, second


def _find_problem(root: Path, paths: list[str], delimiter: str) -> str | None:
    if len(paths) != 2 or not all(paths):
        paths_found = "an empty path" if not all(paths) else f"{len(paths)} path(s)"
        return f"expected 'first{delimiter}second', got {paths_found}"
    sizes = []
    for path in paths:
        try:
            sizes.append(_upright_size(root / path))
        except OSError as error:  # Pillow raises an OSError if a file is not an image
            return f"{path}: {(error.strerror or 'not an image').lower()}"
    if sizes[0] != sizes[1]:
        sizes_found = " and ".join(f"{width}x{height}" for width, height in sizes)
        return f"expected two images of the same size, got {sizes_found}"
    return None


def _upright_size(path: Path) -> tuple[int, int]:
    """Returns the width and height of an image after applying the EXIF orientation."""
    with Image.open(path) as image:
        width, height = image.size
        swapped = image.getexif().get(_EXIF_ORIENTATION, 1) >= _FIRST_SWAPPED
        return (height, width) if swapped else (width, height)
