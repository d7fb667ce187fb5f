"""Selects a record format by its name or by the suffix of a file name."""

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
    # LMDB first, because its shard is a folder, whose name may have any suffix.
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
