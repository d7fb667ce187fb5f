"""Hints for a path that is not a folder with one subfolder of images per class: what to give instead."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from ppcls.commands import command_line
from ppcls.data.images.paths import explain_records
from ppcls.data.index.class_folders import (
    METADATA,
    find_class_root,
    list_class_folders,
    list_empty_folders,
)
from ppcls.errors import UserError, counted
from ppcls.files import IMAGE_EXTENSIONS, is_system_folder, one_line

_CONFIGS = Path(__file__).parents[1] / "configs"
_ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar")
_LISTS = (".txt", ".csv", ".tsv", ".json", ".jsonl", ".xlsx")


def explain_missing_folder(root: Path) -> str:
    """Returns the end of an error message about a missing folder: what its name is, or a similar name."""
    from ppcls.zoo import ZOO  # reads a large table, which only an error needs

    suffix = root.suffix.lower()
    configs = [file.stem for file in _CONFIGS.glob("*.yaml")]
    if suffix in (".yaml", ".yml") or root.name in configs:
        return f"; a config needs -c: `{command_line('train', '-c', root)}`"
    # If two names differ only in case, the later one has published weights.
    models = [name for name in ZOO if name.lower() == root.name.lower()]
    if models:
        return (
            f"; {models[-1]} is an architecture: `{command_line('train', 'FOLDER', '--model', models[-1])}`"
        )
    if records := explain_records(root.name):
        return f"; {records}"
    if suffix in _ARCHIVES:
        return "; unpack this archive first"
    if suffix in _LISTS:
        return f"; {explain_table()}"
    if suffix in IMAGE_EXTENSIONS:
        return "; this is one image: name the folder that contains the folders of the classes"
    if similar := _similar_folder(root):
        return f"; did you mean {similar}?"
    if re.match(r"[A-Za-z]:\\", root.name):
        return "; this is a path of Windows: in WSL, C:\\pictures is /mnt/c/pictures"
    if suffix == ".py":
        return "; configs are YAML files, and need -c: configs in Python are not supported"
    if root.parent == Path():
        return f"; ppcls downloads no data sets; `{command_line('dataset', 'digits')}` creates an example"
    return ""


def describe_missing_folder(root: str, key: str, *, of_classes: bool) -> str:
    """Returns the error message about a folder of images that is missing.

    Args:
        root: Value of the key.
        key: Key of the config that names the folder.
        of_classes: Whether a folder with one subfolder per class is expected.
    """
    expected = "; expected a folder with one subfolder of images per class" if of_classes else ""
    return f"{one_line(root)}: no such folder ({key}){expected}{explain_missing_folder(Path(root))}"


def _similar_folder(path: Path) -> Path | None:
    try:
        names = [entry.name for entry in os.scandir(path.parent) if entry.is_dir()]
    except OSError:
        return None
    folded = {name.lower(): name for name in names if not is_system_folder(name)}
    near = difflib.get_close_matches(path.name.lower(), folded, n=1, cutoff=0.75)
    return path.parent / folded[near[0]] if near else None


def list_filled_classes(folder: Path) -> tuple[str, ...]:
    """Returns the names of the class folders with images, in ``train`` or ``folder`` itself.

    The tuple is empty if there are none, or if they can't be listed.
    """
    try:
        root = find_class_root(folder, "train")[0]
        empty = set(list_empty_folders(root, IMAGE_EXTENSIONS))
        return tuple(name for name in list_class_folders(root) if name not in empty)
    except (OSError, UserError):
        return ()


def explain_too_few_classes(folder: Path) -> str:
    """Returns the end of an error message about a folder with fewer than two classes: the right folder.

    The folder can be one level too high, one level too deep, or contain the images themselves.
    """
    children = [folder / name for name in list_class_folders(folder)]
    if table := _suggest_table(folder, children):
        return table
    if higher := [child for child in children if len(_class_folders(child)) > 1]:
        return f"; did you mean {higher[0]}?"
    images = _count_images(folder)
    if not images and len(children) == 1 and (below := _count_images(children[0])):
        images_below = counted(below, "image")
        return f"; {children[0]} contains {images_below} itself: put them into one subfolder per class"
    if not images:
        return _suggest_dataset(folder)
    has_siblings = len(_class_folders(folder.parent)) > 1 and folder.parent != Path(folder.parent.anchor)
    if has_siblings and not children and any(map(_count_images, _siblings(folder))):
        return f"; it contains {counted(images, 'image')} of one class; did you mean {folder.parent}?"
    return f"; it contains {counted(images, 'image')} itself: put them into one subfolder per class"


def _suggest_dataset(folder: Path) -> str:
    """Returns how to read the first file of many images in a folder; "" without such a file."""
    for name in sorted(entry.name for entry in folder.iterdir()):
        if records := explain_records(name):
            return f"; for {name}, {records}"
    return ""


def explain_table() -> str:
    """Returns what to do with a table of images and classes."""
    return (
        "`ppcls dataset labels TABLE --images FOLDER` lets `ppcls train FOLDER` use a table with titles; a "
        "list of 'path label' needs a config: docs/own-data.md#folders-and-lists"
    )


def _suggest_table(folder: Path, children: Sequence[Path]) -> str:
    """Returns the command that reads classes from a table, for images without class folders."""
    images = next((place for place in (folder, *children) if _count_images(place)), None)
    tables = [*_find_tables(folder), *_find_tables(folder.parent)]
    if images is None or not tables or len(children) > 1:
        return ""
    table = tables[0]
    command = command_line("dataset", "labels", table, "--images", images)
    return f"; if {table} has the classes, `{command}` lets `{command_line('train', images)}` use them"


def _find_tables(folder: Path) -> list[Path]:
    """Returns the files in a folder that may be tables with classes, sorted by name."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return []
    return [
        folder / entry.name
        for entry in entries
        if entry.name.lower().endswith((".csv", ".tsv"))
        and entry.name not in METADATA
        and not entry.name.startswith(".")
        and entry.is_file()
    ]


def _class_folders(folder: Path) -> tuple[str, ...]:
    try:
        return list_class_folders(folder)
    except (OSError, UserError):
        return ()


def _siblings(folder: Path) -> list[Path]:
    return [folder.parent / name for name in _class_folders(folder.parent) if name != folder.name]


def _count_images(folder: Path) -> int:
    try:
        return sum(entry.name.lower().endswith(IMAGE_EXTENSIONS) for entry in os.scandir(folder))
    except OSError:
        return 0
