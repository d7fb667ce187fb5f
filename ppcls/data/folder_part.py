"""The images of class folders that train, or those that validate: ``part`` of an ``ImageFolderDataset``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.config.class_folders import class_root, folder_classes
from ppcls.config.dataset import Dataset, ImageFolderDataset
from ppcls.data.file_index import FileIndex, read_folder
from ppcls.data.split import choose
from ppcls.errors import UserError

_SHOWN = 10


def read_part(dataset: ImageFolderDataset, class_num: int | None) -> FileIndex:
    """Finds the images of a dataset's part; opens none.

    A part of images that are shared out is a function of their paths and the seed: the same on all processes,
    whatever the order of the files.

    Raises:
        UserError: What `ppcls.data.file_index.read_folder` raises; a class has no images to train on, or too
            few images are left for a part.
    """
    root, whole = class_root(Path(dataset.image_root), dataset.part)
    index = read_folder(root, dataset.extensions, class_num, follow_links=dataset.follow_links)
    if dataset.part is not None and (dataset.part == "train" or not whole):
        _refuse_empty(index, dataset.extensions)
    if whole:
        return index
    share = Fraction(str(dataset.val_share))
    chosen = choose(index, share, dataset.split_seed, "DataLoader.Train.dataset.val_share")
    if dataset.part == "train":
        chosen = ~chosen
    return replace(index, paths=index.paths[chosen], labels=index.labels[chosen])


def describe_folders(
    dataset: Dataset, classes: Sequence[str], train: int, val: NDArray[Any] | None
) -> list[str]:
    """Returns lines for the log: which classes there are, and how their images are used; none without parts.

    Args:
        dataset: That is trained on.
        classes: Their names.
        train: Images that train.
        val: Labels of the images that validate; None for no evaluation.
    """
    if not isinstance(dataset, ImageFolderDataset) or dataset.part is None:
        return []
    _, whole = class_root(Path(dataset.image_root), dataset.part)
    shown = ", ".join([*classes[:_SHOWN], *(["…"] if len(classes) > _SHOWN else [])])
    how = "its folders train and val" if whole else f"val_share {dataset.val_share:g}"
    rest = "" if val is None else f", {len(val)} to evaluate on ({how})"
    lines = [f"{dataset.image_root}: {len(classes)} classes ({shown}); {train} images to train on{rest}"]
    there = range(len(classes)) if val is None else set(np.unique(val).tolist())
    unseen = [name for label, name in enumerate(classes) if label not in there]
    if unseen:
        more = ["…"] if len(unseen) > _SHOWN else []
        lines.append(f"no image to evaluate on: {', '.join([*unseen[:_SHOWN], *more])}")
    return lines


def _refuse_empty(index: FileIndex, extensions: tuple[str, ...]) -> None:
    having = set(index.labels.tolist())
    empty = [name for label, name in enumerate(folder_classes(index.root)) if label not in having]
    if empty:
        raise UserError(
            f"{index.root}: no images in the class folder{'s' if empty[1:] else ''} {', '.join(empty[:10])}; "
            f"expected files ending in {', '.join(extensions)}, or no such folder"
        )
