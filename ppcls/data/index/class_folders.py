"""Image folders with one subfolder per class: the names of the classes, and the parts train and val."""

from __future__ import annotations

import os
import re
import unicodedata
from pathlib import Path
from typing import Literal

from ppcls.errors import UserError, raise_line_errors
from ppcls.files import is_system_folder

LABEL_LIST = "label_list.txt"
PARTS = {"train": ("train",), "val": ("val", "valid", "validation")}  # names of the folders of each part
# Control characters, line breaks, and bytes that are not UTF-8: label_list.txt has one UTF-8 line per class.
_UNWRITABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def list_class_folders(root: Path) -> tuple[str, ...]:
    """Returns the sorted names of the classes in ``root``. The index of a name is its label.

    Raises:
        UserError: See `find_class_folders`.
    """
    return tuple(find_class_folders(root))


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
