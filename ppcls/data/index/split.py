"""Splits labelled images into training and validation images, with equal shares of each class."""

from __future__ import annotations

import hashlib
import heapq
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ppcls.data.index.arrays.path_hashes import find_repeated, full_path
from ppcls.data.index.class_names import LABEL_LIST, write_class_names
from ppcls.data.index.files import FileIndex
from ppcls.errors import UserError, counted, raise_line_errors
from ppcls.files import new_folder, one_line

TRAIN_LIST = "train_list.txt"
VAL_LIST = "val_list.txt"
_PIECE = 1 << 17  # number of paths that are hashed together


def allocate_validation(counts: Sequence[int], total: int) -> list[int]:
    """Returns the number of validation images of each class, in proportion to the sizes of the classes.

    Uses the largest remainder method (Hamilton's method). Each class gets its share, rounded down. The
    remaining images go to the classes with the largest fractional parts; ties are resolved in the order of
    the classes. Each class keeps at least one training image. If ``total`` is large enough, each class of two
    or more images gets at least one validation image, and the largest classes get fewer.

    Args:
        counts: [C] number of images of each class, each > 0.
        total: Number of validation images, 0..sum(counts) - C.
    """
    exact = [Fraction(count * total, sum(counts)) for count in counts]
    least = int(total >= sum(count > 1 for count in counts))
    shares = [min(max(int(share), least), count - 1) for share, count in zip(exact, counts, strict=True)]
    rest = total - sum(shares)
    largest = [(-share, label) for label, share in enumerate(shares)]
    heapq.heapify(largest)
    while rest < 0:
        share, label = largest[0]
        shares[label] -= 1
        heapq.heapreplace(largest, (share + 1, label))
        rest += 1
    candidates = [*range(len(counts))]
    while rest:
        candidates = [label for label in candidates if shares[label] < counts[label] - 1]
        chosen = sorted(candidates, key=lambda label: shares[label] - exact[label])[:rest]  # stable
        for label in chosen:
            shares[label] += 1
        rest -= len(chosen)
    return shares


def validation_size(val: Fraction | int, images: int, classes: int, key: str = "--val") -> int:
    """Returns the number of validation images.

    Args:
        val: Number of validation images, or their share of all images, between 0 and 1.
        images: Number of images.
        classes: Number of classes that have images.
        key: Option or config key of ``val``, for messages.

    Raises:
        UserError: There would be no validation image, or a class would have no training image.
    """
    total = val if isinstance(val, int) else round(val * images)
    most = images - classes
    if most < 1:
        raise UserError(
            f"{key}: expected at least {counted(classes + 1, 'image')} for {counted(classes, 'class')}, "
            f"found {images}; each class keeps one training image"
        )
    if not 0 < total <= most:
        raise UserError(
            f"{key}: expected 1 to {most} of {counted(images, 'image')} for validation, got {total}; each of "
            f"{counted(classes, 'class')} keeps one training image"
        )
    return total


def choose_validation(
    index: FileIndex,
    val: Fraction | int,
    seed: int,
    key: str = "--val",
    groups: Sequence[Sequence[int]] = (),
) -> NDArray[np.bool_]:
    """Chooses the validation images.

    For each class, these are the images with the smallest hashes (BLAKE2b) of seed and path. So the choice
    does not depend on the order of the images, and few images move to the other list when images are added.

    Args:
        index: The images, whose paths are unique.
        val: See `validation_size`. With groups, there may be fewer validation images.
        seed: Seed of the choice.
        key: See `validation_size`.
        groups: Positions of images that stay in the same list, such as duplicates. An image is in at most one
            group.

    Returns:
        [N], True for validation images.

    Raises:
        UserError: See `validation_size`; or an image is listed twice, so it could be in both lists.
    """
    _check_unique(index)
    labels, counts = np.unique(index.labels, return_counts=True)
    total = validation_size(val, len(index), len(labels), key)
    if isinstance(val, Fraction):  # many small classes may need more images than the share
        total = max(total, int((counts > 1).sum()))
    shares = allocate_validation(counts.tolist(), total)
    high, low = _hash_all(seed, index.paths).T
    if groups:
        return _choose_groups(
            index.labels, np.lexsort((low, high)), groups, dict(zip(labels.tolist(), shares, strict=True))
        )
    order = np.lexsort((low, high, index.labels))
    ranks = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)  # in its class, by hash
    chosen = np.zeros(len(index), np.bool_)
    chosen[order] = ranks < np.repeat(shares, counts)
    return chosen


def _choose_groups(
    labels: NDArray[np.int64],
    order: NDArray[np.int64],
    groups: Sequence[Sequence[int]],
    shares: Mapping[int, int],
) -> NDArray[np.bool_]:
    """Chooses whole groups of images for validation, in the order of the first image of each group.

    A class never gets more validation images than its share, unless all of its groups are larger. It then
    gets the smallest group that leaves an image for training, so that each class is evaluated if possible.

    Args:
        labels: [N] classes of the images.
        order: [N] positions in the order of their hashes.
        groups: Positions of images that stay together. Any other image is a group of its own.
        shares: Number of validation images of each class.
    """
    group_of = {position: tuple(group) for group in groups for position in group}
    units = list(dict.fromkeys(group_of.get(position, (position,)) for position in order.tolist()))
    counts = [Counter(labels[list(unit)].tolist()) for unit in units]
    free = Counter(shares)
    left = Counter(labels.tolist())
    chosen = np.zeros(len(labels), np.bool_)

    def choose(unit: int) -> None:
        chosen[list(units[unit])] = True
        free.subtract(counts[unit])
        left.subtract(counts[unit])

    for unit, inside in enumerate(counts):
        if all(free[label] >= count for label, count in inside.items()):
            choose(unit)
    for label in [label for label, share in shares.items() if share and free[label] == share]:
        fitting = [
            unit
            for unit, inside in enumerate(counts)
            if inside[label] and all(left[other] > count for other, count in inside.items())
        ]
        if fitting and not chosen[labels == label].any():
            choose(min(fitting, key=lambda unit: len(units[unit])))
    return chosen


def write_split(
    index: FileIndex,
    validates: NDArray[np.bool_],
    folder: Path,
    names: Sequence[str] = (),
    delimiter: str = " ",
) -> None:
    """Writes the lists of a split into a new folder. If writing fails, the folder is not created.

    See `write_lists` for the arguments.

    Raises:
        UserError: The folder exists, or a path can't be written to a list.
    """
    raise_line_errors(
        [
            f"{index.name(at)!r}: a list can't contain a path that has a line break, or that starts or ends "
            "with a blank; rename the file"
            for at, path in enumerate(index.paths)
            if b"\n" in bytes(path) or bytes(path) != os.fsencode(os.fsdecode(bytes(path)).strip())
        ]
    )
    try:
        with new_folder(folder, sync_each=True) as temporary:
            write_lists(index, validates, temporary, names, delimiter)
    except FileExistsError as error:
        raise UserError(f"{error}; nothing was written; choose another folder with --out") from None


def write_lists(
    index: FileIndex,
    validates: NDArray[np.bool_],
    folder: Path,
    names: Sequence[str] = (),
    delimiter: str = " ",
) -> None:
    """Writes ``train_list.txt`` and ``val_list.txt``, and also ``label_list.txt`` if there are class names.

    Args:
        index: The images.
        validates: [N], True for validation images.
        folder: Folder to write to.
        names: Class names, in the order of their labels; empty if the classes have no names.
        delimiter: Text between path and label.
    """
    write_list(folder / TRAIN_LIST, index, ~validates, delimiter)
    write_list(folder / VAL_LIST, index, validates, delimiter)
    if names:
        write_class_names(folder / LABEL_LIST, names)


def write_list(path: Path, index: FileIndex, chosen: NDArray[np.bool_], delimiter: str = " ") -> None:
    """Writes a list file of images and labels.

    Args:
        path: File to write.
        index: The images. If an image has several labels, they are separated by commas.
        chosen: [N], True for each image to write.
        delimiter: Text between path and label.

    Raises:
        UserError: The name of an image contains a line break. Nothing is written.
    """
    lines = []
    for position in np.flatnonzero(chosen).tolist():
        name = bytes(index.paths[position])
        if b"\n" in name:
            raise UserError(
                f"{one_line(os.fsdecode(name))}: a list of images can't contain this name, because it has a "
                "line break; rename the file or folder"
            )
        label = ",".join(str(int(value)) for value in np.atleast_1d(index.labels[position]))
        lines.append(name + os.fsencode(f"{delimiter}{label}\n"))
    path.write_bytes(b"".join(lines))


def _hash_all(seed: int, paths: NDArray[np.bytes_]) -> NDArray[np.uint64]:
    """Returns the first and second half of the hash of each path, [N, 2]."""
    start = b"%d\0" % seed
    hashes = np.zeros((len(paths), 2), np.uint64)
    for first in range(0, len(paths), _PIECE):
        piece = paths[first : first + _PIECE].tolist()
        digests = b"".join([hashlib.blake2b(start + path, digest_size=16).digest() for path in piece])
        hashes[first : first + _PIECE] = np.frombuffer(digests, ">u8").reshape(-1, 2)
    return hashes


def _check_unique(index: FileIndex) -> None:
    first: dict[bytes, int] = {}
    problems = []
    root = b"/"  # only for the normal form of paths: ./a.jpg and a.jpg are one image
    for at in find_repeated(index.paths, root).tolist():
        path = full_path(root, bytes(index.paths[at]))
        if first.setdefault(path, at) != at:
            problems.append(
                f"{index.where(at)}: {one_line(index.name(at))} is already listed in "
                f"{index.where(first[path])}, so it could be used for both training "
                "and validation; remove one of the lines"
            )
    raise_line_errors(problems)
