"""Audits a folder or a list of labelled pictures."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ppcls.audit.duplicates import find_duplicates
from ppcls.audit.findings import Audit, audit
from ppcls.audit.images import Pictures, read_copies
from ppcls.audit.neighbours import Neighbours, find_neighbours
from ppcls.data.images.paths import explain_file, find_images
from ppcls.data.images.skipped import describe_skipped
from ppcls.data.index.class_folders import find_class_root, list_class_folders
from ppcls.data.index.files import FileIndex, list_files, read_folder
from ppcls.data.index.split import choose_validation
from ppcls.dataset_tools.image_features import ImageModel, compute_image_features
from ppcls.engine.head.solve import HeadSamples, predict_out_of_fold
from ppcls.errors import UserError
from ppcls.files import IMAGE_EXTENSIONS
from ppcls.recipe.folder_hints import explain_missing_folder

_VAL_SHARE = Fraction("0.2")  # and seed 0, as in configs/finetune.yaml
_FOLDS = 5
UNLABELLED = "unlabelled"
TRAIN = "train"
VAL = "val"


class Stages(Protocol):
    """Receives the progress of an audit."""

    def __call__(self, stage: str, total: int) -> Callable[[int], None]:
        """Starts a stage, and returns a function that is called with the number of finished pictures."""


class AuditSource:
    """Pictures to audit.

    Attributes:
        index: The pictures. Paths are relative to the audited folder.
        classes: Names of the classes.
        splits: Name of the split of each picture.
        notes: Sentences about what can't be checked.
    """

    def __init__(
        self, index: FileIndex, classes: tuple[str, ...], splits: list[str], notes: Sequence[str] = ()
    ) -> None:
        self.index = index
        self.classes = classes
        self.splits = splits
        self.notes = list(notes)


def find_pictures(root: Path, *, follow_links: bool = False) -> AuditSource:
    """Returns the pictures of a folder.

    The folder has one subfolder per class, or the subfolders train and val with class folders. Without these
    two, the pictures are split as ``ppcls train`` splits them. A folder without subfolders has unlabelled
    pictures.

    Raises:
        UserError: The folder is missing or has no pictures.
    """
    if root.is_file():
        raise UserError(f"{root}: {explain_file(root)}")
    if not root.is_dir():
        raise UserError(
            f"{root}: no such folder; expected a folder with one subfolder of pictures per class"
            f"{explain_missing_folder(root)}"
        )
    if not list_class_folders(root):
        notes: list[str] = []
        files = find_images([root], lambda line: notes.append(f"{line}."))
        if not files:
            raise UserError(f"{root}: no images; expected files that end in {', '.join(IMAGE_EXTENSIONS)}")
        index = list_files(files)
        notes.append(f"{root} has no class folders, so labels were not checked.")
        return AuditSource(index, (UNLABELLED,), [TRAIN] * len(index), notes)
    train, has_parts = find_class_root(root, "train")
    if has_parts:
        return _join_parts(root, train, find_class_root(root, "val")[0], follow_links=follow_links)
    index = read_folder(root, IMAGE_EXTENSIONS, follow_links=follow_links)
    classes = list_class_folders(root)
    notes = _describe_others([index])
    try:
        validates = choose_validation(index, _VAL_SHARE, 0)
    except UserError:
        notes.append("There are too few pictures for a split into training and validation.")
        return AuditSource(index, classes, [TRAIN] * len(index), notes)
    return AuditSource(index, classes, [VAL if each else TRAIN for each in validates.tolist()], notes)


def _describe_others(indexes: Sequence[FileIndex]) -> list[str]:
    """Returns a sentence about each folder with files that are not images."""
    lines = (describe_skipped(index.root, index.skipped) for index in indexes)
    return [f"{line}." for line in lines if line]


def _join_parts(root: Path, train: Path, val: Path, *, follow_links: bool) -> AuditSource:
    """Returns the pictures of both parts, as paths relative to their common folder."""
    classes = tuple(sorted({*list_class_folders(train), *list_class_folders(val)}))
    parts = []
    notes = []
    for folder in (train, val):
        part = read_folder(folder, IMAGE_EXTENSIONS, class_names=classes, follow_links=follow_links)
        notes += _describe_others([part])
        prefix = str(folder.relative_to(root)).encode() + b"/"
        parts.append(replace(part, root=root, paths=np.char.add(prefix, part.paths), source=root))
    joined = replace(
        parts[0],
        paths=np.concatenate([part.paths for part in parts]),
        labels=np.concatenate([part.labels for part in parts]),
    )
    return AuditSource(joined, classes, [TRAIN] * len(parts[0]) + [VAL] * len(parts[1]), notes)


def audit_pictures(
    source: AuditSource, model: ImageModel, folder: Path, threads: int, stages: Stages
) -> Audit:
    """Audits pictures with the features of a model.

    Args:
        source: The pictures.
        model: Model that computes the features.
        folder: Folder for the list of pictures that can't be read.
        threads: Number of threads that read pictures.
        stages: Receives the progress.

    Raises:
        UserError: No picture can be read, or the model does not fit.
    """
    index = source.index
    pictures, features, neighbours = _compare(source, model, folder, threads, stages)
    notes = list(source.notes)
    readable = np.flatnonzero(np.isfinite(features).all(axis=1))
    present = np.unique(pictures.labels[readable])
    probabilities = None
    if len(present) < 2:
        if source.classes != (UNLABELLED,):
            notes.append("There is only one class, so labels were not checked.")
    else:
        samples = HeadSamples(
            features[readable],
            readable,
            np.ones(len(readable), np.bool_),
            pictures.labels,
            len(source.classes),
        )
        checked = stages("labels", len(index))
        probabilities = predict_out_of_fold(samples, _FOLDS, 0, check=lambda: checked(0))
    compared = stages("outliers", len(index))
    alike = find_neighbours(pictures.copies, lambda: compared(0))
    return audit(pictures, neighbours, probabilities, notes, alike)


def find_duplicate_groups(
    source: AuditSource, model: ImageModel, folder: Path, threads: int, stages: Stages
) -> list[list[int]]:
    """Returns the positions of pictures that are exact or near duplicates of each other, group by group.

    See `audit_pictures` for the arguments and errors.
    """
    pictures, _, neighbours = _compare(source, model, folder, threads, stages)
    return find_duplicates(pictures, neighbours).all


def _compare(
    source: AuditSource, model: ImageModel, folder: Path, threads: int, stages: Stages
) -> tuple[Pictures, NDArray[np.float32], Neighbours]:
    """Returns the pictures, their features [N, D], and the nearest neighbours of each."""
    index = source.index
    hashes, copies = read_copies(index, threads, stages("reading", len(index)))
    if not np.isfinite(copies).all(axis=1).any():
        raise UserError(f"{index.source}: no picture can be read; list the reasons with ppcls dataset check")
    pictures = Pictures(
        [os.path.relpath(index.name(at), index.root) for at in range(len(index))],
        np.asarray(index.labels, np.int64),
        source.classes,
        source.splits,
        hashes,
        copies,
    )
    features = compute_image_features(index, model, folder, stages("features", len(index)))
    compared = stages("comparing", len(index))
    return pictures, features, find_neighbours(features, lambda: compared(0))
