"""What is in a dataset: samples and labels, checked before training, wherever the bytes are."""

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
    LMDBDataset,
    MultiLabelDataset,
    PythonDataset,
    RecordDataset,
    RecordIODataset,
    TFRecordDataset,
    WebDataset,
)
from ppcls.data.index.files import read_list
from ppcls.data.index.folders import read_part
from ppcls.data.index.python_source import read_source
from ppcls.data.index.records import read_records
from ppcls.data.records.lmdb import LMDBFormat
from ppcls.data.records.recordio import RecordIOFormat
from ppcls.data.records.shard import RecordFormat
from ppcls.data.records.tfrecord import TFRecordFormat
from ppcls.data.records.webdataset import WebDatasetFormat

_NAMES = 1000


class Index(Protocol):
    """The samples of one split, by position.

    Its arrays are of fixed width, so that forked workers share their memory, and `read` may be called
    from several threads and in forked processes.
    """

    @property
    def labels(self) -> NDArray[Any]:
        """[N] int64, 0..class_num - 1; or [N, class_num] float32, a 0 or 1 for each class."""

    @property
    def source(self) -> Path:
        """Where the samples are listed, for messages."""

    def __len__(self) -> int:
        """Returns the number of samples."""

    def name(self, position: int) -> str:
        """Returns the file that holds a sample, for messages."""

    def where(self, position: int) -> str:
        """Returns where the sample is listed, or its place in the file, for messages."""

    def read(self, position: int) -> bytes | memoryview:
        """Returns the encoded image.

        Raises:
            ppcls.data.transforms.numpy_ops.DecodeError: It is missing, empty, damaged, or can't be read.
        """


def read_index(dataset: Dataset, class_num: int | None) -> Index:
    """Reads what a dataset holds; opens no image.

    Args:
        dataset: Its config.
        class_num: Number of classes of the model; None for labels that are any numbers from 0.

    Raises:
        UserError: No such folder, list or container, nothing in it, or entries that are wrong.
    """
    match dataset:
        case ImageNetDataset():
            listing = Path(dataset.cls_label_path)
            root, links = Path(dataset.image_root), dataset.follow_links
            return read_list(root, listing, dataset.delimiter, class_num, follow_links=links)
        case MultiLabelDataset():
            listing = Path(dataset.cls_label_path)
            root, links = Path(dataset.image_root), dataset.follow_links
            return read_list(root, listing, dataset.delimiter, class_num, follow_links=links, several=True)
        case ImageFolderDataset():
            return read_part(dataset, class_num)
        case RecordDataset():
            indexes = dataset.index_paths if isinstance(dataset, IndexedDataset) else None
            return read_records(_container(dataset), dataset.paths, indexes, class_num)
        case PythonDataset():
            return read_source(dataset.source, class_num)
    raise TypeError(f"no index of a {dataset.kind}")


def positive_rates(index: Index) -> NDArray[np.float32] | None:
    """Returns each class's share of images, [class_num]; None where images have one class each."""
    return index.labels.mean(axis=0, dtype=np.float64).astype(np.float32) if index.labels.ndim == 2 else None


def describe_index(index: Index) -> str:
    """Returns a text that tells data sets apart: by all labels, and a thousand names spread evenly."""
    digest = hashlib.blake2b(np.ascontiguousarray(index.labels).tobytes(), digest_size=6)
    for position in np.linspace(0, len(index) - 1, min(len(index), _NAMES)).astype(int).tolist():
        digest.update(index.name(position).encode("utf-8", "surrogateescape") + b"\0")
    return f"{len(index)} samples ({digest.hexdigest()})"


def _container(dataset: RecordDataset) -> RecordFormat:
    match dataset:
        case WebDataset():
            return WebDatasetFormat(dataset.extensions)
        case TFRecordDataset():
            return TFRecordFormat(dataset.first_label)
        case RecordIODataset():
            return RecordIOFormat()
        case LMDBDataset():
            return LMDBFormat()
    raise TypeError(f"no container of a {dataset.kind}")
