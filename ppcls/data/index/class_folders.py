"""Image folders: the names of the classes, and the parts train and val.

An image folder has one subfolder per class. Instead, it may have a file ``metadata.csv`` or
``metadata.jsonl`` with the columns ``file_name`` and ``label``, as image folders of Hugging Face have.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from ppcls.errors import UserError, raise_line_errors
from ppcls.files import is_image_name, is_system_folder, read_regular

LABEL_LIST = "label_list.txt"
METADATA = ("metadata.csv", "metadata.jsonl")  # the first of them that has labels is used
_FILE = "file_name"
_LABEL = "label"
PARTS = {"train": ("train",), "val": ("val", "valid", "validation")}  # names of the folders of each part
# Names that subfolders have if they are parts of a data set, not classes.
_SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing", "eval", "dev"}
# Control characters, line breaks, and bytes that are not UTF-8: label_list.txt has one UTF-8 line per class.
_UNWRITABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


@dataclass(frozen=True)
class Metadata:
    """The lines of a file with the names and the labels of images.

    Attributes:
        file: Path of the file.
        paths: Path of each image, relative to the folder of the file.
        labels: Class name of each image.
        lines: Line number of each image, from 1.
    """

    file: Path
    paths: tuple[str, ...]
    labels: tuple[str, ...]
    lines: tuple[int, ...]

    @property
    def classes(self) -> tuple[str, ...]:
        """Different class names, sorted. Whole numbers are sorted by their value."""
        names = set(self.labels)
        numeric = all(name.isascii() and name.isdecimal() for name in names)
        return tuple(sorted(names, key=lambda name: (int(name), name) if numeric else (0, name)))


def read_metadata(root: Path) -> Metadata | None:
    """Returns the names and labels of images in ``metadata.csv`` or ``metadata.jsonl``.

    Returns None if ``root`` has no such file, or none with labels: its subfolders are then the classes.

    Raises:
        UserError: A file is damaged, has no names of files, or names a file outside of ``root``.
    """
    for name in METADATA:
        file = root / name
        try:
            status = file.stat()
        except OSError:
            continue
        if (
            status.st_size
            and (content := _read_metadata(file, status.st_mtime_ns, status.st_size)) is not None
        ):
            return content
    return None


@lru_cache(maxsize=8)
def _read_metadata(file: Path, _changed: int, _size: int) -> Metadata | None:
    """Returns the content of a file, which is read again if its time or size changed; None without labels."""
    try:
        text = read_regular(file).decode("utf-8-sig")
        rows = list(_csv_rows(text) if file.suffix == ".csv" else _json_rows(text))
    except OSError as error:
        raise UserError(f"{file}: can't read this file: {error.strerror}") from None
    except (csv.Error, ValueError, RecursionError) as error:
        kind = "a table with commas and a header" if file.suffix == ".csv" else "one JSON object per line"
        raise UserError(f"{file}: expected UTF-8 text with {kind}: {error}") from None
    columns = list(dict.fromkeys(column for _, row in rows for column in row))
    if _LABEL not in columns:
        return None
    if _FILE not in columns:
        raise UserError(
            f"{file}: no column {_FILE!r}; expected the columns {_FILE!r} and {_LABEL!r}, found "
            f"{', '.join(map(repr, columns))}; rename the column with the paths of the images"
        )
    problems = []
    for line, row in rows:
        if problem := _row_problem(row.get(_FILE), row.get(_LABEL)):
            problems.append(f"{file}, line {line}: {problem}")
    raise_line_errors(problems)
    return Metadata(
        file,
        tuple(os.path.normpath(row[_FILE]) for _, row in rows),
        tuple(compose(str(row[_LABEL])) for _, row in rows),
        tuple(line for line, _ in rows),
    )


def _csv_rows(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the line number and the cells of each row, by the names of the columns."""
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    for row in reader:
        yield reader.line_num, {column: cell for column, cell in row.items() if column is not None}


def _json_rows(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the line number and the values of each line that is not empty."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError(f"line {number}: not an object")
            yield number, row


def _row_problem(path: object, label: object) -> str:
    """Returns what is wrong with a row; "" if nothing is."""
    if not isinstance(path, str) or not path or _UNWRITABLE.search(path):
        return f"{_FILE}: expected the path of an image, without control characters, got {path!r}"
    if os.path.isabs(path) or os.path.normpath(path).split("/")[0] == "..":  # noqa: PTH117
        return f"{_FILE}: expected a path in the folder of this file, got {path!r}"
    if isinstance(label, bool) or not isinstance(label, (str, int)) or not str(label):
        return f"{_LABEL}: expected one class name or number, got {label!r}"
    if _UNWRITABLE.search(str(label)) or str(label) != str(label).strip():
        return (
            f"{_LABEL}: expected a name without control characters, and without spaces at the start or end, "
            f"got {label!r}"
        )
    return ""


def list_class_folders(root: Path) -> tuple[str, ...]:
    """Returns the sorted names of the classes in ``root``. The index of a name is its label.

    Raises:
        UserError: See `find_class_folders` and `read_metadata`.
    """
    metadata = read_metadata(root)
    return tuple(find_class_folders(root)) if metadata is None else metadata.classes


def find_class_folders(root: Path) -> dict[str, list[str]]:
    """Returns the names of the folders of each class in ``root``, keyed by the sorted names of the classes.

    The name of a class is the name of its folder in Unicode's composed form. Folders whose names differ only
    in their form, as after a copy from a Mac, belong to one class. Folders of systems, such as
    ``lost+found``, are ignored.

    Raises:
        UserError: A name contains characters that ``label_list.txt`` does not support.
    """
    names = sorted(
        entry.name for entry in os.scandir(root) if not is_system_folder(entry.name) and entry.is_dir()
    )
    raise_line_errors(
        [
            f"{root}: class folder {name!a}: expected a name in UTF-8 without control characters such as "
            "line breaks, and without spaces at the start or end; rename the folder"
            for name in names
            if _UNWRITABLE.search(name) or name != name.strip()
        ]
    )
    folders: dict[str, list[str]] = {}
    for name in sorted(names, key=compose):
        folders.setdefault(compose(name), []).append(name)
    return folders


def list_empty_folders(root: Path, extensions: Sequence[str]) -> list[str]:
    """Returns the sorted names of the class folders without images; no names if a file has the labels.

    Args:
        root: Folder that contains the class folders.
        extensions: File extensions of the images, in lower case.
    """
    if not root.is_dir() or read_metadata(root) is not None:
        return []
    return [
        name
        for name, folders in find_class_folders(root).items()
        if not any(_has_image(root / folder, tuple(extensions)) for folder in folders)
    ]


def _has_image(folder: Path, extensions: tuple[str, ...]) -> bool:
    return any(is_image_name(name, extensions) for _, _, names in os.walk(folder) for name in names)


def check_are_classes(root: Path, names: Sequence[str]) -> None:
    """Checks that the subfolders of a folder are classes, not the parts of a data set.

    Args:
        root: Folder.
        names: Names of its subfolders.

    Raises:
        UserError: All subfolders have names of parts, such as ``train`` and ``test``.
    """
    if len(names) < 2 or not all(name.lower() in _SPLITS for name in names):
        return
    parts = ", ".join(names)
    ordered = sorted(names, key=lambda name: name.lower() not in PARTS["train"])
    with_classes = [name for name in ordered if (root / name).is_dir() and list_class_folders(root / name)]
    if with_classes:
        raise UserError(
            f"{root}: {parts} are parts of a data set, not classes; name one of them, such as "
            f"{root / with_classes[0]}"
        )
    raise UserError(
        f"{root}: {parts} are parts of a data set, not classes, and have no subfolders of classes; put the "
        f"images of each part into one subfolder per class, such as {root / ordered[0] / 'cats'}, or write "
        f"{METADATA[0]} with the columns {_FILE} and {_LABEL} into each part; `ppcls dataset labels TABLE` "
        "writes it from another table"
    )


def compose(name: str) -> str:
    """Returns the name of a class in Unicode's composed form, NFC."""
    return unicodedata.normalize("NFC", name)


def find_class_root(root: Path, part: Literal["train", "val"] | None) -> tuple[Path, bool]:
    """Finds the class folders of a part of an image folder.

    If ``root`` has subfolders ``train`` and ``val`` with class folders, these are the parts. ``valid`` and
    ``validation`` are other names of ``val``. Otherwise the images are split at random.

    Args:
        root: Image folder.
        part: Part of the images; None for all images.

    Returns:
        The folder that contains the class folders, and whether all its images are in the part.

    Raises:
        UserError: Only one of the subfolders exists, or their names contain upper-case letters.
    """
    if part is None or not root.is_dir():
        return root, part is None
    parts = {
        name: folder
        for name, folders in PARTS.items()
        for folder in reversed(folders)
        if (root / folder).is_dir() and list_class_folders(root / folder)
    }
    if not parts and (
        near := [folder for folder in list_class_folders(root) if _is_misnamed_part(root / folder)]
    ):
        raise UserError(
            f"{root}: has class folders in {' and '.join(near)}; rename these folders to train and val, in "
            f"lower case, or set image_root to {root / near[0]} to split its images at random"
        )
    if len(parts) == 1:
        missing = next(name for name in PARTS if name not in parts)
        (present,) = parts.values()
        raise UserError(
            f"{root}: contains a folder {present} with class folders, but no folder {missing}; rename the "
            f"folder with the remaining images to {missing}, or set image_root to {root / present} to split "
            "its images at random"
        )
    return (root / parts[part], True) if parts else (root, False)


def _is_misnamed_part(folder: Path) -> bool:
    """Returns whether a folder with a name such as ``Train`` contains class folders, so it is not a class."""
    is_part = any(folder.name.lower() in names for names in PARTS.values())
    return is_part and len(list_class_folders(folder)) > 0
