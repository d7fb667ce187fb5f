"""Base classes of data sets: the location of the samples, and their transforms.

A data set is a section of the config. `Dataset.read` returns the index of its samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import model_validator
from pydantic_core import InitErrorDetails
from typing_extensions import Self

from ppcls.config.base.component import Component
from ppcls.config.base.facts import LabelsPerImage, RunFacts
from ppcls.config.base.fields import Count, Positive
from ppcls.config.base.problems import located, problem
from ppcls.data.index.class_folders import LABEL_LIST
from ppcls.data.transforms.base import Chain, chain_problems
from ppcls.data.transforms.batch import BatchTransforms
from ppcls.files.urls import is_url
from ppcls.registry import DATASETS

if TYPE_CHECKING:  # --help must not wait for NumPy
    from numpy.typing import NDArray

    from ppcls.data.index.files import FileIndex
    from ppcls.data.index.protocol import Index

# PaddleClas's data sets of this kind decode images themselves.
DECODER = {"backend": "the loader chooses the decoder"}


class Dataset(Component, registry=DATASETS):
    """Labelled images.

    Attributes:
        labels: Number of labels per image.
        in_files: Whether each image is a file of its own.
    """

    labels: ClassVar[LabelsPerImage] = "one"
    in_files: ClassVar[bool] = False

    transform_ops: Chain
    """Transforms to apply to each image, in this order."""
    batch_transform_ops: BatchTransforms = ()
    """Transform that mixes each image of a training batch with its neighbour; at most one item."""
    on_error: Literal["raise", "skip"] = "raise"
    """Action if an image can't be read: `raise` ends the run; `skip` adds the image to bad_images.txt and
    continues without it."""
    max_errors: Count | None = None
    """With `on_error: skip`, largest number of bad images in all data sets together. If there are more, the
    run ends. Default: no limit."""
    bad_images: str | None = None
    """With `on_error: skip`, file with a list of images to skip from the start, as `tools/dataset.py check`
    writes it; default: no file."""

    storage_cache: Positive = 64.0
    """For data in object storage, such as `s3://bucket/pets`: largest size of the copies on the local disk,
    in GiB. All processes of a machine share them, and the least recently used ones are removed."""

    @model_validator(mode="after")
    def _check_skipping(self) -> Self:
        for name in ("max_errors", "bad_images"):
            if self.on_error == "raise" and getattr(self, name) is not None:
                raise ValueError(
                    f"{name} needs on_error: skip, but on_error is raise; set skip, or remove {name}"
                )
        return self

    def read(self, class_num: int | None) -> Index:
        """Reads the list of samples and their labels without opening images.

        Args:
            class_num: Number of classes of the model; None if any label >= 0 is valid.

        Raises:
            UserError: A folder, list or record file is missing, empty or invalid.
        """
        raise NotImplementedError(f"{self.kind} does not define its samples")

    @property
    def place(self) -> str:
        """Location of the images, for messages."""
        raise NotImplementedError(f"{self.kind} does not define where its images are")

    @property
    def drawn_label(self) -> int | None:
        """Position of the transform that determines the label of an image; None if none does."""
        return None

    @property
    def class_root(self) -> Path | None:
        """Folder whose subfolders are the classes; None if the classes are no folders."""
        return None

    @property
    def auditable_root(self) -> str | None:
        """Folder that ``ppcls dataset audit`` accepts; None if the labels do not come from folders."""
        return None

    @property
    def folder_classes(self) -> tuple[str, ...]:
        """Names of the classes in the order of their labels; empty if they are no folders, or missing."""
        return ()

    @property
    def empty_folders(self) -> tuple[str, ...]:
        """Sorted names of the class folders without images."""
        return ()

    @property
    def names_file(self) -> Path | None:
        """File of class names beside a list or container, as ``ppcls dataset`` writes it; None without one.

        It is for people, and for checks: the labels are the numbers in the list or container.
        """
        labels = self.label_place
        file = None if labels is None else Path(labels).parent / LABEL_LIST
        return file if file is not None and file.is_file() else None

    @property
    def label_place(self) -> str | None:
        """Path of the file with the numbers of the classes; None if folders or transforms define them."""
        return None

    @property
    def has_label_shares(self) -> bool:
        """Whether the share of images that have each class is computed."""
        return False

    def overlap_problems(self, train: Dataset) -> Iterator[InitErrorDetails]:  # noqa: ARG002
        """Yields the keys that let this evaluation data set have images in common with the training data."""
        yield from ()

    def problems(self, facts: RunFacts, part: str) -> Iterator[InitErrorDetails]:
        """Yields the conflicts with the model and the use of the images."""
        yield from located(chain_problems(self.transform_ops, facts), "transform_ops")
        if self.batch_transform_ops and part.startswith("Eval"):
            yield problem("evaluation does not mix images; remove this key", "batch_transform_ops")
        if self.batch_transform_ops and facts.embeds:
            yield problem("mixed images have no identity; remove this key", "batch_transform_ops")
        if self.labels == "several" and facts.embeds:
            text = "a RecModel needs one identity per image; use a data set with one label per image"
            yield problem(text, "name")
        if facts.use_multilabel and facts.labels.get(part) == "one":
            text = f"{self.kind} has one label per image; expected MultiLabelDataset"
            yield problem(f"{text}, or Global.use_multilabel: False", "name")

    def unsplit(self) -> Dataset:
        """Returns the data set of all images if this one is a random part of them, otherwise this one."""
        return self

    def describe_classes(
        self, classes: Sequence[str], train: NDArray[Any], val: NDArray[Any] | None
    ) -> list[str]:
        """Returns log lines about the classes and the numbers of training and validation images.

        Args:
            classes: Class names, in the order of their labels.
            train: Labels of the training images.
            val: Labels of the validation images; None if the run has no evaluation.
        """
        del classes, train, val
        return []

    def describe_ignored(self) -> list[str]:
        """Returns log lines about images that have no class and are ignored."""
        return []


class FileDataset(Dataset, abstract=True):
    """Images in separate files."""

    in_files: ClassVar[bool] = True

    image_root: str
    """Folder of the images."""
    follow_links: bool = False
    """Follow symbolic links that point outside `image_root`, and use the images there."""

    @property
    def place(self) -> str:
        """Folder of the images."""
        return self.image_root

    def _read_listed(self, listing: str, read: Callable[[Path, Path], FileIndex]) -> Index:
        """Returns the index of the images in a list file.

        Args:
            listing: List file, or its address in object storage.
            read: Function that reads a list, from the folder of the images and the path of the list.
        """
        if not is_url(self.image_root) and not is_url(listing):
            return read(Path(self.image_root), Path(listing))
        from ppcls.data.stored.files import read_stored_list

        return read_stored_list(self.image_root, listing, read, self.storage_cache)
