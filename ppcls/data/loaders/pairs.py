"""Loads pairs of images of the same scene, such as a blurred and a sharp photo, with equal transforms.

All random decisions about a sample depend only on seed, epoch, position and image size. So two loaders with
the same order and chain, one for the first and one for the second images of the pairs, choose equal windows,
flips and colours on every backend.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from itertools import takewhile
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


def match_pairs(first: str, second: str) -> tuple[FileIndex, FileIndex]:
    """Finds pairs in two folder trees, and checks the sizes of the images by their headers.

    Two images are a pair if their paths below the folder of their pattern are equal, except for the file name
    extension: with the patterns ``train/img/*/*`` and ``train/gt/*/*``, ``train/img/a/1.jpg`` and
    ``train/gt/a/1.png``.

    Args:
        first: Pattern of the first images, as in a shell; ``**`` matches any number of folders. Hidden files
            do not match.
        second: Pattern of the second images.

    Returns:
        Index of the first images and index of the second images, sorted by path. All labels are 0.

    Raises:
        UserError: A pattern matches no files; an image has no partner, or several; an image can't be read; or
            the images of a pair differ in size. The message lists the files.
    """
    trees = [_match(pattern) for pattern in (first, second)]
    names = sorted({*trees[0], *trees[1]})
    problems: list[str] = []
    for name in names:
        files = [tree.get(name, []) for tree in trees]
        for own, others, pattern in zip(files, files[::-1], (second, first), strict=True):
            if own and not others:
                problems.append(f"{own[0]}: no image of the same name matches {pattern}")
            elif len(own) > 1:
                problems.append(f"{own[0]}: {own[1].name} has the same name, so the pair is not clear")
        if [len(paths) for paths in files] == [1, 1]:
            pair = [str(paths[0]) for paths in files]
            if problem := _size_problem(Path(), pair):
                problems.append(f"{' and '.join(pair)}: {problem}")
    raise_line_errors(problems)
    labels = np.zeros(len(names), np.int64)
    indices = []
    for pattern, tree in zip((first, second), trees, strict=True):
        root = _fixed_folder(pattern)
        paths = [os.fsencode(tree[name][0].relative_to(root)) for name in names]
        indices.append(FileIndex(root, np.array(paths), labels, Path(pattern)))
    return indices[0], indices[1]


def _match(pattern: str) -> dict[str, list[Path]]:
    """Returns the files that match a pattern, by their path below its folder without the extension."""
    root = _fixed_folder(pattern)
    files: dict[str, list[Path]] = {}
    for match in sorted(glob.glob(pattern, recursive=True)):  # noqa: PTH207 - ** as in a shell
        path = Path(match)
        if path.is_file():
            files.setdefault(str(path.relative_to(root).with_suffix("")), []).append(path)
    if not files:
        raise UserError(
            f"{pattern}: no file matches this pattern; quote it, so that the shell does not expand it"
        )
    return files


def _fixed_folder(pattern: str) -> Path:
    """Returns the folder of a pattern: its leading parts without wildcards, but not the last part."""
    fixed = takewhile(lambda part: not glob.has_magic(part), Path(pattern).parts[:-1])
    return Path(*fixed)


def _find_problem(root: Path, paths: list[str], delimiter: str) -> str | None:
    if len(paths) != 2 or not all(paths):
        paths_found = "an empty path" if not all(paths) else f"{len(paths)} path(s)"
        return f"expected 'first{delimiter}second', got {paths_found}"
    return _size_problem(root, paths)


def _size_problem(root: Path, paths: Sequence[str]) -> str | None:
    """Returns why the images at two paths are not a pair; None if both have a header and the same size."""
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
