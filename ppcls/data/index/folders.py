"""Reads class folders, splits them into training and validation images, and describes them in log lines."""

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
from ppcls.data.index.class_names import join_first
from ppcls.data.index.files import FileIndex, read_folder
from ppcls.data.index.split import choose_validation
from ppcls.errors import UserError
from ppcls.files import is_image_name

_UNBALANCED = 10  # ratio of the largest to the smallest class
_ENDS = 5  # number of the largest classes, and of the smallest classes, that are listed


def read_part(dataset: ImageFolderDataset, class_num: int | None) -> FileIndex:
    """Finds the training or validation images of a dataset (key ``part``) without opening them.

    Without folders ``train`` and ``val``, the split depends only on paths and seed, so it is equal in all
    processes.

    Raises:
        UserError: See `read_folder`; or a class has no images to train on, or there are too few images for
            the split.
    """
    root, has_part_folders = find_class_root(Path(dataset.image_root), dataset.part)
    index = read_folder(root, dataset.extensions, class_num, follow_links=dataset.follow_links)
    if dataset.part is not None and (dataset.part == "train" or not has_part_folders):
        _check_no_empty_class(index, dataset.extensions)
    if has_part_folders:
        return index
    share = Fraction(str(dataset.val_share))
    chosen = choose_validation(index, share, dataset.split_seed, "DataLoader.Train.dataset.val_share")
    if dataset.part == "train":
        chosen = ~chosen
    return replace(index, paths=index.paths[chosen], labels=index.labels[chosen])


def describe_folders(
    dataset: Dataset, classes: Sequence[str], train: NDArray[Any], val: NDArray[Any] | None
) -> list[str]:
    """Returns log lines about the classes and the numbers of training and validation images.

    If the key ``part`` is not set, only classes without training images are reported.

    Args:
        dataset: Config of the training set.
        classes: Class names, in the order of their labels.
        train: Labels of the training images.
        val: Labels of the validation images; None if the run has no evaluation.
    """
    if not isinstance(dataset, ImageFolderDataset):
        return []
    empty = _classes_without_images(classes, train)
    if dataset.part is None:
        return [f"{dataset.image_root}: classes without training images: {empty}"] if empty else []
    folder, has_part_folders = find_class_root(Path(dataset.image_root), "val")
    source = (
        f"its folders train and {folder.name}" if has_part_folders else f"val_share {dataset.val_share:g}"
    )
    validation = "" if val is None else f", {len(val)} validation images ({source})"
    counts = f"{len(classes)} classes ({join_first(classes)}); {len(train)} training images{validation}"
    lines = [f"{dataset.image_root}: {counts}"]
    if val is not None and (empty := _classes_without_images(classes, val)):
        lines.append(f"classes without validation images: {empty}")
    return lines


def describe_unclassified_images(dataset: Dataset) -> list[str]:
    """Returns log lines about images outside the class folders. They have no class and are ignored."""
    if not isinstance(dataset, ImageFolderDataset):
        return []
    root = Path(dataset.image_root)
    lines = []
    for folder in dict.fromkeys([root, find_class_root(root, dataset.part)[0]]):
        images = sorted(
            entry.name
            for entry in os.scandir(folder)
            if is_image_name(entry.name, dataset.extensions) and entry.is_file()
        )
        if images:
            count = "1 image" if len(images) == 1 else f"{len(images)} images"
            more = ", …" if images[1:] else ""
            lines.append(f"{folder}: ignored {count} outside the class folders: {images[0]}{more}")
    return lines


def describe_imbalance(labels: NDArray[Any], classes: Sequence[str]) -> str:
    """Returns a warning with the numbers of training images per class if they are very unbalanced, else "".

    Args:
        labels: [N] class of each training image. Labels of another shape cause no warning.
        classes: Class names, in the order of their labels; empty if unknown.
    """
    if labels.ndim != 1 or not len(labels) or not np.issubdtype(labels.dtype, np.integer):
        return ""
    labelled, counts = np.unique(labels, return_counts=True)
    if len(labelled) < 2 or counts.max() < _UNBALANCED * counts.min():
        return ""
    order = np.argsort(-counts, kind="stable")
    names = [
        classes[label] if label < len(classes) else f"class {label}" for label in labelled[order].tolist()
    ]
    amounts = [f"{name} {count:,}" for name, count in zip(names, counts[order].tolist(), strict=True)]
    shown = amounts if len(amounts) <= 2 * _ENDS else [*amounts[:_ENDS], "…", *amounts[-_ENDS:]]
    return (
        f"warning: the classes are unbalanced, with these numbers of training images: {', '.join(shown)}. A "
        "model that always predicts the largest class would have a high top1. Check the recall per class, "
        "add images, or set DataLoader.Train.sampler.name=ClassBalancedSampler"
    )


def _classes_without_images(classes: Sequence[str], labels: NDArray[Any]) -> str:
    present = set(np.unique(labels).tolist())
    return join_first([name for label, name in enumerate(classes) if label not in present])


def _check_no_empty_class(index: FileIndex, extensions: tuple[str, ...]) -> None:
    if empty := _classes_without_images(list_class_folders(index.root), index.labels):
        raise UserError(
            f"{index.root}: no images in class folder {empty}; expected files that end in "
            f"{', '.join(extensions)}; add images or remove the folder"
        )
