"""Splits labelled images into lists to train and to validate on, class by class alike."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ppcls.data.index.class_names import LABEL_LIST, write_class_names
from ppcls.data.index.files import FileIndex
from ppcls.errors import UserError, raise_line_errors
from ppcls.files import new_folder

TRAIN_LIST, VAL_LIST = "train_list.txt", "val_list.txt"


def allocate_validation(counts: Sequence[int], total: int) -> list[int]:
    """Says how many images of each class validate, as near to the class's share as whole images allow.

    By largest remainders (Hamilton's method): each class gets its share rounded down, and what is left goes
    to the largest fractions, the first class of equals before the others. But each keeps one image to train.

    Args:
        counts: [C] images of each class, each > 0.
        total: How many images are to validate, 0..sum(counts) - C.
    """
    exact = [Fraction(count * total, sum(counts)) for count in counts]
    given = [min(int(each), count - 1) for each, count in zip(exact, counts, strict=True)]
    while left := total - sum(given):
        room = [label for label, count in enumerate(counts) if given[label] < count - 1]
        room.sort(key=lambda label: given[label] - exact[label])  # keeps the order of equals
        for label in room[:left]:
            given[label] += 1
    return given


def validation_size(val: Fraction | int, images: int, classes: int, key: str = "--val") -> int:
    """Returns how many of ``images`` validate.

    Args:
        val: A share of them between 0 and 1, or how many.
        images: Of all classes.
        classes: That have images.
        key: What the user calls ``val``.

    Raises:
        UserError: There would be none to validate on, or a class with none to train on.
    """
    total = val if isinstance(val, int) else round(val * images)
    most = images - classes
    if most < 1:
        raise UserError(
            f"{key}: {images} images of {classes} classes are too few; expected {classes + 1} or more, "
            "for each class keeps one to train"
        )
    if not 0 < total <= most:
        raise UserError(
            f"{key}: {total} of {images} images would validate; expected 1 to {most}, for each of {classes} "
            "classes keeps one to train"
        )
    return total


def choose_validation(
    index: FileIndex, val: Fraction | int, seed: int, key: str = "--val"
) -> NDArray[np.bool_]:
    """Says which images validate.

    Of each class those whose seed and path give the smallest hashes (BLAKE2b): so the choice does not depend
    on the order of the list, and an image that is added changes it for few others.

    Args:
        index: The images.
        val: See `how_many`.
        seed: Gives another choice.
        key: See `how_many`.

    Returns:
        [N] True where an image validates.

    Raises:
        UserError: See `how_many`; or an image is listed twice, so it could be in both lists.
    """
    _refuse_repeats(index)
    labels, counts = np.unique(index.labels, return_counts=True)
    shares = allocate_validation(counts.tolist(), validation_size(val, len(index), len(labels), key))
    keys = np.array([_key(seed, bytes(path)) for path in index.paths])
    chosen = np.zeros(len(index), np.bool_)
    for label, share in zip(labels, shares, strict=True):
        positions = np.flatnonzero(index.labels == label)
        chosen[positions[np.argsort(keys[positions], kind="stable")[:share]]] = True
    return chosen


def write_split(
    index: FileIndex,
    validates: NDArray[np.bool_],
    folder: Path,
    names: Sequence[str] = (),
    delimiter: str = " ",
) -> None:
    """Writes ``train_list.txt`` and ``val_list.txt``, and ``label_list.txt`` where the classes have names.

    The folder appears with all of them, or not at all.

    Args:
        index: The images.
        validates: [N] as `choose` gives.
        folder: A new one.
        names: Of the classes, or none.
        delimiter: Between path and label.

    Raises:
        UserError: The folder is there already, or a path can't be written as a line.
    """
    raise_line_errors(
        [
            f"{index.name(at)!r}: a name with a line break, or with a blank at an end, can't be in a list"
            for at, path in enumerate(index.paths)
            if b"\n" in bytes(path) or bytes(path) != os.fsencode(os.fsdecode(bytes(path)).strip())
        ]
    )
    between = delimiter.encode()
    try:
        with new_folder(folder, sync_each=True) as temporary:
            for name, chosen in ((TRAIN_LIST, ~validates), (VAL_LIST, validates)):
                lines = [
                    bytes(index.paths[at]) + between + b"%d\n" % index.labels[at]
                    for at in np.flatnonzero(chosen)
                ]
                (temporary / name).write_bytes(b"".join(lines))
            if names:
                write_class_names(temporary / LABEL_LIST, names)
    except FileExistsError as error:
        raise UserError(f"{error}; nothing was written, choose another folder with --out") from None


def _key(seed: int, path: bytes) -> bytes:
    return hashlib.blake2b(b"%d\0" % seed + path, digest_size=16).hexdigest().encode()


def _refuse_repeats(index: FileIndex) -> None:
    first: dict[bytes, int] = {}
    repeats = []
    for at, path in enumerate(map(bytes, index.paths)):
        if first.setdefault(path, at) != at:
            repeats.append(
                f"{index.where(at)}: {index.name(at)} is listed before, in {index.where(first[path])}; "
                "it could be in both lists"
            )
    raise_line_errors(repeats)
