"""The data set of class folders: finds and splits its images, and describes them in log lines."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator
from pydantic_core import InitErrorDetails
from typing_extensions import Self

from ppcls.commands import set_keys
from ppcls.config.base.fields import Index as Number
from ppcls.config.base.fields import Part
from ppcls.config.base.problems import problem
from ppcls.data.images.skipped import advise_to_convert
from ppcls.data.index.arrays.cache import ArrayCache, Arrays, Source, State
from ppcls.data.index.arrays.scan import CACHED_IMAGES
from ppcls.data.index.base import Dataset, FileDataset
from ppcls.data.index.class_folders import (
    Metadata,
    compose,
    find_class_folders,
    find_class_root,
    list_class_folders,
    list_empty_folders,
    read_metadata,
)
from ppcls.data.index.class_names import join_first
from ppcls.data.index.files import FileIndex, read_folder
from ppcls.data.index.protocol import Index
from ppcls.data.index.split import choose_validation
from ppcls.data.stored.roots import data_root, naming
from ppcls.errors import UserError, counted
from ppcls.files import IMAGE_EXTENSIONS, is_image_name, is_system_folder
from ppcls.files.urls import is_url

_BALANCED = {"DataLoader.Train.sampler.name": "ClassBalancedSampler"}
_UNBALANCED = 10  # ratio of the largest to the smallest class
_ENDS = 5  # number of the largest classes, and of the smallest classes, that are listed


class ImageFolderDataset(FileDataset):
    """Images in one subfolder per class. Labels follow the names of the folders: see `class_names`.

    If the folder contains `metadata.csv` or `metadata.jsonl` with the columns `file_name` and `label`, as
    image folders of Hugging Face do, these labels are the classes.

    A class folder without images is an error for `part: train`. With `on_error: skip` and `class_num: auto`,
    the model is trained without this class.
    """

    extensions: tuple[str, ...] = IMAGE_EXTENSIONS
    """File extensions of the images, in lower case. Other files are ignored."""
    part: Literal["train", "val"] | None = None
    """Part of the images to use; default: all images. If `image_root` has the subfolders `train` and `val`
    (or `valid`), the part is the subfolder of this name. Otherwise the images are split at random (see
    `val_share`). DataLoader.Eval with a part uses the image_root of DataLoader.Train unless it sets its
    own."""
    val_share: Part = 0.2
    """Share of the images of each class in part `val` of a random split. All other images are in part
    `train`."""
    split_seed: Number = 0
    """Seed of the random split into `train` and `val`."""
    class_names: tuple[str, ...] | None = Field(None, min_length=1)
    """Names of the class folders in the order of their labels. Default: the sorted names of the folders in
    DataLoader.Train. Evaluations of trained weights use the names that are stored with the weights."""

    @field_validator("class_names")
    @classmethod
    def _compose_names(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if names is None:
            return None
        composed = tuple(map(compose, names))
        if twice := [name for name, count in Counter(composed).items() if count > 1]:
            raise ValueError(f"expected different names, found {', '.join(twice)} more than once")
        return composed

    @model_validator(mode="after")
    def _check_part(self) -> Self:
        for name in ("val_share", "split_seed"):
            if self.part is None and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(
                    f"{name} needs part: train or part: val, but part is not set; set part, or remove {name}"
                )
        return self

    @property
    def class_root(self) -> Path:
        """Folder that contains the class folders of this part."""
        return find_class_root(self._root, self.part)[0]

    @property
    def auditable_root(self) -> str | None:
        """Folder that ``ppcls dataset audit`` accepts, with all parts; None in object storage."""
        return None if is_url(self.image_root) else self.image_root

    @property
    def folder_classes(self) -> tuple[str, ...]:
        """Names of the classes in the order of their labels; empty if the folder is missing."""
        if self.class_names is not None:
            return self.class_names
        root = self.class_root
        return list_class_folders(root) if root.is_dir() else ()

    @property
    def empty_folders(self) -> tuple[str, ...]:
        """Sorted names of the class folders without images."""
        return tuple(list_empty_folders(self.class_root, self.extensions))

    def overlap_problems(self, train: Dataset) -> Iterator[InitErrorDetails]:
        """Yields the keys that let this evaluation data set have images in common with the training data."""
        if not isinstance(train, ImageFolderDataset) or train.image_root != self.image_root:
            return
        if (train.part, self.part) not in ((None, None), ("train", "val")):
            yield problem(
                "training and evaluation on one folder must not share images; expected part: train in "
                f"DataLoader.Train and part: val here, got {train.part or 'null'} and {self.part or 'null'}",
                "part",
            )
        for name in ("val_share", "split_seed"):
            if getattr(train, name) != getattr(self, name):
                yield problem(
                    f"expected {getattr(train, name)}, the value in DataLoader.Train, so that the parts "
                    f"share no images; got {getattr(self, name)}; remove this key",
                    name,
                )

    def unsplit(self) -> Dataset:
        """Returns the data set of all images if this one is a random part of them, otherwise this one."""
        is_whole = find_class_root(self._root, self.part)[1]
        return self if is_whole else self.model_copy(update={"part": None})

    @property
    def _root(self) -> Path:
        """Folder of the images. See `data_root` for addresses in object storage."""
        return data_root(self.image_root)

    def read(self, class_num: int | None) -> Index:
        """Finds the images of ``part`` without opening them.

        Without folders ``train`` and ``val``, the split depends only on paths and seed, so it is equal in all
        processes.

        Raises:
            UserError: See `read_folder`; or a class has no images to train on, or there are too few images
                for the split.
        """
        if not is_url(self.image_root):
            return self._find_images(class_num)
        from ppcls.data.stored.files import read_stored_folder

        tree = self._root
        with naming(self.image_root, tree):
            files = self._find_images(class_num)
        return read_stored_folder(self.image_root, tree, files, self.storage_cache)

    def _find_images(self, class_num: int | None) -> FileIndex:
        root, has_part_folders = find_class_root(self._root, self.part)
        index = read_folder(
            root,
            self.extensions,
            class_num,
            class_names=self.class_names,
            follow_links=self.follow_links,
        )
        if self.part is not None and (self.part == "train" or not has_part_folders):
            _check_no_empty_folder(index, self)
        if has_part_folders:
            return index
        if len(index) < CACHED_IMAGES:
            arrays = self._split(index)
        else:
            key = json.dumps(["split", str(index.root.resolve()), self.val_share, self.split_seed])
            cache = ArrayCache(key, str(index.root))
            arrays = cache.get(Source(lambda: _digest(index)), lambda: self._split(index))
        return replace(index, paths=arrays[f"{self.part} paths"], labels=arrays[f"{self.part} labels"])

    def _split(self, index: FileIndex) -> Arrays:
        """Returns the images of both parts and their labels after a random split."""
        share = Fraction(str(self.val_share))
        chosen = choose_validation(index, share, self.split_seed, "DataLoader.Train.dataset.val_share")
        return {
            "train paths": index.paths[~chosen],
            "train labels": index.labels[~chosen],
            "val paths": index.paths[chosen],
            "val labels": index.labels[chosen],
        }

    def describe_classes(
        self, classes: Sequence[str], train: NDArray[Any], val: NDArray[Any] | None
    ) -> list[str]:
        """Returns log lines about the classes and the numbers of training and validation images.

        See `Dataset.describe_classes` for the arguments.
        """
        if self.part is None:
            return []
        folder, has_part_folders = find_class_root(self._root, "val")
        source = (
            f"its folders train and {folder.name}" if has_part_folders else f"val_share {self.val_share:g}"
        )
        validation = "" if val is None else f", {counted(len(val), 'validation image')} ({source})"
        counts = (
            f"{counted(len(classes), 'class')} ({join_first(classes)}); "
            f"{counted(len(train), 'training image')}{validation}"
        )
        return [f"{self.image_root}: {counts}"]

    def describe_ignored(self) -> list[str]:
        """Returns log lines about images outside the class folders, ignored folders, and merged classes."""
        root = self._root
        lines: list[str] = []
        for folder in dict.fromkeys([root, self.class_root]):
            if (metadata := read_metadata(folder)) is not None:
                lines += _describe_unlisted(folder, metadata, self.extensions)
                continue
            images = sorted(
                entry.name
                for entry in os.scandir(folder)
                if is_image_name(entry.name, self.extensions) and entry.is_file()
            )
            if images:
                count = counted(len(images), "image")
                more = ", …" if images[1:] else ""
                lines.append(f"{folder}: ignored {count} outside the class folders: {images[0]}{more}")
            lines += _describe_folders(folder)
        if self.part == "train" and self.class_names is not None and self.on_error == "skip":
            lines += [
                f"warning: {self.class_root / name}: no images, so the model does not have this class "
                "(on_error: skip)"
                for name in self.empty_folders
                if name not in self.class_names
            ]
        return lines


def _describe_unlisted(folder: Path, metadata: Metadata, extensions: tuple[str, ...]) -> Iterator[str]:
    """Yields log lines about the source of the labels, and about images without a label."""
    yield f"{metadata.file}: has the labels of the images"
    listed = set(metadata.paths)
    others = [
        path
        for place, _, names in os.walk(folder)
        for name in names
        if is_image_name(name, extensions)
        and (path := os.path.relpath(os.path.join(place, name), folder)) not in listed  # noqa: PTH118
    ]
    if others:
        count = counted(len(others), "image")
        yield f"{folder}: ignored {count} without a line in {metadata.file.name}, such as {min(others)}"


def _describe_folders(root: Path) -> Iterator[str]:
    """Yields log lines about visible folders of systems, and about folders that are one class."""
    systems = sorted(
        entry.name
        for entry in os.scandir(root)
        if is_system_folder(entry.name) and not entry.name.startswith(".") and entry.is_dir()
    )
    if systems:
        yield f"{root}: ignored folders of the system: {join_first(systems)}"
    for name, folders in find_class_folders(root).items():
        if len(folders) > 1:
            yield (
                f"{root}: {counted(len(folders), 'folder is', 'folders are')} class {name}; their names "
                "differ only in Unicode form"
            )


def describe_imbalance(labels: NDArray[Any], classes: Sequence[str]) -> str:
    """Returns a warning with the numbers of training images per class if they are very unbalanced, else "".

    Args:
        labels: [N] class of each training image. Labels of another shape cause no warning.
        classes: Class names, in the order of their labels; empty if unknown.
    """
    if labels.ndim != 1 or not len(labels) or not np.issubdtype(labels.dtype, np.integer):
        return ""
    labelled, counts = np.unique(labels, return_counts=True)
    if len(labelled) < 2 or counts.max() < _UNBALANCED * counts.min():
        return ""
    order = np.argsort(-counts, kind="stable")
    names = [
        classes[label] if label < len(classes) else f"class {label}" for label in labelled[order].tolist()
    ]
    amounts = [f"{name} {count:,}" for name, count in zip(names, counts[order].tolist(), strict=True)]
    shown = amounts if len(amounts) <= 2 * _ENDS else [*amounts[:_ENDS], "…", *amounts[-_ENDS:]]
    balance = set_keys(_BALANCED)
    return (
        f"warning: the classes are unbalanced, with these numbers of training images: {', '.join(shown)}. A "
        "model that always predicts the largest class would have a high top1. Check the recall per class, "
        f"add images, or use --class-weights or {balance}"
    )


def _digest(index: FileIndex) -> State:
    """Returns numbers that identify the images and their labels."""
    digest = hashlib.blake2b(digest_size=32)
    for array in (index.labels, index.paths):
        digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return [int(number) for number in np.frombuffer(digest.digest(), np.int64)]


def _check_no_empty_folder(index: FileIndex, dataset: ImageFolderDataset) -> None:
    folders = list_class_folders(index.root)
    if index.lines is not None:
        return  # classes are those of the listed images
    names = dataset.class_names or folders
    present = {names[label] for label in np.unique(index.labels).tolist()}
    # Of the other part, the training images define the classes.
    can_ignore = dataset.on_error == "skip" or dataset.part == "val"
    ignored = set(folders) - set(names) if can_ignore else set()
    if empty := sorted(set(folders) - present - ignored):
        listed = join_first([repr(name) for name in empty])
        without = ""
        if dataset.class_names is None and dataset.on_error == "raise":
            without = ", or train without this class: --on-error skip"
        elif dataset.class_names is None:
            without = ", or set Arch.class_num: auto to train without this class"
        raise UserError(
            f"{index.root}: no images in class folder {listed}; expected files that end in "
            f"{', '.join(dataset.extensions)}; add images, remove the folder{without}"
            f"{advise_to_convert(index.skipped)}"
        )
