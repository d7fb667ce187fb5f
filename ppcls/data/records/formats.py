"""Selects a record format by its name, by the suffix of a file name, or for a dataset."""

from __future__ import annotations

from pathlib import Path

from ppcls.config.sections.dataset import (
    LMDBDataset,
    RecordDataset,
    RecordIODataset,
    TFRecordDataset,
    WebDataset,
)
from ppcls.data.records.lmdb import DATA, LMDBFormat
from ppcls.data.records.recordio import RecordIOFormat
from ppcls.data.records.shard import RecordFormat
from ppcls.data.records.tfrecord import TFRecordFormat
from ppcls.data.records.webdataset import WebDatasetFormat
from ppcls.errors import UserError

FORMATS: dict[str, RecordFormat] = {
    "webdataset": WebDatasetFormat(),
    "tfrecord": TFRecordFormat(),
    "recordio": RecordIOFormat(),
    "lmdb": LMDBFormat(),
}
_BY_SUFFIX = {".tar": "webdataset", ".tfrecord": "tfrecord", ".tfrecords": "tfrecord", ".rec": "recordio"}


def detect_format(path: Path, name: str | None = None) -> RecordFormat:
    """Returns the format of a shard.

    The format is LMDB if the shard contains ``data.mdb``. Otherwise ``name`` determines the format, or the
    suffix of the path if ``name`` is None.

    Args:
        path: Path of the shard.
        name: Name of the format, or None if the user did not specify it.

    Raises:
        UserError: The suffix is unknown, or the path is a folder of shards.
    """
    if name == "lmdb" or path.name == DATA or (path / DATA).exists():
        return FORMATS["lmdb"]
    if path.is_dir():
        raise UserError(
            f"{path}: expected a file, found a folder; pass the files in it, such as {path}/*.tar"
        )
    if name is not None:
        return FORMATS[name]
    if path.suffix not in _BY_SUFFIX:
        raise UserError(
            f"{path}: unknown suffix; expected a name that ends in {', '.join(_BY_SUFFIX)}; specify other "
            "formats with --format"
        )
    return FORMATS[_BY_SUFFIX[path.suffix]]


def dataset_format(dataset: RecordDataset) -> RecordFormat:
    """Returns the format of a dataset's shards, with the options of the dataset."""
    match dataset:
        case WebDataset():
            return WebDatasetFormat(dataset.extensions)
        case TFRecordDataset():
            return TFRecordFormat(dataset.first_label)
        case RecordIODataset():
            return RecordIOFormat()
        case LMDBDataset():
            return LMDBFormat()
    raise TypeError(f"no record format for {dataset.kind}")
