"""The formats by their names."""

from __future__ import annotations

from pathlib import Path

from ppcls.data.records.lmdb import LMDBFormat
from ppcls.data.records.recordio import RecordIOFormat
from ppcls.data.records.shard import Format
from ppcls.data.records.tfrecord import TFRecordFormat
from ppcls.data.records.webdataset import WebDatasetFormat
from ppcls.errors import UserError

FORMATS: dict[str, Format] = {
    "webdataset": WebDatasetFormat(),
    "tfrecord": TFRecordFormat(),
    "recordio": RecordIOFormat(),
    "lmdb": LMDBFormat(),
}
_ENDINGS = {".tar": "webdataset", ".tfrecord": "tfrecord", ".tfrecords": "tfrecord", ".rec": "recordio"}


def format_of(path: Path) -> Format:
    """Returns the format that a file's ending tells.

    Raises:
        UserError: It tells none.
    """
    if path.suffix not in _ENDINGS:
        raise UserError(f"{path}: expected a name ending in {', '.join(_ENDINGS)}; say its --format")
    return FORMATS[_ENDINGS[path.suffix]]
