"""The images of class folders that train, or those that validate: ``part`` of an ``ImageFolderDataset``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.config.class_folders import find_class_root, list_class_folders
from ppcls.config.sections.dataset import Dataset, ImageFolderDataset
from ppcls.data.index.files import FileIndex, read_folder
from ppcls.data.index.split import choose_validation
from ppcls.errors import UserError

_SHOWN = 10


def read_part(dataset: ImageFolderDataset, class_num: int | None) -> FileIndex:
    """Finds the images of a dataset's part; opens none.

    A part of images that are shared out is a function of their paths and the seed: the same on all processes,
    whatever the order of the files.

    Raises:
        UserError: What `ppcls.data.index.files.read_folder` raises; a class has no images to train on, or too
            few images are left for a part.
    """
    root, whole = find_class_root(Path(dataset.image_root), dataset.part)
    index = read_folder(root, dataset.extensions, class_num, follow_links=dataset.follow_links)
    if dataset.part is not None and (dataset.part == "train" or not whole):
        _refuse_empty(index, dataset.extensions)
    if whole:
        return index
    share = Fraction(str(dataset.val_share))
    chosen = choose_validation(index, share, dataset.split_seed, "DataLoader.Train.dataset.val_share")
    if dataset.part == "train":
        chosen = ~chosen
    return replace(index, paths=index.paths[chosen], labels=index.labels[chosen])


def describe_folders(
    dataset: Dataset, classes: Sequence[str], train: NDArray[Any], val: NDArray[Any] | None
) -> list[str]:
    """Returns lines for the log: which classes there are, and how their images are used.

    Without parts, classes without an image to train on alone.

    Args:
        dataset: That is trained on.
        classes: Their names.
        train: Labels of the images that train.
        val: Labels of the images that validate; None for no evaluation.
    """
    if not isinstance(dataset, ImageFolderDataset):
        return []
    if dataset.part is None:
        unseen = _unseen(classes, train)
        return [f"{dataset.image_root}: no image to train on: {unseen}; they stay classes"] if unseen else []
    _, whole = find_class_root(Path(dataset.image_root), dataset.part)
    shown = ", ".join([*classes[:_SHOWN], *(["…"] if len(classes) > _SHOWN else [])])
    how = "its folders train and val" if whole else f"val_share {dataset.val_share:g}"
    rest = "" if val is None else f", {len(val)} to evaluate on ({how})"
    lines = [f"{dataset.image_root}: {len(classes)} classes ({shown}); {len(train)} images to train on{rest}"]
    if val is not None and (unseen := _unseen(classes, val)):
        lines.append(f"no image to evaluate on: {unseen}")
    return lines


def describe_unclassified_images(dataset: Dataset) -> list[str]:
    """Returns lines for the log: how many images lie beside class folders, where they are of no class."""
    if not isinstance(dataset, ImageFolderDataset):
        return []
    root = Path(dataset.image_root)
    folders = dict.fromkeys([root, find_class_root(root, dataset.part)[0]])
    return [line for folder in folders if (line := _describe_loose(folder, dataset.extensions))]


def _describe_loose(folder: Path, extensions: tuple[str, ...]) -> str:
    loose = sorted(each.name for each in os.scandir(folder) if each.name.lower().endswith(extensions))
    loose = [each for each in loose if (folder / each).is_file()]
    if not loose:
        return ""
    found = f"1 image lies beside the class folders and is of no class: {loose[0]}"
    if loose[1:]:
        found = f"{len(loose)} images lie beside the class folders and are of no class: {loose[0]}, …"
    return f"{folder}: {found}"


def _unseen(classes: Sequence[str], labels: NDArray[Any]) -> str:
    """Returns the names of classes that no label is of."""
    there = set(np.unique(labels).tolist())
    unseen = [name for label, name in enumerate(classes) if label not in there]
    return ", ".join([*unseen[:_SHOWN], *(["…"] if len(unseen) > _SHOWN else [])])


def _refuse_empty(index: FileIndex, extensions: tuple[str, ...]) -> None:
    having = set(index.labels.tolist())
    empty = [name for label, name in enumerate(list_class_folders(index.root)) if label not in having]
    if empty:
        raise UserError(
            f"{index.root}: no images in the class folder{'s' if empty[1:] else ''} {', '.join(empty[:10])}; "
            f"expected files ending in {', '.join(extensions)}, or no such folder"
        )
