"""LMDB as Caffe2 fills it: each key has ``TensorProtos`` with the encoded image and its label.

A shard is a folder with ``data.mdb``. It needs no index file, because LMDB stores its keys in order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

import lmdb
import numpy as np
from numpy.typing import NDArray

from ppcls.data.images.header import DecodeError
from ppcls.data.records.messages import ProtobufError, TensorProto, TensorProtos, fields
from ppcls.data.records.shard import ImageRecord, Int64Array, OpenFiles, RecordFormat
from ppcls.errors import UserError

DATA = "data.mdb"
_INT32, _STRING = 2, 4  # Caffe2's TensorProto.DataType
_DATA_TYPE, _STRING_DATA = 2, 6  # field numbers of TensorProto
_PAGE = 4096  # bytes; a value uses whole pages
_SPARE = 1 << 24  # bytes
_LABEL_END = 1 << 31
# LMDB can open a path only once per process, but training and evaluation may read the same one.
_ENVIRONMENTS: WeakValueDictionary[Path, lmdb.Environment] = WeakValueDictionary()


@dataclass(frozen=True)
class LMDBShard:
    """A `ppcls.data.records.shard.Shard` in an LMDB.

    Attributes:
        path: Folder.
        keys: [K] uint8, all keys concatenated.
        ends: [N] int64, end of each key in ``keys``.
        labels: [N] int64.
        environment: The open LMDB.
    """

    path: Path
    keys: NDArray[np.uint8]
    ends: Int64Array
    labels: Int64Array
    environment: lmdb.Environment

    def read(self, number: int) -> bytes:
        """Returns an encoded image; see `Shard`."""
        try:
            with self.environment.begin(buffers=True) as transaction:
                value = transaction.get(self._key(number))
                if value is None:
                    raise DecodeError("the key no longer exists")
                return _extract_image(value)
        except lmdb.Error as error:
            raise DecodeError(f"LMDB can't read it: {error}") from None

    def where(self, number: int) -> str:
        """Returns the key of a record."""
        return _format_key(self._key(number))

    def _key(self, number: int) -> bytes:
        begin = self.ends[number - 1] if number else 0
        return self.keys[begin : self.ends[number]].tobytes()


@dataclass(frozen=True)
class LMDBFormat(RecordFormat):
    """The LMDB format."""

    name = "LMDB"
    suffix = ".lmdb"
    is_folder = True

    def write(self, path: Path, records: Iterable[ImageRecord]) -> None:
        """Writes a new shard with the record numbers as keys; see `RecordFormat`."""
        used, size = 0, _SPARE
        with lmdb.open(str(path), map_size=size, lock=False, sync=False) as environment:
            for number, record in enumerate(records):
                if record.label >= _LABEL_END:
                    raise UserError(f"{path}: LMDB can't store label {record.label} of {record.name}")
                value = _encode(record)
                used += len(value) + 2 * _PAGE
                if used > size // 2:
                    size = 4 * used
                    environment.set_mapsize(size)
                with environment.begin(write=True) as transaction:
                    transaction.put(b"%08d" % number, value, append=True)
            environment.sync(True)

    def build_index(self, path: Path) -> None:
        """Returns None, because LMDB needs no index file."""

    def open(self, path: Path, index_path: Path, files: OpenFiles) -> LMDBShard:
        """Reads the keys and the labels; see `RecordFormat`."""
        keys, ends, labels = bytearray(), [], []
        try:
            environment = _open_environment(path)
            _check_size(path, environment)
            with environment.begin(buffers=True) as transaction:
                for key, value in transaction.cursor():
                    keys += key
                    ends.append(len(keys))
                    labels.append(_read_label(path, bytes(key), value))
        except lmdb.Error as error:
            found = str(error)
            if path.is_dir() and not (path / DATA).exists():
                found = (
                    f"a folder without it; for LMDB folders in it, write for example {path}/*{self.suffix}"
                )
            raise UserError(f"{path}: expected an LMDB folder with {DATA}, found: {found}") from None
        if not labels:
            raise UserError(f"{path}: the LMDB is empty")
        return LMDBShard(
            path,
            np.frombuffer(bytes(keys), np.uint8),
            np.array(ends, np.int64),
            np.array(labels, np.int64),
            environment,
        )


def _open_environment(path: Path) -> lmdb.Environment:
    """Opens an LMDB for reading without locks, so that forked processes can continue to use it."""
    path = path.resolve()
    environment = _ENVIRONMENTS.get(path)
    if environment is None:
        environment = lmdb.open(str(path), readonly=True, lock=False, readahead=False, create=False)
        _ENVIRONMENTS[path] = environment
    return environment


def _check_size(path: Path, environment: lmdb.Environment) -> None:
    """Checks that the file has all its pages: reading a missing page would kill the process."""
    expected = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    size = (path.resolve() / DATA).stat().st_size
    if size < expected:
        raise UserError(f"{path}/{DATA}: expected {expected} bytes, found {size}; the file is cut short")


def _format_key(key: bytes) -> str:
    return f"key {key.decode(errors='backslashreplace')!r}"


def _encode(record: ImageRecord) -> bytes:
    image = TensorProto(dims=[1], data_type=_STRING, string_data=[record.image])
    label = TensorProto(dims=[1], data_type=_INT32, int32_data=[record.label])
    return bytes(TensorProtos(protos=[image, label]).SerializeToString())


def _read_label(path: Path, key: bytes, value: memoryview) -> int:
    """Returns the second tensor of a value without reading the first one, which is the image."""
    try:
        protos = [(begin, end) for number, begin, end in fields(value, 0, len(value)) if number == 1]
        if len(protos) >= 2:
            begin, end = protos[1]
            tensor = TensorProto.FromString(bytes(value[begin:end]))
            if tensor.data_type == _INT32 and len(tensor.int32_data) == 1:
                return int(tensor.int32_data[0])
    except ProtobufError:
        pass
    raise UserError(
        f"{path}, {_format_key(key)}: expected Caffe2's TensorProtos with an encoded image and one int32 "
        "label, found other bytes"
    )


def _extract_image(value: memoryview) -> bytes:
    """Copies only the image out of LMDB's memory."""
    try:
        first = next((span for number, *span in fields(value, 0, len(value)) if number == 1), None)
        tensor = list(fields(value, *first)) if first else []
    except ProtobufError:
        raise DecodeError("the value is not a TensorProtos message; it is damaged") from None
    images = [(begin, end) for number, begin, end in tensor if number == _STRING_DATA]
    kinds = [bytes(value[begin:end]) for number, begin, end in tensor if number == _DATA_TYPE]
    if kinds != [bytes([_STRING])] or len(images) != 1:
        raise DecodeError("expected one encoded image (a STRING tensor) as the first tensor of the value")
    begin, end = images[0]
    if begin == end:
        raise DecodeError("the image is empty")
    return bytes(value[begin:end])
