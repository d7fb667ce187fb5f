"""LMDB as Caffe2 fills it: ``TensorProtos`` of the encoded image and its label, by key.

A shard is a folder with ``data.mdb``. It needs no index file: its keys, in their order, are the index.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

import lmdb
import numpy as np
from numpy.typing import NDArray

from ppcls.data.records.messages import ProtobufError, TensorProto, TensorProtos, fields
from ppcls.data.records.shard import ImageRecord, OpenFiles
from ppcls.data.transforms.numpy_ops import DecodeError
from ppcls.errors import UserError

DATA = "data.mdb"
_INT32, _STRING = 2, 4  # Caffe2's TensorProto.DataType
_DATA_TYPE, _STRING_DATA = 2, 6  # numbers of TensorProto's fields
_PAGE = 4096  # bytes; a value takes whole ones
_SPARE = 1 << 24  # bytes
_MOST_LABEL = 1 << 31
# LMDB opens a path once a process, and training and evaluation may read the same one.
_OPEN: WeakValueDictionary[Path, lmdb.Environment] = WeakValueDictionary()


def _environment(path: Path) -> lmdb.Environment:
    """Opens for reading, without locks: nothing is changed, so forked processes may go on with it."""
    path = path.resolve()
    environment = _OPEN.get(path)
    if environment is None:
        environment = lmdb.open(str(path), readonly=True, lock=False, readahead=False, create=False)
        _OPEN[path] = environment
    return environment


@dataclass(frozen=True)
class LMDBShard:
    """A `ppcls.data.records.shard.Shard` of one LMDB.

    Attributes:
        path: Its folder.
        keys: [K] uint8, all keys, one behind the other.
        ends: [N] int64, where each key ends in ``keys``.
        labels: [N] int64.
        environment: The open LMDB.
    """

    path: Path
    keys: NDArray[np.uint8]
    ends: NDArray[np.int64]
    labels: NDArray[np.int64]
    environment: lmdb.Environment

    def read(self, number: int) -> bytes:
        """Returns an encoded image; see `Shard`."""
        try:
            with self.environment.begin(buffers=True) as transaction:
                value = transaction.get(self._key(number))
                if value is None:
                    raise DecodeError("the key is gone")
                return _image(value)
        except lmdb.Error as error:
            raise DecodeError(f"LMDB can't read it: {error}") from None

    def where(self, number: int) -> str:
        """Returns a record's key."""
        return f"key {self._key(number).decode(errors='backslashreplace')!r}"

    def _key(self, number: int) -> bytes:
        begin = self.ends[number - 1] if number else 0
        return self.keys[begin : self.ends[number]].tobytes()


@dataclass(frozen=True)
class LMDBFormat:
    """A `ppcls.data.records.shard.RecordFormat`."""

    name = "LMDB"
    suffix = ".lmdb"
    in_folders = True

    def write(self, path: Path, records: Iterable[ImageRecord]) -> None:
        """Writes a new shard, with numbers as keys."""
        used, size = 0, _SPARE
        with lmdb.open(str(path), map_size=size, lock=False, sync=False) as environment:
            for number, record in enumerate(records):
                if record.label >= _MOST_LABEL:
                    raise UserError(f"{path}: LMDB can't hold label {record.label} of {record.name}")
                value = _encode(record)
                used += len(value) + 2 * _PAGE
                if used > size // 2:
                    size = 4 * used
                    environment.set_mapsize(size)
                with environment.begin(write=True) as transaction:
                    transaction.put(b"%08d" % number, value, append=True)
            environment.sync(True)

    def index(self, path: Path) -> None:
        """Returns None: the keys are the index."""

    def open(self, path: Path, index_path: Path, files: OpenFiles) -> LMDBShard:
        """Reads the keys and the labels."""
        keys, ends, labels = bytearray(), [], []
        try:
            environment = _environment(path)
            _refuse_short(path, environment)
            with environment.begin(buffers=True) as transaction:
                for key, value in transaction.cursor():
                    keys += key
                    ends.append(len(keys))
                    labels.append(_label(path, bytes(key), value))
        except lmdb.Error as error:
            found = str(error)
            if path.is_dir() and not (path / DATA).exists():
                found = f"a folder without it; of folders in it, write {path}/*{self.suffix}, say"
            raise UserError(f"{path}: expected the folder of an LMDB, with {DATA}; found: {found}") from None
        if not labels:
            raise UserError(f"{path}: the LMDB is empty")
        return LMDBShard(
            path,
            np.frombuffer(bytes(keys), np.uint8),
            np.array(ends, np.int64),
            np.array(labels, np.int64),
            environment,
        )


def _refuse_short(path: Path, environment: lmdb.Environment) -> None:
    """Shows that the file has all its pages: looking at one that it has not would end the process."""
    whole = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    size = (path.resolve() / DATA).stat().st_size
    if size < whole:
        raise UserError(f"{path}/{DATA}: expected {whole} bytes, found {size}; it is cut short")


def _encode(record: ImageRecord) -> bytes:
    image = TensorProto(dims=[1], data_type=_STRING, string_data=[record.image])
    label = TensorProto(dims=[1], data_type=_INT32, int32_data=[record.label])
    return bytes(TensorProtos(protos=[image, label]).SerializeToString())


def _label(path: Path, key: bytes, value: memoryview) -> int:
    """Reads the second tensor, and leaves the first, the image, alone."""
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
        f"{path}, key {key.decode(errors='backslashreplace')!r}: expected Caffe2's TensorProtos of an "
        "encoded image and one int32 label, found other bytes"
    )


def _image(value: memoryview) -> bytes:
    """Copies the image out of LMDB's own memory, and nothing else."""
    try:
        first = next((span for number, *span in fields(value, 0, len(value)) if number == 1), None)
        tensor = list(fields(value, *first)) if first else []
    except ProtobufError:
        raise DecodeError("the value is no TensorProtos; it is damaged") from None
    images = [(begin, end) for number, begin, end in tensor if number == _STRING_DATA]
    kinds = [bytes(value[begin:end]) for number, begin, end in tensor if number == _DATA_TYPE]
    if kinds != [bytes([_STRING])] or len(images) != 1:
        raise DecodeError("the value has no encoded image (a STRING tensor) as its first tensor")
    begin, end = images[0]
    if begin == end:
        raise DecodeError("the image is empty")
    return bytes(value[begin:end])
