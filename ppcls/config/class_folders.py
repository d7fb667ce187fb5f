"""Folders of pictures, one sub-folder a class, and what a config leaves to them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from ppcls.config.base.fields import show
from ppcls.errors import UserError

LABEL_LIST = "label_list.txt"
_PARTS = ("train", "val")
# What DataLoader.Eval takes over from DataLoader.Train where both are parts of one folder.
_SHARED = ("image_root", "val_share", "split_seed", "extensions", "follow_links")
_FOLDER = "ImageFolderDataset"


def list_class_folders(root: Path) -> tuple[str, ...]:
    """Returns the names of the class folders in ``root``; a class's label is its place among them."""
    return tuple(
        sorted(each.name for each in os.scandir(root) if each.is_dir() and not each.name.startswith("."))
    )


def find_class_root(root: Path, part: Literal["train", "val"] | None) -> tuple[Path, bool]:
    """Returns the folder that has the class folders of a part, and whether all images there are the part's.

    Where ``root`` has folders train and val, with class folders in them, these are the parts as they are.

    Raises:
        UserError: It has only one of these, or one in capitals.
    """
    if part is None or not root.is_dir():
        return root, part is None
    own = [name for name in _PARTS if (root / name).is_dir() and list_class_folders(root / name)]
    if not own and (near := [each for each in list_class_folders(root) if _is_nearly_part(root / each)]):
        raise UserError(
            f"{root}: has class folders in {' and '.join(near)}; call the folders train and val, in small "
            f"letters, or set image_root to {root / near[0]} to share its images out"
        )
    if len(own) == 1:
        other = next(name for name in _PARTS if name not in own)
        raise UserError(
            f"{root}: has a folder {own[0]} of class folders, but no {other}; call the folder of the other "
            f"images {other}, or set image_root to {root / own[0]} to share its images out"
        )
    return (root / part, True) if own else (root, False)


def _is_nearly_part(folder: Path) -> bool:
    """Whether a folder looks like a part, and not like a class: Train, with folders in it."""
    return folder.name.lower() in _PARTS and len(list_class_folders(folder)) > 0


def fill_from_class_folders(tree: dict[str, Any]) -> None:
    """Fills in what a config leaves to its folder of pictures, in place, before it is checked.

    ``DataLoader.Eval`` gets the folder of ``DataLoader.Train``, where it is a part of that; and
    ``Arch.class_num: auto``, that of a model within or of a head, too, becomes the number of class folders,
    or of the names in the run's ``label_list.txt`` where the folder is not there, as when a model predicts
    elsewhere.

    Args:
        tree: The YAML, which may have any shape.

    Raises:
        UserError: The classes can't be found, or there are fewer than two.
    """
    train, evaluation = (_dataset(tree, split) for split in ("Train", "Eval"))
    if train.get("name") == evaluation.get("name") == _FOLDER and evaluation.get("part") is not None:
        for key in _SHARED:
            if key in train:
                evaluation.setdefault(key, train[key])
    if left := [each for each in _models(tree.get("Arch")) if each.get("class_num") == "auto"]:
        classes = _count_classes(tree, train)
        for each in left:
            each["class_num"] = classes


def _models(arch: Any) -> Iterator[dict[Any, Any]]:
    """Yields all that may have a number of classes: the model, a RecModel's parts, several models."""
    if not isinstance(arch, dict):
        return
    models = arch.get("models")
    named = [each for each in models if isinstance(each, dict)] if isinstance(models, list) else []
    parts = [
        arch,
        arch.get("Backbone"),
        arch.get("Head"),
        *(keys for each in named for keys in each.values()),
    ]
    yield from (each for each in parts if isinstance(each, dict))


def _dataset(tree: Any, split: str) -> dict[Any, Any]:
    for key in ("DataLoader", split, "dataset"):
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree if isinstance(tree, dict) else {}


def _count_classes(tree: dict[str, Any], train: dict[Any, Any]) -> int:
    root, part = train.get("image_root"), train.get("part")
    if train.get("name") != _FOLDER or root is None:
        raise UserError(
            "Arch.class_num: auto counts the class folders of DataLoader.Train.dataset, which is no "
            f"{_FOLDER} with an image_root; give the number"
        )
    if not isinstance(root, str):
        raise UserError(
            f"DataLoader.Train.dataset.image_root: expected text, got {show(root)}; YAML takes it for "
            "something else: put it in quotes"
        )
    settings = tree.get("Global")
    output = settings.get("output_dir") if isinstance(settings, dict) else None
    listing = Path(output) / LABEL_LIST if isinstance(output, str) else None
    try:
        if Path(root).is_dir():
            return _count_folders(find_class_root(Path(root), part if part in _PARTS else None)[0])
        if listing is not None and listing.is_file():
            return sum(1 for line in listing.read_text(encoding="utf-8").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"Arch.class_num: auto: the classes can't be found: {error}") from None
    raise UserError(
        f"{root}: there is no such folder (DataLoader.Train.dataset.image_root) to find the classes in; "
        "expected one with a sub-folder of pictures for each class"
    )


def _count_folders(folder: Path) -> int:
    names = list_class_folders(folder)
    if len(names) < 2:
        found = f"only {names[0]}" if names else "none"
        raise UserError(
            f"{folder}: expected a sub-folder of pictures for each of two classes or more, found {found}"
        )
    return len(names)
