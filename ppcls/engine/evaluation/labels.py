"""Labels evaluation images by the class names of a model, not by the positions of their folders.

Decisions:
- Labels of lists and containers stay the numbers that they contain. If ``ppcls dataset`` wrote class names
  beside them, the names must agree with the labels; changing the numbers would be a second, hidden mapping.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ppcls.data.index.base import Dataset
from ppcls.data.index.class_names import (
    changed_class_names,
    check_known_folders,
    compare_listed_names,
    describe_other_classes,
    join_first,
    read_all_class_names,
    read_class_names,
)
from ppcls.data.index.folders import ImageFolderDataset
from ppcls.data.section import DataLoader, Split
from ppcls.engine.evaluation.stored_names import find_label_list
from ppcls.errors import UserError
from ppcls.files import print_error
from ppcls.storage.models import weights_path

_RENAMED = (
    "; if they are other names of the same classes, list them in the order of the labels in "
    "DataLoader.Eval.dataset.class_names"
)
_IMAGENET_ID = re.compile(r"n\d{8}")  # such as n01440764, whose name is 'tench'


def label_by_names(data: DataLoader, class_num: int, weights: Path) -> tuple[DataLoader, list[str]]:
    """Labels the class folders of ``DataLoader.Eval`` by the names that are stored with trained weights.

    Args:
        data: Data sets of the evaluation.
        class_num: Number of classes of the model.
        weights: Checkpoint folder, or file of weights.

    Returns:
        The data sets with ``class_names`` of the evaluation data; and notes about classes without a folder,
        and about labels that follow the positions of the folders because the names are unknown.

    Raises:
        UserError: A folder has none of the names, the labels of a list or container belong to other names,
            or the file of the names is invalid.
    """
    split = data.evaluated.get("Eval")
    if split is None:
        return data, []  # retrieval compares its own labels
    if split.dataset.class_root is None:
        return data, _compare_numbers(split.dataset, class_num, weights)
    folders = split.dataset.model_copy(update={"class_names": None}).folder_classes
    if not folders:
        return data, []  # reported when the images are listed
    root = split.dataset.place
    listing = find_label_list(weights)
    if listing is None:
        if split.dataset.folder_classes != folders:  # by the names of the training folder
            return data, []
        note = f"{weights} has no class names (label_list.txt), so labels follow the sorted folders"
        return data, [f"{root}: {note}"]
    names = read_class_names(listing, class_num)
    if set(folders) - set(names):
        unused = set(split.dataset.empty_folders) - set(names)
        # If there are no images, the message about the names is more useful than that about the images.
        folders = tuple(name for name in folders if name not in unused) or folders
    if not set(folders) <= set(names) and (other := _match_other_names(folders, names, split.dataset)):
        chosen, reason = other
        pairs = join_first(
            [f"{own} is {name!r}" for name, own in zip(names, chosen, strict=True) if own != name]
        )
        note = f"folders have other names than the classes in {listing}; {reason}: {pairs}"
        return _with_names(data, chosen), [f"{root}: {note}"]
    check_known_folders(Path(root), folders, names, _RENAMED if len(folders) == len(names) else "")
    known = set(folders)
    missing = [name for name in names if name not in known]
    notes = [f"{root}: no folder for the classes {join_first(missing)}"] if missing else []
    return _with_names(data, names), notes


def _compare_numbers(dataset: Dataset, class_num: int, weights: Path) -> list[str]:
    """Returns a note if the labels of a list or container belong to other names than those of the weights.

    Raises:
        UserError: A name has another label.
    """
    file = dataset.names_file
    listing = find_label_list(weights)
    if file is None or listing is None:
        return []
    note = compare_listed_names(file, read_class_names(listing, class_num), listing)
    return [note] if note else []


def _match_other_names(
    folders: Sequence[str], names: Sequence[str], dataset: Dataset
) -> tuple[tuple[str, ...], str] | None:
    """Returns the folders in the order of the labels where folders have other names than the classes.

    Only three cases are certain: the config lists the folders, their names are the numbers of the labels, or
    they are ImageNet's identifiers, whose order is that of its classes. In other cases, the positions of the
    sorted folders would be a guess, which can give each image a wrong label.

    Args:
        folders: Sorted names of the class folders.
        names: Class names that are stored with the weights, in the order of the labels.
        dataset: Data set of the folders.

    Returns:
        One folder per class, and the reason in words; None if the labels of the folders are unknown.
    """
    listed = dataset.class_names if isinstance(dataset, ImageFolderDataset) else None
    if (
        listed is not None
        and len(listed) == len(names)
        and set(folders) <= set(listed)
        and all(own == name or own not in names for own, name in zip(listed, names, strict=True))
    ):
        return listed, "labels follow class_names"
    if all(folder.isascii() and folder.isdecimal() for folder in folders):
        numbers = sorted(folders, key=int)
        if [int(folder) for folder in numbers] == [*range(len(names))]:
            return tuple(numbers), "labels are the numbers of the folders"
    if len(folders) == len(names) and all(_IMAGENET_ID.fullmatch(folder) for folder in folders):
        return tuple(folders), "labels follow the sorted folders"
    return None


def compare_listed_data(splits: Mapping[str, Split]) -> list[str]:
    """Returns a warning if the lists or containers for training and evaluation have other class names.

    Args:
        splits: Data sets of a run, by their keys in ``DataLoader``.

    Raises:
        UserError: A name has one label in training, and another in evaluation.
    """
    files = [splits[name].dataset.names_file if name in splits else None for name in ("Train", "Eval")]
    train, evaluation = files
    if train is None or evaluation is None or train == evaluation:
        return []
    try:
        names = read_all_class_names(train)
    except UserError as error:
        return [f"warning: {error}; the class names are not compared"]
    note = compare_listed_names(evaluation, names, train)
    return [f"warning: {note}"] if note else []


def compare_teachers(teachers: Mapping[str, str], names: Sequence[str]) -> list[str]:
    """Returns a warning for each teacher whose class names are not those of the training images.

    Args:
        teachers: File or folder of the weights of each teacher, by its name.
        names: Class names of the training images, in the order of their labels; empty if unknown.

    Raises:
        UserError: A teacher has another label for a class, so the student would learn wrong classes.
    """
    notes = []
    for teacher, weights in teachers.items():
        path = weights_path(weights)
        listing = find_label_list(path) if path.exists() else None
        if listing is None or not names:
            continue
        if changes := describe_other_classes(listing, names):
            raise UserError(
                f"Arch.models: {teacher} ({weights}) has other labels than the training images: {changes}; "
                "train the teacher on the same classes, or use folders with the names of its classes"
            )
        if renamed := changed_class_names(listing, names):
            notes.append(f"warning: Arch.models: {teacher} ({weights}) has other class names: {renamed}")
    return notes


def warn_of_labels(notes: list[str]) -> None:
    """Prints notes of `label_by_names` to standard error."""
    for note in notes:
        print_error(f"warning: {note}")


def _with_names(data: DataLoader, names: tuple[str, ...]) -> DataLoader:
    split = data.evaluated["Eval"]
    dataset = split.dataset.model_copy(update={"class_names": names})
    named = split.model_copy(update={"dataset": dataset})
    return data.model_copy(update={"Eval": named})
