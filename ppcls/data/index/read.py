"""Reads the samples and labels of any dataset, and checks them before training."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ppcls.config.sections.dataset import (
    Dataset,
    ImageFolderDataset,
    ImageNetDataset,
    IndexedDataset,
    MultiLabelDataset,
    PythonDataset,
    RecordDataset,
)
from ppcls.data.index.files import read_list
from ppcls.data.index.folders import read_part
from ppcls.data.index.python_source import read_source
from ppcls.data.index.records import read_records
from ppcls.data.records.formats import dataset_format

_HASHED_NAMES = 1000


class Index(Protocol):
    """The samples of one split, by position.

    Arrays have fixed-width items, so that forked workers share their memory. Several threads and forked
    processes may call `read`.
    """

    @property
    def labels(self) -> NDArray[Any]:
        """[N] int64, 0..class_num - 1; or [N, class_num] float32, 0 or 1 for each class."""

    @property
    def source(self) -> Path:
        """List file, folder or container, for messages."""

    def __len__(self) -> int:
        """Returns the number of samples."""

    def name(self, position: int) -> str:
        """Returns the file that contains a sample, for messages."""

    def where(self, position: int) -> str:
        """Returns the location of a sample in its list or file, for messages."""

    def read(self, position: int) -> bytes | memoryview:
        """Returns the encoded image.

        Raises:
            ppcls.data.images.header.DecodeError: The image is missing, empty, damaged or can't be read.
        """


def read_index(dataset: Dataset, class_num: int | None) -> Index:
    """Reads the samples and labels of a dataset without opening images.

    Args:
        dataset: Config of the dataset.
        class_num: Number of classes of the model; None if any label from 0 is valid.

    Raises:
        UserError: A folder, list or container is missing or empty, or has wrong entries.
    """
    match dataset:
        case ImageNetDataset() | MultiLabelDataset():
            return read_list(
                Path(dataset.image_root),
                Path(dataset.cls_label_path),
                dataset.delimiter,
                class_num,
                follow_links=dataset.follow_links,
                multi_label=isinstance(dataset, MultiLabelDataset),
            )
        case ImageFolderDataset():
            return read_part(dataset, class_num)
        case RecordDataset():
            index_paths = dataset.index_paths if isinstance(dataset, IndexedDataset) else None
            return read_records(dataset_format(dataset), dataset.paths, index_paths, class_num)
        case PythonDataset():
            return read_source(dataset.source, class_num)
    raise TypeError(f"no index for {dataset.kind}")


def positive_rates(index: Index) -> NDArray[np.float32] | None:
    """Returns the share of images with each class, [class_num]; None if images have a single label."""
    return index.labels.mean(axis=0, dtype=np.float64).astype(np.float32) if index.labels.ndim == 2 else None


def describe_index(index: Index) -> str:
    """Returns a text that identifies a dataset, by all labels and a thousand evenly spaced names."""
    digest = hashlib.blake2b(np.ascontiguousarray(index.labels).tobytes(), digest_size=6)
    for position in np.linspace(0, len(index) - 1, min(len(index), _HASHED_NAMES)).astype(int).tolist():
        digest.update(index.name(position).encode("utf-8", "surrogateescape") + b"\0")
    return f"{len(index)} samples ({digest.hexdigest()})"
