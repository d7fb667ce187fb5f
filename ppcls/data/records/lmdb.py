"""Reads and writes LMDB shards in the format of Caffe2.

A shard is a folder that contains ``data.mdb``. The value of each key is a ``TensorProtos`` message with an
encoded image and its label. A shard needs no index file, because LMDB stores its keys in order.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import lmdb
import numpy as np
from numpy.typing import NDArray

from ppcls.data.images.header import DecodeError
from ppcls.data.records.lmdb_pages import PageError, list_entries
from ppcls.data.records.messages import ProtobufError, TensorProto, TensorProtos, fields
from ppcls.data.records.shard import (
    BlockReader,
    ImageRecord,
    Int64Array,
    OpenFiles,
    RecordFormat,
    ShardFile,
    open_shard_file,
)
from ppcls.errors import UserError

DATA = "data.mdb"
# Caffe2's TensorProto.DataType
_INT32 = 2
_STRING = 4
# field numbers of TensorProto
_DATA_TYPE = 2
_STRING_DATA = 6
_PAGE = 4096  # bytes; a value occupies whole pages
_SPARE = 1 << 24  # initial size of a shard in bytes
_LABEL_END = 1 << 31  # a label is an int32
_MAX_LABEL_BYTES = 1024  # maximum size of the tensor of a label


@dataclass(frozen=True)
class LMDBShard:
    """Implements `ppcls.data.records.shard.Shard` for LMDB.

    Attributes:
        path: Folder of the shard.
        keys: [K] uint8, all keys, concatenated.
        ends: [N] int64, end of each key in ``keys``.
        values: [N, 2] int64, offset and size in bytes of each value in ``data.mdb``.
        labels: Label of each record, [N] int64.
        files: Reads the values.
    """

    path: Path
    keys: NDArray[np.uint8]
    ends: Int64Array
    values: Int64Array
    labels: Int64Array
    files: OpenFiles

    def read(self, number: int) -> bytes | memoryview:
        """Returns the encoded image of a record. See `Shard`."""
        offset, size = self.values[number].tolist()
        return _extract_image(memoryview(self.files.read(self.path / DATA, offset, size)))

    def where(self, number: int) -> str:
        """Returns the location of a record: its key."""
        begin = self.ends[number - 1] if number else 0
        return _format_key(self.keys[begin : self.ends[number]].tobytes())


@dataclass(frozen=True)
class LMDBFormat(RecordFormat):
    """Implements `ppcls.data.records.shard.RecordFormat` for LMDB."""

    name = "LMDB"
    suffix = ".lmdb"
    is_folder = True

    def write(self, path: Path, records: Iterable[ImageRecord]) -> None:
        """Writes a new shard. The keys are the numbers of the records. See `RecordFormat`."""
        try:
            self._write(path, records)
        except lmdb.Error as error:
            code = errno.ENOSPC if os.strerror(errno.ENOSPC) in str(error) else errno.EIO
            raise OSError(code, str(error), str(path)) from None

    def _write(self, path: Path, records: Iterable[ImageRecord]) -> None:
        used = 0
        size = _SPARE
        # The shard is new, so that no other process uses it: without a lock, no file lock.mdb stays beside
        # the data. The file is synced once, at the end.
        with lmdb.open(str(path), map_size=size, lock=False, sync=False) as environment:
            for number, record in enumerate(records):
                if record.label >= _LABEL_END:
                    raise UserError(
                        f"{path}: LMDB can't store {record.name}: expected a label below {_LABEL_END}, got "
                        f"{record.label}"
                    )
                value = _encode(record)
                used += len(value) + 2 * _PAGE
                # Only an upper limit: the file grows with the pages that are written.
                if used > size // 2:
                    size = 4 * used
                    environment.set_mapsize(size)
                # One transaction per record, because the size of the map cannot change within a transaction.
                # `append` needs keys in ascending order, which their fixed width ensures up to 10^8.
                with environment.begin(write=True) as transaction:
                    transaction.put(b"%08d" % number, value, append=True)
            environment.sync(True)

    def build_index(self, path: Path) -> None:
        """Returns None, because LMDB needs no index file."""

    def open(self, path: Path, index_path: Path, files: OpenFiles) -> LMDBShard:
        """Reads the keys and labels of a shard. See `RecordFormat`."""
        keys = bytearray()
        ends = list[int]()
        values = list[tuple[int, int]]()
        labels = list[int]()
        if not (path / DATA).exists():
            actual = "no such folder"
            if path.is_dir():
                hint = f"set for example {path}/*{self.suffix}"
                actual = f"a folder without this file; to use the LMDB folders in it, {hint}"
            raise UserError(f"{path}: expected an LMDB folder with {DATA}, found {actual}")
        with open_shard_file(path / DATA) as file:
            try:
                for key, offset, size in list_entries(file):
                    keys += key
                    ends.append(len(keys))
                    values.append((offset, size))
                    labels.append(_read_label(file, path, key, (offset, offset + size)))
            except PageError as error:
                raise UserError(f"{file.path}: {error}") from None
        if not labels:
            raise UserError(f"{path}: expected an LMDB with at least one record, found none")
        return LMDBShard(
            path,
            np.frombuffer(bytes(keys), np.uint8),
            np.array(ends, np.int64),
            np.array(values, np.int64),
            np.array(labels, np.int64),
            files,
        )


def _format_key(key: bytes) -> str:
    return f"key {key.decode(errors='backslashreplace')!r}"


def _encode(record: ImageRecord) -> bytes:
    image = TensorProto(dims=[1], data_type=_STRING, string_data=[record.image])
    label = TensorProto(dims=[1], data_type=_INT32, int32_data=[record.label])
    return bytes(TensorProtos(protos=[image, label]).SerializeToString())


def _read_label(file: ShardFile, path: Path, key: bytes, value: tuple[int, int]) -> int:
    """Returns the label, which is the second tensor of a value, without reading the image before it."""
    data = BlockReader(file)
    try:
        protos = [(begin, end) for number, begin, end in fields(data, *value) if number == 1]
        if len(protos) >= 2 and protos[1][1] - protos[1][0] <= _MAX_LABEL_BYTES:
            tensor = TensorProto.FromString(data[slice(*protos[1])])
            if tensor.data_type == _INT32 and len(tensor.int32_data) == 1:
                return int(tensor.int32_data[0])
    except ProtobufError:
        pass
    raise UserError(
        f"{path}, {_format_key(key)}: expected Caffe2's TensorProtos with an encoded image and one int32 "
        "label, found other data"
    )


def _extract_image(value: memoryview) -> memoryview:
    """Returns the encoded image in a value, as a view."""
    try:
        first = next((span for number, *span in fields(value, 0, len(value)) if number == 1), None)
        tensor = list(fields(value, *first)) if first else []
    except ProtobufError:
        raise DecodeError("expected a valid TensorProtos message as value, found other data") from None
    images = [(begin, end) for number, begin, end in tensor if number == _STRING_DATA]
    kinds = [bytes(value[begin:end]) for number, begin, end in tensor if number == _DATA_TYPE]
    if kinds != [bytes([_STRING])] or len(images) != 1:
        raise DecodeError("expected one encoded image (a STRING tensor) as the first tensor of the value")
    begin, end = images[0]
    if begin == end:
        raise DecodeError("the record has an image of 0 bytes")
    return value[begin:end]
