"""The images of class folders that train, or those that validate: ``part`` of an ``ImageFolderDataset``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

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


def describe_folders(dataset: Dataset, classes: Sequence[str], train: int, val: int | None) -> list[str]:
    """Returns a line for the log: which classes there are, and how their images are used; none without parts.

    Args:
        dataset: That is trained on.
        classes: Their names.
        train: Images that train.
        val: Images that validate; None for no evaluation.
    """
    if not isinstance(dataset, ImageFolderDataset) or dataset.part is None:
        return []
    _, whole = class_root(Path(dataset.image_root), dataset.part)
    shown = ", ".join([*classes[:_SHOWN], *(["…"] if len(classes) > _SHOWN else [])])
    how = "its folders train and val" if whole else f"val_share {dataset.val_share:g}"
    rest = "" if val is None else f", {val} to evaluate on ({how})"
    return [f"{dataset.image_root}: {len(classes)} classes ({shown}); {train} images to train on{rest}"]


def _refuse_empty(index: FileIndex, extensions: tuple[str, ...]) -> None:
    having = set(index.labels.tolist())
    empty = [name for label, name in enumerate(folder_classes(index.root)) if label not in having]
    if empty:
        raise UserError(
            f"{index.root}: no images in the class folder{'s' if empty[1:] else ''} {', '.join(empty[:10])}; "
            f"expected files ending in {', '.join(extensions)}, or no such folder"
        )
