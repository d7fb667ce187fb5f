"""Reads and writes files of class names (``class_id_map_file``), and checks labels.

Each line of such a file is ``id name``, as in PaddleClas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ppcls.data.index.class_folders import LABEL_LIST, compose, list_class_folders
from ppcls.errors import UserError, counted, raise_line_errors
from ppcls.files import read_regular, write_text

__all__ = [
    "IMAGENET_NAMES",
    "LABEL_LIST",
    "changed_class_names",
    "check_known_folders",
    "check_labels",
    "compare_listed_names",
    "describe_other_classes",
    "find_names_file",
    "format_label_list",
    "join_first",
    "list_class_folders",
    "read_all_class_names",
    "read_class_names",
    "write_class_names",
]
_SHOWN = 10
_IMAGENET_CLASSES = 1000
# File with the names of ImageNet's 1,000 classes.
IMAGENET_NAMES = Path(__file__).with_name("imagenet1k_label_list.txt")


def find_names_file(named: str) -> Path | None:
    """Returns the path of the file of class names that a config specifies; None if it is missing.

    PaddleClas's configs name ``ppcls/utils/imagenet1k_label_list.txt``. If that file is missing, the path of
    ppcls's own list is returned.
    """
    path = Path(named)
    if path.is_file():
        return path
    return IMAGENET_NAMES if path.name == IMAGENET_NAMES.name else None


def choose_names_file(named: str, class_num: int) -> tuple[Path | None, str]:
    """Returns the file of class names that a config specifies for a model, or None and the reason."""
    file = find_names_file(named)
    if file is None:
        return None, "no such file"
    if file.name == IMAGENET_NAMES.name and class_num != _IMAGENET_CLASSES:
        # Configs of PaddleClas contain this file even for other data sets.
        return None, f"has ImageNet's classes, but the model has {counted(class_num, 'class')}"
    return file, ""


def join_first(texts: Sequence[str]) -> str:
    """Joins the first ten texts with commas, and adds an ellipsis if there are more."""
    return ", ".join([*texts[:_SHOWN], *(["…"] if len(texts) > _SHOWN else [])])


def check_labels(labels: NDArray[np.int64], where: Callable[[int], str], class_num: int | None) -> None:
    """Checks that all labels are in the range of the model's classes.

    Args:
        labels: Label of each sample, [N] int64.
        where: Returns the location of a sample, given its position.
        class_num: Number of classes of the model; None if any label >= 0 is valid.

    Raises:
        UserError: A label is out of range. The message lists the first ten samples. If the smallest label is
            1, it says how to train with these labels.
    """
    wrong = np.flatnonzero((labels < 0) | (labels >= (2**62 if class_num is None else class_num)))
    if not len(wrong):
        return
    lines = []
    for at in wrong[:_SHOWN].tolist():
        problem = f"label {labels[at]} is not in 0..{(class_num or 0) - 1}; Arch.class_num is {class_num}"
        if class_num is None:
            problem = f"expected a label >= 0, got {labels[at]}"
        lines.append(f"{where(at)}: {problem}")
    more = [f"… and {counted(len(wrong) - _SHOWN, 'more sample')}"] if len(wrong) > _SHOWN else []
    if class_num is not None and labels.min() == 1:
        more.append(
            "the labels start at 1, but ppcls counts classes from 0: set Arch.class_num to "
            f"{labels.max() + 1}, and class 0 has no images; or subtract 1 from all labels"
        )
    raise UserError("\n".join([*lines, *more]))


def write_class_names(path: Path, names: Sequence[str]) -> None:
    """Writes a file of class names with one line ``id name`` per class."""
    write_text(path, format_label_list(names))


def format_label_list(names: Sequence[str]) -> str:
    """Returns the text of a file of class names, with one line ``id name`` per class."""
    return "".join(f"{label} {name}\n" for label, name in enumerate(names))


def read_class_names(path: Path, class_num: int) -> tuple[str, ...]:
    """Reads the name of each class.

    Args:
        path: File with lines ``id name`` in any order. Names may contain spaces. Empty lines are ignored.
        class_num: Number of classes of the model.

    Returns:
        Class names, in the order of the class ids.

    Raises:
        UserError: The file can't be read, has invalid lines, or has no name for a class.
    """
    names: dict[int, str] = {}
    problems: list[str] = []
    for number, line in enumerate(_read(path).splitlines(), start=1):
        label, _, name = line.strip().partition(" ")
        problem = _line_problem(label, name.strip(), names, class_num) if label else None
        if problem:
            problems.append(f"{path}, line {number}: {problem}")
        elif label:
            names[int(label)] = name.strip()
    raise_line_errors(problems)
    if missing := [str(label) for label in range(class_num) if label not in names]:
        raise UserError(
            f"{path}: has names for {len(names)} of {counted(class_num, 'class')} (Arch.class_num); add a "
            f"line for class {join_first(missing)}"
        )
    return tuple(names[label] for label in range(class_num))


def read_all_class_names(path: Path) -> tuple[str, ...]:
    """Reads the names of all classes in a file; see `read_class_names`."""
    return read_class_names(path, sum(1 for line in _read(path).splitlines() if line.strip()))


def compare_listed_names(file: Path, names: Sequence[str], other: Path) -> str:
    """Compares the class names beside a list or container with those of a model or of the training data.

    Args:
        file: File of the names beside the list or container.
        names: Names of the other classes, in the order of their labels.
        other: File of these names.

    Returns:
        A note about labels whose names differ, or about a file in another format; "" if there is none.

    Raises:
        UserError: Both files contain a name, but with different labels.
    """
    try:
        listed = read_all_class_names(file)
    except UserError as error:  # a file of another tool, whose classes may begin with 1
        return f"{error}; the class names are not compared"
    labels = {name: label for label, name in enumerate(names)}
    moved = [
        f"{name!r} is {label}, and {labels[name]} there"
        for label, name in enumerate(listed)
        if labels.get(name, label) != label
    ]
    if moved:
        raise UserError(
            f"{file}: the classes have other labels than in {other}: {join_first(moved)}. Labels of lists "
            "and containers are numbers: write the list or container again with the same labels (ppcls "
            f"dataset, --names {other})"
        )
    renamed = [
        f"{label} is {name!r}, and {names[label]!r} there"
        for label, name in enumerate(listed[: len(names)])
        if names[label] != name
    ]
    return f"{file}: labels have other names than in {other}: {join_first(renamed)}" if renamed else ""


def check_known_folders(root: Path, folders: Sequence[str], names: Sequence[str], hint: str = "") -> None:
    """Raises `UserError` if a class folder has none of the names of the model's classes.

    Args:
        root: Folder of the class folders.
        folders: Names of the class folders.
        names: Names of the model's classes, in the order of the labels.
        hint: Another remedy for the message, which starts with a semicolon.
    """
    if unknown := sorted(set(folders) - set(names)):
        missing = sorted(set(names) - set(folders))
        without = f"; no folder for the classes {join_first(missing)}" if missing else ""
        raise UserError(
            f"{root}: class folders that are no classes of the model: {join_first(unknown)}{without}. Labels "
            f"follow the names: rename or remove these folders{hint}. The classes are {join_first(names)}"
        )


def changed_class_names(path: Path, names: Sequence[str]) -> str:
    """Lists the labels whose names differ from those in a file that `write_class_names` wrote.

    Args:
        path: File with the old names, which may be missing.
        names: [class_num] new names, in the order of their labels; empty if unknown.

    Returns:
        An empty string if no name changed, or if the number of classes changed, which
        `describe_other_classes` reports.
    """
    if not path.is_file():
        return ""
    old_lines = _read(path).splitlines()
    new_lines = format_label_list(names).splitlines()
    if len(old_lines) != len(new_lines):
        return ""
    old_names, new_names = ([line.partition(" ")[2] for line in lines] for lines in (old_lines, new_lines))
    return join_first(
        [
            f"{label} was {old!r} and is now {new!r}"
            for label, (old, new) in enumerate(zip(old_names, new_names, strict=True))
            if old != new
        ]
    )


def describe_other_classes(path: Path, names: Sequence[str], *, folders: bool = False) -> str:
    """Describes how the classes changed since `write_class_names` wrote a file, except for mere renames.

    Args:
        path: File with the old names, which may be missing.
        names: [class_num] new names, in the order of their labels; empty if unknown.
        folders: Whether the names are those of class folders, which define the labels.

    Returns:
        An empty string if the names are unknown, or if at most some names changed: the number of classes is
        the same, and each name that both lists contain has the same label. Folders of which none has an old
        name are other classes.
    """
    if not names or not path.is_file():
        return ""
    old = [line.partition(" ")[2] for line in _read(path).splitlines()]
    labels = {name: label for label, name in enumerate(names)}
    moved = [name for label, name in enumerate(old) if labels.get(name, label) != label]
    others = folders and not set(old) & set(names)
    if len(old) == len(names) and not moved and not others:
        return ""
    added = sorted(set(names) - set(old))
    removed = sorted(set(old) - set(names))
    changes = [
        f"{verb} {join_first(changed)}"
        for verb, changed in (("added", added), ("removed", removed), ("with another label", moved))
        if changed
    ]
    return f"{counted(len(old), 'class')} before, {len(names)} now ({'; '.join(changes)})"


def _read(path: Path) -> str:
    try:
        return compose(read_regular(path).decode("utf-8-sig"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; expected lines of 'id name' (class_id_map_file)") from None
    except OSError as error:
        raise UserError(f"{path}: can't read this class_id_map_file: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: expected UTF-8 text (class_id_map_file), found other bytes: {error.reason}"
        ) from None


def _line_problem(label: str, name: str, names: dict[int, str], class_num: int) -> str | None:
    if not (label.isascii() and label.isdecimal()):
        return f"expected 'id name', where id is a whole number, got {label!r} as id"
    if not name:
        return f"expected 'id name', got no name for class {label}"
    if int(label) >= class_num:
        return f"class {int(label)} is not in 0..{class_num - 1}; Arch.class_num is {class_num}"
    if int(label) in names:
        return f"class {int(label)} already has a name, {names[int(label)]!r}"
    return None
