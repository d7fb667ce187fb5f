"""Pairs of images of one scene, such as a blurred and a sharp photograph, treated alike.

What is random about a sample is a function of seed, epoch, position and size. So two loaders of one order
and chain, over the first and the second images, cut the same window, mirror and recolour alike: on every
backend, whatever reads for them.
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

if TYPE_CHECKING:  # it imports Paddle, which whoever reads a list may not want yet
    from ppcls.data.loaders.batch import Batch, Loader

_ORIENTATION = 0x0112  # EXIF 2.32, 4.6.4; from 5 on, height and width are exchanged
_LYING = 5


class PairLoader:
    """Yields a batch of first images and one of second images, row by row the same scenes.

    Args:
        first: Loader of the first images.
        second: Loader of the second ones, of the same order and chain; its index has images of the same
            sizes, as `read_pairs` sees to.

    Raises:
        ValueError: The loaders have different orders.
    """

    def __init__(self, first: Loader, second: Loader) -> None:
        if first.order != second.order:
            raise ValueError("the two images of a pair need loaders of one order")
        self._first, self._second = first, second
        self.order = first.order

    def __len__(self) -> int:
        """Returns the batches of an epoch."""
        return len(self.order)

    def __iter__(self) -> Iterator[tuple[Batch, Batch]]:
        """Yields the pairs of batches from the present position to the end of the epoch."""
        self._first.load_state_dict(self._second.state_dict())  # one may be ahead, where the other failed
        yield from zip(self._first, self._second, strict=True)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position behind the last pair that was yielded."""
        return self._second.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to a position that `state_dict` gave."""
        self._first.load_state_dict(state)
        self._second.load_state_dict(state)


def read_pairs(root: Path, listing: Path, delimiter: str = " ") -> tuple[FileIndex, FileIndex]:
    """Reads a list of pairs and the sizes in the headers of their images.

    Args:
        root: Folder of the images.
        listing: Lines of first path, ``delimiter``, second path; both below ``root``.
        delimiter: Between the paths, which may not hold it.

    Returns:
        The first images and the second ones; all labels are 0.

    Raises:
        UserError: The list can't be read or is empty, or lines are wrong (all of them, by number): not two
            paths, no image there, or images of different sizes.
    """
    try:
        text = listing.read_text(encoding="utf-8-sig", errors="surrogateescape")
    except OSError as error:
        raise UserError(f"{listing}: can't read this list of pairs: {error.strerror}") from None
    pairs: list[list[bytes]] = []
    lines: list[int] = []
    problems: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        paths = [each.strip() for each in line.split(delimiter)]
        wrong = _wrong_with(root, paths, delimiter)
        if wrong:
            problems.append(f"{listing}, line {number}: {wrong}")
            continue
        pairs.append([os.fsencode(each) for each in paths])
        lines.append(number)
    raise_line_errors(problems)
    if not pairs:
        raise UserError(f"{listing}: the list is empty; expected lines of 'first{delimiter}second'")
    labels, numbers = np.zeros(len(pairs), np.int64), np.array(lines, np.int64)
    first, second = (
        FileIndex(root, np.array(side), labels, listing, numbers) for side in zip(*pairs, strict=True)
    )
    return first, second


def _wrong_with(root: Path, paths: list[str], delimiter: str) -> str | None:
    if len(paths) != 2 or not all(paths):
        found = "an empty path" if not all(paths) else f"{len(paths)} path(s)"
        return f"expected 'first{delimiter}second', got {found}"
    sizes = []
    for path in paths:
        try:
            sizes.append(_upright_size(root / path))
        except OSError as error:  # Pillow's own, for what is no image, is one too
            return f"{path}: {(error.strerror or 'not an image').lower()}"
    if sizes[0] != sizes[1]:
        found = " and ".join(f"{width}x{height}" for width, height in sizes)
        return f"expected two images of one size, got {found}"
    return None


def _upright_size(path: Path) -> tuple[int, int]:
    """Returns (width, height) of an image as decoders give it, turned by EXIF."""
    with Image.open(path) as image:
        width, height = image.size
        return (height, width) if image.getexif().get(_ORIENTATION, 1) >= _LYING else (width, height)
