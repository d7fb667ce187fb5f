"""A data set that a tool makes: made once, appears whole, and never replaces anybody's folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ppcls.errors import UserError
from ppcls.files import new_folder

_MARK = "made.json"


def is_made(folder: Path, recipe: dict[str, Any]) -> bool:
    """Returns whether ``folder`` holds the data set made after ``recipe``; False where it is missing.

    Raises:
        UserError: There is something else at ``folder``.
    """
    if not folder.exists():
        return False
    mark = folder / _MARK
    if not mark.is_file():
        raise UserError(f"{folder} exists and was not made by this tool; choose another folder with --out")
    if mark.read_text(encoding="utf-8") != _text(recipe):
        raise UserError(
            f"{folder} holds a data set made otherwise ({mark} says how); remove it or choose another --out"
        )
    return True


@contextmanager
def make_dataset(folder: Path, recipe: dict[str, Any]) -> Iterator[Path]:
    """Lends a temporary folder to fill; it becomes ``folder`` when the block ends well.

    Raises:
        UserError: ``folder`` exists.
    """
    try:
        with new_folder(folder) as temporary:
            yield temporary
            (temporary / _MARK).write_text(_text(recipe), encoding="utf-8")
    except FileExistsError as error:
        raise UserError(f"{error}; nothing was written") from error


def write_lists(folder: Path, paths: Sequence[str], labels: Sequence[int], names: Sequence[str]) -> None:
    """Writes ``train_list.txt``, ``val_list.txt`` (``path label``) and ``label_list.txt`` (``id name``).

    Of each class the second image of every five is for validation: a fixed, stratified 80/20 split.

    Args:
        folder: Where to write.
        paths: Of the images, relative to ``folder``.
        labels: Class of each, 0-based.
        names: Of the classes.
    """
    lists: dict[str, list[str]] = {"train_list.txt": [], "val_list.txt": []}
    seen = [0] * len(names)
    for path, label in zip(paths, labels, strict=True):
        split = "val_list.txt" if seen[label] % 5 == 1 else "train_list.txt"
        lists[split].append(f"{path} {label}")
        seen[label] += 1
    lists["label_list.txt"] = [f"{label} {name}" for label, name in enumerate(names)]
    for name, lines in lists.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _text(recipe: dict[str, Any]) -> str:
    return json.dumps(recipe, sort_keys=True) + "\n"
