"""The formats by their names."""

from __future__ import annotations

from pathlib import Path

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
_ENDINGS = {".tar": "webdataset", ".tfrecord": "tfrecord", ".tfrecords": "tfrecord", ".rec": "recordio"}


def detect_format(path: Path, name: str | None = None) -> RecordFormat:
    """Returns the format of a container: LMDB where its data are, else what is said, or the ending tells.

    Args:
        path: The container.
        name: Of the format; None where nobody says.

    Raises:
        UserError: The ending tells none, or the path is a folder of containers.
    """
    if name == "lmdb" or path.name == DATA or (path / DATA).exists():
        return FORMATS["lmdb"]
    if path.is_dir():
        raise UserError(f"{path}: is a folder; name the files in it, such as {path}/*.tar")
    if name is not None:
        return FORMATS[name]
    if path.suffix not in _ENDINGS:
        raise UserError(f"{path}: expected a name ending in {', '.join(_ENDINGS)}; say its --format")
    return FORMATS[_ENDINGS[path.suffix]]
