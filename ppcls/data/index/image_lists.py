"""Data sets whose images and labels are in a list file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import AfterValidator, Field, model_validator
from pydantic_core import InitErrorDetails
from typing_extensions import Self

from ppcls.config.base.facts import LabelsPerImage, RunFacts
from ppcls.config.base.problems import error_at, problem
from ppcls.data.index.arrays.list_line import read_delimiter
from ppcls.data.index.base import DECODER, FileDataset
from ppcls.data.index.files import FileIndex, read_list, read_paths
from ppcls.data.index.protocol import Index
from ppcls.errors import UserError, counted

Delimiter = Annotated[str, Field(min_length=1), AfterValidator(read_delimiter)]


class ImageNetDataset(FileDataset):
    """Images from a list file. Each line has the path of an image below ``image_root``, and its label.

    Attributes:
        labelled: Format of the labels, see `read_list`.
    """

    labelled: ClassVar[Literal["once", "with cameras"]] = "once"

    cls_label_path: str
    """List file, with one line `path label` per image. Paths are relative to `image_root`, or absolute paths
    in it; with `image_root: /`, any absolute paths."""
    delimiter: Delimiter = " "
    """Text between path and label. The path may contain it too."""
    relabel: bool = False
    """Renumber the labels from 0 in ascending order. Use it if the labels of the list have gaps."""

    @property
    def label_place(self) -> str:
        """Path of the list file."""
        return self.cls_label_path

    def read(self, class_num: int | None) -> Index:
        """Returns the index of the images in the list file."""
        return self._read_listed(self.cls_label_path, partial(self._read_files, class_num=class_num))

    def _read_files(self, root: Path, listing: Path, class_num: int | None) -> FileIndex:
        index = read_list(
            root,
            listing,
            self.delimiter,
            None if self.relabel else class_num,
            follow_links=self.follow_links,
            labelled=self.labelled,
        )
        return _renumber(index, class_num) if self.relabel else index


class VeriWild(ImageNetDataset):
    """An ImageNetDataset whose labels are identities. A third value on a line is the number of the camera.

    If cameras are known, retrieval ignores gallery images with the identity and the camera of the query.
    """

    ignored: ClassVar[Mapping[str, str]] = DECODER
    labelled: ClassVar[Literal["once", "with cameras"]] = "with cameras"


class CompCars(ImageNetDataset):
    """An ImageNetDataset of cars. Images can be cropped to bounding boxes."""

    bbox_crop: bool = False
    """Crop each image to its bounding box before all transforms."""
    label_root: str | None = None
    """Folder of the bounding boxes, required for `bbox_crop`. The box of the image `a/b.jpg` is the last line
    of the file `a/b.txt`: `left top right bottom`, in pixels."""

    @model_validator(mode="after")
    def _check_boxes(self) -> Self:
        if self.bbox_crop and self.label_root is None:
            raise error_at("missing; bbox_crop needs the folder of the bounding boxes", "label_root")
        return self

    def read(self, class_num: int | None) -> Index:
        """Returns the index of the images, which reads cropped images with ``bbox_crop``."""
        from ppcls.data.index.boxes import crop_to_boxes  # imports Pillow

        if not self.bbox_crop:
            return super().read(class_num)
        index = self._read_files(Path(self.image_root), Path(self.cls_label_path), class_num)
        return crop_to_boxes(index, Path(self.label_root or ""))


class ICartoonDataset(ImageNetDataset):
    """PaddleClas's name for an ImageNetDataset with tabs between path and label."""

    delimiter: Delimiter = "\t"


class MultiScaleDataset(ImageNetDataset):
    """PaddleClas's name for ImageNetDataset with MultiScaleSampler, which sets the image size."""


class MultiLabelDataset(FileDataset):
    """Images from a list file with any number of classes per image: ``path 0,1,1``, with 0 or 1 per class."""

    labels: ClassVar[LabelsPerImage] = "several"
    cls_label_path: str
    """List file, with one line `path labels` per image."""
    delimiter: Delimiter = "\t"
    """Text between path and labels. The path may contain it too."""
    label_ratio: bool = False
    """Compute the share of positive labels of each class, which `weight_ratio` of MultiLabelLoss needs."""

    @property
    def label_place(self) -> str:
        """Path of the list file."""
        return self.cls_label_path

    @property
    def has_label_shares(self) -> bool:
        """Whether the share of images that have each class is computed: ``label_ratio``."""
        return self.label_ratio

    def read(self, class_num: int | None) -> Index:
        """Returns the index of the images in the list file."""
        read = partial(
            read_list,
            delimiter=self.delimiter,
            class_num=class_num,
            follow_links=self.follow_links,
            labelled="per class",
        )
        return self._read_listed(self.cls_label_path, read)


class CustomLabelDataset(FileDataset):
    """Images from a list file without labels. A random transform determines the label of each image."""

    sample_list_path: str
    """List file, with one path below `image_root` per line."""
    label_key: Literal["blur_image", "random_rot90_orientation"]
    """Transform that determines the labels: `blur_image` for BlurImage, `random_rot90_orientation` for
    RandomRot90."""
    delimiter: Delimiter | None = None
    """Text that ends the path. The rest of the line, such as a label, is ignored. Default: the whole line is
    the path."""

    @model_validator(mode="after")
    def _check_label(self) -> Self:
        if (count := sum(spec.label_key == self.label_key for spec in self.transform_ops)) != 1:
            raise error_at(
                f"expected one transform in transform_ops that determines this label, got {count}",
                "label_key",
            )
        return self

    @property
    def drawn_label(self) -> int:
        """Position of the transform that determines the label of an image."""
        return next(
            position for position, spec in enumerate(self.transform_ops) if spec.label_key == self.label_key
        )

    def problems(self, facts: RunFacts, part: str) -> Iterator[InitErrorDetails]:
        """Yields the conflicts with the model and the use of the images."""
        yield from super().problems(facts, part)
        transform = self.transform_ops[self.drawn_label]
        if facts.class_num != transform.label_count:
            text = (
                f"{transform.kind} has {counted(transform.label_count, 'label')}, so Arch.class_num must be "
                f"{transform.label_count}, got {facts.class_num}"
            )
            yield problem(text, "label_key")

    def read(self, class_num: int | None) -> Index:  # noqa: ARG002 - the labels are drawn later
        """Returns the index of the images in the list file. All labels are 0."""
        read = partial(read_paths, delimiter=self.delimiter, follow_links=self.follow_links)
        return self._read_listed(self.sample_list_path, read)


def _renumber(index: FileIndex, class_num: int | None) -> FileIndex:
    """Replaces the labels by consecutive numbers from 0, in the same order."""
    classes, labels = np.unique(index.labels, return_inverse=True)
    if class_num is not None and len(classes) > class_num:
        raise UserError(
            f"{index.source}: has {counted(len(classes), 'different label')}, but Arch.class_num is "
            f"{class_num}; increase it"
        )
    return replace(index, labels=labels.reshape(-1).astype(np.int64))
