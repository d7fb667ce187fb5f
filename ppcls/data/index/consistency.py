"""Warns of labelled images that can't teach or test what the user expects, before time is spent on them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.data.index.arrays.path_hashes import find_common, find_repeated, full_path
from ppcls.data.index.class_names import join_first
from ppcls.data.index.files import FileIndex
from ppcls.data.index.protocol import Index
from ppcls.errors import counted

_TRAIN = "Train"
_SHOWN = 3  # number of images that a warning lists


def describe_labels(
    indexes: Mapping[str, Index], names: Sequence[str], class_num: int | None, *, by_class: bool
) -> list[str]:
    """Returns warnings about classes without images, contradictory labels, and images in two data sets.

    Args:
        indexes: Data sets by their keys in ``DataLoader``: ``Train`` and those of the evaluation. Some may be
            missing.
        names: Class names in order of label; empty if unknown.
        class_num: Number of classes of the labels; None if they are not those of the lists or folders.
        by_class: Whether the labels for evaluation are classes. Otherwise, they are identities.
    """
    train = indexes.get(_TRAIN)
    evaluated = {key: index for key, index in indexes.items() if key != _TRAIN}
    notes = [line for index in indexes.values() for line in _describe_conflicts(index)]
    if class_num is not None:
        if train is not None:
            notes += _describe_training_classes(train, class_num, names)
        if by_class:
            for index in evaluated.values():
                notes += _describe_validation_classes(index, train, class_num, names)
    if train is not None:
        for key, index in evaluated.items():
            notes += _describe_shared_images(train, index, key)
    return [f"warning: {note}" for note in notes]


def _describe_training_classes(index: Index, class_num: int, names: Sequence[str]) -> list[str]:
    present = _present(index.labels, class_num)
    notes = []
    if missing := _name(~present, names):
        notes.append(f"{index.source}: classes without training images: {join_first(missing)}")
    if present.sum() == 1 and index.labels.ndim == 1:
        (only,) = _name(present, names)
        notes.append(
            f"{index.source}: all training images have the class {only}, so there is nothing to learn"
        )
    return notes


def _describe_validation_classes(
    index: Index, train: Index | None, class_num: int, names: Sequence[str]
) -> list[str]:
    present = _present(index.labels, class_num)
    trained = np.ones(class_num, bool) if train is None else _present(train.labels, class_num)
    notes = []
    if missing := _name(trained & ~present, names):
        notes.append(f"{index.source}: classes without validation images: {join_first(missing)}")
    if untrained := _name(present & ~trained, names):
        notes.append(
            f"{index.source}: has images of classes without training images: {join_first(untrained)}; the "
            "model can't learn these classes"
        )
    return notes


def _present(labels: NDArray[Any], class_num: int) -> NDArray[np.bool_]:
    """Returns whether each class has an image, [class_num]."""
    if labels.ndim == 2:
        return np.asarray(labels.any(axis=0))
    present = np.zeros(class_num, bool)
    present[labels] = True
    return present


def _name(chosen: NDArray[np.bool_], names: Sequence[str]) -> list[str]:
    return [names[label] if label < len(names) else str(label) for label in np.flatnonzero(chosen).tolist()]


def _describe_conflicts(index: Index) -> list[str]:
    """Returns a warning about images that a list contains with different labels."""
    if not isinstance(index, FileIndex):
        return []
    first: dict[bytes, int] = {}
    conflicts = []
    root = b"/"  # only for normpath: ./a.jpg and a.jpg are one image
    for position in find_repeated(index.paths, root).tolist():
        path = full_path(root, bytes(index.paths[position]))
        before = first.setdefault(path, position)
        if not np.array_equal(index.labels[before], index.labels[position]):
            shown = os.fsdecode(index.paths[position])
            conflicts.append(f"{shown} ({index.where(position)}; {index.where(before)})")
    if not conflicts:
        return []
    number = _count(len(conflicts))
    return [f"{index.source}: {number} listed again with another label: {_list_some(conflicts)}"]


def _describe_shared_images(train: Index, evaluated: Index, key: str) -> list[str]:
    """Returns a warning about images, recognized by their paths, that training and evaluation share."""
    if not (isinstance(train, FileIndex) and isinstance(evaluated, FileIndex)):
        return []
    shared = find_common(_place(train), _place(evaluated))
    if not shared:
        return []
    shown = [os.fsdecode(path) for path in shared]
    return [
        f"{_count(len(shared))} both in Train ({train.source}) and in {key} ({evaluated.source}), so the "
        f"evaluation overrates the model: {_list_some(shown)}"
    ]


def _place(index: FileIndex) -> tuple[bytes, NDArray[np.bytes_]]:
    return os.path.realpath(os.fsencode(index.root)), index.paths


def _count(images: int) -> str:
    return counted(images, "image is", "images are")


def _list_some(texts: Sequence[str]) -> str:
    return ", ".join([*texts[:_SHOWN], *(["…"] if len(texts) > _SHOWN else [])])
