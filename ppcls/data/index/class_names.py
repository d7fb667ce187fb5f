"""Class names in files of ``id name`` lines (PaddleClas's ``class_id_map_file``), and the check of labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ppcls.config.class_folders import LABEL_LIST, list_class_folders
from ppcls.errors import UserError, raise_line_errors
from ppcls.files import read_regular, write_text

__all__ = [
    "IMAGENET_NAMES",
    "LABEL_LIST",
    "changed_class_names",
    "check_labels",
    "describe_other_classes",
    "find_names_file",
    "format_label_list",
    "join_first",
    "list_class_folders",
    "read_class_names",
    "write_class_names",
]
_SHOWN = 10
# Names of the 1,000 classes of ImageNet.
IMAGENET_NAMES = Path(__file__).with_name("imagenet1k_label_list.txt")


def find_names_file(named: str) -> Path | None:
    """Returns the file of class names that a config names; None if it is missing.

    PaddleClas's configs name ``ppcls/utils/imagenet1k_label_list.txt``. If it is missing, our list is used.
    """
    path = Path(named)
    if path.is_file():
        return path
    return IMAGENET_NAMES if path.name == IMAGENET_NAMES.name else None


def join_first(texts: Sequence[str]) -> str:
    """Joins texts with commas; shows the first ten."""
    return ", ".join([*texts[:_SHOWN], *(["…"] if len(texts) > _SHOWN else [])])


def check_labels(labels: NDArray[np.int64], where: Callable[[int], str], class_num: int | None) -> None:
    """Checks labels against the classes of the model.

    Args:
        labels: [N].
        where: Returns the location of a sample.
        class_num: Number of classes of the model; None if any label from 0 is valid.

    Raises:
        UserError: A label is out of range; names the first ten samples.
    """
    wrong = np.flatnonzero((labels < 0) | (labels >= (2**62 if class_num is None else class_num)))
    if not len(wrong):
        return
    lines = []
    for at in wrong[:_SHOWN].tolist():
        problem = f"label {labels[at]} is not in 0..{(class_num or 0) - 1}; Arch.class_num is {class_num}"
        if class_num is None:
            problem = f"expected a label from 0, got {labels[at]}"
        lines.append(f"{where(at)}: {problem}")
    more = [f"… and {len(wrong) - _SHOWN} more samples"] if len(wrong) > _SHOWN else []
    raise UserError("\n".join([*lines, *more]))


def write_class_names(path: Path, names: Sequence[str]) -> None:
    """Writes names as lines of ``id name``."""
    write_text(path, format_label_list(names))


def format_label_list(names: Sequence[str]) -> str:
    """Returns names as lines of ``id name``."""
    return "".join(f"{label} {name}\n" for label, name in enumerate(names))


def read_class_names(path: Path, class_num: int) -> tuple[str, ...]:
    """Reads the name of each class.

    Args:
        path: Lines of ``id name`` in any order. A name may contain spaces. Empty lines are ignored.
        class_num: Number of classes of the model.

    Returns:
        [class_num] names, by class id.

    Raises:
        UserError: The file can't be read, has wrong lines, or lacks a class.
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
            f"{path}: names {len(names)} of {class_num} classes (Arch.class_num); no line for class "
            f"{join_first(missing)}"
        )
    return tuple(names[label] for label in range(class_num))


def changed_class_names(path: Path, names: Sequence[str]) -> str:
    """Describes which labels have other names in a file that `write_class_names` wrote.

    Args:
        path: The file, which may be missing.
        names: [class_num] names by label, or empty if they are not known.

    Returns:
        An empty text if there is no change, or if the number of classes differs, which is reported elsewhere.
    """
    if not path.is_file():
        return ""
    old_lines, new_lines = _read(path).splitlines(), format_label_list(names).splitlines()
    if len(old_lines) != len(new_lines):
        return ""
    old_names, new_names = ([line.partition(" ")[2] for line in lines] for lines in (old_lines, new_lines))
    return join_first(
        [
            f"{label} was {old!r} and is {new!r}"
            for label, (old, new) in enumerate(zip(old_names, new_names, strict=True))
            if old != new
        ]
    )


def describe_other_classes(path: Path, names: Sequence[str]) -> str:
    """Describes which classes were added and removed since `write_class_names` wrote a file.

    Args:
        path: The file, which may be missing.
        names: [class_num] names by label, or empty if they are not known.

    Returns:
        An empty text if the number of classes is the same or not known.
    """
    if not names or not path.is_file():
        return ""
    old = [line.partition(" ")[2] for line in _read(path).splitlines()]
    if len(old) == len(names):
        return ""
    added, removed = sorted(set(names) - set(old)), sorted(set(old) - set(names))
    changes = [
        f"{verb} {join_first(changed)}"
        for verb, changed in (("added", added), ("removed", removed))
        if changed
    ]
    return f"{len(old)} classes before, {len(names)} now ({'; '.join(changes)})"


def _read(path: Path) -> str:
    try:
        return read_regular(path).decode("utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; expected lines of 'id name' (class_id_map_file)") from None
    except OSError as error:
        raise UserError(f"{path}: can't read this class_id_map_file: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (class_id_map_file): {error.reason}") from None


def _line_problem(label: str, name: str, names: dict[int, str], class_num: int) -> str | None:
    if not (label.isascii() and label.isdecimal()):
        return f"expected 'id name', got {label!r} as id"
    if not name:
        return f"expected 'id name', got no name for class {label}"
    if int(label) >= class_num:
        return f"class {int(label)} is not in 0..{class_num - 1}; Arch.class_num is {class_num}"
    if int(label) in names:
        return f"class {int(label)} already has a name, {names[int(label)]!r}"
    return None
