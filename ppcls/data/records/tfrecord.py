"""TFRecord: ``tf.train.Example`` records with ImageNet's feature names.

A record is its length (8 bytes), the length's checksum (4), the message, the message's checksum (4); see
TensorFlow, "TFRecord and tf.train.Example". TensorFlow is not needed.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from crc32c import crc32c

from ppcls.data.records.messages import Bytes, Example, Feature, ProtobufError, fields
from ppcls.data.records.shard import (
    FileShard,
    ImageRecord,
    OpenFiles,
    damaged,
    open_file,
    other_file,
    read_pairs,
)
from ppcls.data.transforms.numpy_ops import DecodeError
from ppcls.errors import UserError

_HEAD, _TAIL = 12, 4  # bytes around the message
_IMAGE, _LABEL = "image/encoded", "image/class/label"
_BYTES_LIST = 1  # the number of this kind of Feature
_BLOCK = 4096  # bytes read at once to find a label; an image behind it is passed over


@dataclass(frozen=True)
class TFRecordFormat:
    """A `ppcls.data.records.shard.RecordFormat`.

    Attributes:
        first_label: What the records have for the first class.
    """

    first_label: int = 0
    name = "TFRecord"
    suffix = ".tfrecord"
    in_folders = False

    def write(self, path: Path, records: Iterable[ImageRecord]) -> None:
        """Writes a new shard."""
        with path.open("xb") as file:
            for record in records:
                message = _encode(record, record.label + self.first_label)
                length = struct.pack("<Q", len(message))
                file.write(length + _checksum(length) + message + _checksum(message))

    def index(self, path: Path) -> str:
        """Returns lines of ``offset size``, as DALI's tfrecord2idx writes them."""
        lines = []
        with open_file(path) as file:
            end = os.fstat(file.fileno()).st_size
            offset = 0
            while offset < end:
                size = _size(path, os.pread(file.fileno(), _HEAD, offset), offset, end)
                lines.append(f"{offset} {size}\n")
                offset += size
        if not lines:
            raise UserError(f"{path}: the file is empty; expected TFRecord records")
        return "".join(lines)

    def open(self, path: Path, index_path: Path, files: OpenFiles) -> FileShard:
        """Reads the index and the labels."""
        offsets, sizes = read_pairs(index_path, path, "'offset size'").T
        with open_file(path) as file:
            end = os.fstat(file.fileno()).st_size
            if int((offsets + sizes).max()) != end:
                raise other_file(
                    index_path, path, f"it ends at byte {(offsets + sizes).max()}, the file at {end}"
                )
            labels = [
                self._label(path, file.fileno(), int(offset), int(size))
                for offset, size in zip(offsets, sizes, strict=True)
            ]
        return FileShard(path, offsets, sizes, np.array(labels, np.int64), _image, files)

    def _label(self, path: Path, file: int, offset: int, size: int) -> int:
        data = _Window(file)
        head = data[offset : offset + _HEAD]
        if _size(path, head, offset, offset + size) != size:
            raise damaged(path, offset, f"a record of {size} bytes as its index says", "another length")
        try:
            label = _find_label(data, offset + _HEAD, offset + size - _TAIL)
        except ProtobufError as error:
            raise damaged(path, offset, "a tf.train.Example", f"other bytes ({error})") from None
        if label is None:
            raise damaged(path, offset, f"one whole number as feature {_LABEL!r}", "none, or several")
        return label - self.first_label


class _Window:
    """Bytes of a file by position, a block at a time."""

    def __init__(self, file: int) -> None:
        self._file, self._begin, self._block = file, 0, b""

    def __getitem__(self, part: slice) -> bytes:
        if not self._begin <= part.start <= part.stop <= self._begin + len(self._block):
            self._begin = part.start
            self._block = os.pread(self._file, max(_BLOCK, part.stop - part.start), part.start)
        return self._block[part.start - self._begin : part.stop - self._begin]


def _checksum(data: bytes | memoryview) -> bytes:
    """Returns the masked CRC-32C: rotated right by 15 bits, plus a constant."""
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _size(path: Path, head: bytes, offset: int, end: int) -> int:
    """Returns the bytes of the record that begins with ``head`` and must not go beyond ``end``."""
    if len(head) < _HEAD:
        raise damaged(path, offset, f"a record's head of {_HEAD} bytes", f"the file's end after {len(head)}")
    if _checksum(head[:8]) != head[8:]:
        raise damaged(
            path,
            offset,
            "a record's length with its checksum",
            "other bytes: damaged, compressed, or no TFRecord",
        )
    size = int(struct.unpack("<Q", head[:8])[0]) + _HEAD + _TAIL
    if offset + size > end:
        raise damaged(
            path, offset, f"a record of {size} bytes", f"the end after {end - offset}: it is cut short"
        )
    return size


def _encode(record: ImageRecord, label: int) -> bytes:
    """Returns the message, the label first: so it is found without reading the image."""
    example = Example()
    entry = example.features.feature.add(key=_LABEL)
    entry.value.int64_list.value.append(label)
    entry = example.features.feature.add(key="image/filename")
    entry.value.bytes_list.value.append(record.name.encode())
    entry = example.features.feature.add(key=_IMAGE)
    entry.value.bytes_list.value.append(record.image)
    return bytes(example.SerializeToString())


def _find_label(data: _Window, begin: int, end: int) -> int | None:
    for value in _find_feature(data, begin, end, _LABEL):
        values = Feature.FromString(data[value]).int64_list.value
        return int(values[0]) if len(values) == 1 else None
    return None


def _image(record: memoryview) -> memoryview:
    message = record[_HEAD:-_TAIL]
    if record[:8] != struct.pack("<Q", len(message)) or _checksum(message) != record[-_TAIL:]:
        raise DecodeError("the record's checksum does not fit; it is damaged")
    try:
        images = list(_find_images(message))
    except ProtobufError:
        raise DecodeError("the record is no tf.train.Example") from None
    if len(images) != 1:
        raise DecodeError(f"the record has no single image as feature {_IMAGE!r}")
    return message[images[0]]


def _find_images(message: memoryview) -> Iterator[slice]:
    """Yields where the images are: the values of a BytesList, which a feature of an Example is."""
    for value in _find_feature(message, 0, len(message), _IMAGE):
        for kind, first, last in fields(message, value.start, value.stop):
            if kind == _BYTES_LIST:
                yield from (slice(*each) for _, *each in fields(message, first, last))


def _find_feature(data: Bytes, begin: int, end: int, name: str) -> Iterator[slice]:
    """Yields where the values of the features of a name are in an Example; other features are passed over."""
    for _, features, features_end in fields(data, begin, end):
        for _, entry, entry_end in fields(data, features, features_end):
            parts = {number: slice(first, last) for number, first, last in fields(data, entry, entry_end)}
            if not parts.keys() >= {1, 2}:
                continue
            key = parts[1]
            if key.stop - key.start == len(name) and data[key] == name.encode():
                yield parts[2]
