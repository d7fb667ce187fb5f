"""Reads the list of samples and the labels of any dataset, and checks them before training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from ppcls.config.sections.dataset import (
    Cifar10,
    CompCars,
    CustomLabelDataset,
    Dataset,
    DukeMTMC,
    ImageFolderDataset,
    ImageNetDataset,
    IndexedDataset,
    Market1501,
    MultiLabelDataset,
    PythonDataset,
    RecordDataset,
    VeriWild,
)
from ppcls.data.index.boxes import crop_to_boxes
from ppcls.data.index.cifar import read_cifar
from ppcls.data.index.files import FileIndex, read_list, read_named_files, read_paths
from ppcls.data.index.folders import read_part
from ppcls.data.index.protocol import Index
from ppcls.data.index.python_source import read_source
from ppcls.data.index.records import read_records
from ppcls.data.records.formats import dataset_format
from ppcls.errors import UserError


def read_index(dataset: Dataset, class_num: int | None) -> Index:
    """Reads the list of samples and the labels of a dataset without opening images.

    Args:
        dataset: Config of the dataset.
        class_num: Number of classes of the model; None if any label >= 0 is valid.

    Raises:
        UserError: A folder, list or record file is missing, empty or invalid.
    """
    match dataset:
        case ImageNetDataset() | MultiLabelDataset():
            relabel = isinstance(dataset, ImageNetDataset) and dataset.relabel
            index = read_list(
                Path(dataset.image_root),
                Path(dataset.cls_label_path),
                dataset.delimiter,
                None if relabel else class_num,
                follow_links=dataset.follow_links,
                labelled=_labelling(dataset),
            )
            index = _relabel(index, class_num) if relabel else index
            if isinstance(dataset, CompCars) and dataset.bbox_crop:
                return crop_to_boxes(index, Path(dataset.label_root or ""))
            return index
        case CustomLabelDataset():
            root = Path(dataset.image_root)
            listing = Path(dataset.sample_list_path)
            return read_paths(root, listing, dataset.delimiter, follow_links=dataset.follow_links)
        case Market1501() | DukeMTMC():
            folder = Path(dataset.image_root) / dataset.folder / dataset.cls_label_path
            relabel = "train" in dataset.cls_label_path
            return read_named_files(folder, dataset.pattern, class_num, relabel)
        case Cifar10():
            return read_cifar(dataset, class_num)
        case ImageFolderDataset():
            return read_part(dataset, class_num)
        case RecordDataset():
            index_paths = dataset.index_paths if isinstance(dataset, IndexedDataset) else None
            return read_records(dataset_format(dataset), dataset.paths, index_paths, class_num)
        case PythonDataset():
            return read_source(dataset.source, class_num)
    raise TypeError(f"no index for {dataset.kind}")


def _labelling(
    dataset: ImageNetDataset | MultiLabelDataset,
) -> Literal["once", "per class", "with cameras"]:
    if isinstance(dataset, MultiLabelDataset):
        return "per class"
    return "with cameras" if isinstance(dataset, VeriWild) else "once"


def _relabel(index: FileIndex, class_num: int | None) -> FileIndex:
    """Replaces the labels by consecutive numbers from 0, in the same order."""
    classes, labels = np.unique(index.labels, return_inverse=True)
    if class_num is not None and len(classes) > class_num:
        raise UserError(
            f"{index.source}: has {len(classes)} different labels, but Arch.class_num is {class_num}; "
            "increase it"
        )
    return replace(index, labels=labels.reshape(-1).astype(np.int64))
