"""Creates demo datasets. A folder appears only when it is complete, and existing folders are not changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ppcls.data.index.files import FileIndex
from ppcls.data.index.split import write_lists
from ppcls.dataset_tools.jobs import find_job
from ppcls.errors import UserError
from ppcls.files import new_folder

JOB_FILE = "made.json"


def make_dataset(
    folder: Path,
    recipe: dict[str, Any],
    paths: Sequence[str],
    labels: Sequence[int],
    names: Sequence[str],
    write_images: Callable[[Path], None],
) -> bool:
    """Creates a dataset with ``train_list.txt``, ``val_list.txt`` and ``label_list.txt``.

    The split is fixed: in each class, the second of every five images is for validation.

    Args:
        folder: Folder to create.
        recipe: Settings that determine the dataset.
        paths: Paths of the images, relative to ``folder``.
        labels: Label of each image.
        names: Class names, in the order of their labels.
        write_images: Writes the images into a folder, whose subfolders already exist.

    Returns:
        False if the folder already contains this dataset.

    Raises:
        UserError: The folder contains something else.
    """
    if find_job(folder / JOB_FILE, recipe) is not None:
        return False
    index = FileIndex(folder, np.array([path.encode() for path in paths]), np.array(labels), folder)
    validates = np.zeros(len(index), np.bool_)
    for label in range(len(names)):
        validates[np.flatnonzero(index.labels == label)[1::5]] = True
    try:
        with new_folder(folder) as temporary:
            for path in {Path(path).parent for path in paths}:
                (temporary / path).mkdir(parents=True)
            write_images(temporary)
            write_lists(index, validates, temporary, names)
            text = json.dumps(recipe, sort_keys=True) + "\n"
            (temporary / JOB_FILE).write_text(text, encoding="utf-8")
    except FileExistsError:
        raise UserError(
            f"{folder} already exists; nothing was written; choose another folder with --out"
        ) from None
    return True
