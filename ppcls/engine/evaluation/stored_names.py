"""Finds the class names that are stored with the weights of a model."""

from __future__ import annotations

from pathlib import Path

from ppcls.data.index.class_folders import LABEL_LIST
from ppcls.files import real_path
from ppcls.weights.manifest import MANIFEST, verify


def find_label_list(weights: Path) -> Path | None:
    """Returns the file of the class names of trained weights; None if they have none.

    Args:
        weights: Checkpoint folder, or file of weights. The names are beside the weights. If these are in a
            checkpoint, the names may also be in the output folder of the run.

    Raises:
        DamagedError: The file of the checkpoint has changed.
    """
    folder = weights if weights.is_dir() else weights.parent
    if (listing := find_listed(folder)) is not None:
        return listing
    real = real_path(folder)  # best_model is a link to a checkpoint
    return find_listed(real.parent.parent) if (real / MANIFEST).is_file() else None


def find_listed(folder: Path) -> Path | None:
    """Returns the file of class names in a folder, or None if there is none.

    In a checkpoint, the file must be listed in the manifest and intact.
    """
    file = folder / LABEL_LIST
    listed = not (folder / MANIFEST).is_file() or LABEL_LIST in verify(folder, (LABEL_LIST,)).files
    return file if listed and file.is_file() else None
