"""Reads and writes TFRecord files with ``tf.train.Example`` messages, without TensorFlow.

The features have the names of TensorFlow's ImageNet records. A record consists of the length of the message
(8 bytes), the checksum of the length (4 bytes), the message, and the checksum of the message (4 bytes). See
TensorFlow, "TFRecord and tf.train.Example".
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from crc32c import crc32c

from ppcls.data.images.header import DecodeError
from ppcls.data.records.messages import Bytes, Example, Feature, ProtobufError, fields
from ppcls.data.records.shard import BlockReader, FileFormat, ImageRecord, IndexFile, Int64Array, ShardFile

# number of bytes before and after the message
_HEAD = 12
_TAIL = 4
_IMAGE = "image/encoded"
_LABEL = "image/class/label"
_BYTES_LIST = 1  # field number in Feature
_LABEL_END = 1 << 62  # an int64 minus `first_label` need not fit into int64
_MAX_LABEL_BYTES = 1024  # maximum size of the feature of a label


@dataclass(frozen=True)
class TFRecordFormat(FileFormat):
    """Implements the TFRecord format.

    The index has one line ``offset size`` per record, like the index of DALI's tfrecord2idx.

    Attributes:
        first_label: Label of the first class in the records, such as 1 for TensorFlow's ImageNet records.
    """

    first_label: int = 0
    name = "TFRecord"
    suffix = ".tfrecord"

    def write(self, path: Path, records: Iterable[ImageRecord]) -> None:
        """Writes a new shard. See `RecordFormat`."""
        with path.open("xb") as file:
            for record in records:
                message = _encode(record, record.label + self.first_label)
                length = struct.pack("<Q", len(message))
                file.write(length + _checksum(length) + message + _checksum(message))

    def index_lines(self, file: ShardFile) -> Iterator[str]:
        """Yields the line of each record in the index. See `FileFormat`."""
        offset = 0
        while offset < file.size:
            size = _record_size(file, file.read(offset, _HEAD), offset, file.size)
            yield f"{offset} {size}\n"
            offset += size

    def read_samples(self, file: ShardFile, index: IndexFile) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Returns offsets, sizes and labels of the records. See `FileFormat`."""
        offsets, sizes = index.parse_pairs("'offset size'").T
        if (end := int((offsets + sizes).max())) != file.size:
            raise index.mismatch(f"its last record ends at byte {end}, but the file ends at byte {file.size}")
        order = np.argsort(offsets)
        if (offsets[order][1:] < (offsets + sizes)[order][:-1]).any():
            raise index.mismatch("its records overlap")
        labels = [
            self._read_label(file, offset, size)
            for offset, size in zip(offsets.tolist(), sizes.tolist(), strict=True)
        ]
        return offsets, sizes, np.array(labels, np.int64)

    def extract_image(self, record: memoryview) -> memoryview:
        """Returns the encoded image in a record. See `FileFormat`."""
        message = record[_HEAD:-_TAIL]
        # The checksum is verified at each read: it takes 4 microseconds for an image of 110 KB, and decoding
        # takes more than a hundred times as long.
        if record[:8] != struct.pack("<Q", len(message)) or _checksum(message) != record[-_TAIL:]:
            raise DecodeError("the record is damaged: its length or checksum is wrong")
        try:
            images = list(_find_images(message))
        except ProtobufError:
            raise DecodeError("expected a tf.train.Example in the record, found other data") from None
        if len(images) != 1:
            raise DecodeError(f"expected one image as feature {_IMAGE!r}, found {len(images)}")
        return message[images[0]]

    def _read_label(self, file: ShardFile, offset: int, size: int) -> int:
        data = BlockReader(file)
        head = data[offset : offset + _HEAD]
        if _record_size(file, head, offset, offset + size) != size:
            raise file.damaged(offset, f"a record of {size} bytes according to the index", "another length")
        label = None
        try:
            for value in _find_feature(data, offset + _HEAD, offset + size - _TAIL, _LABEL):
                if value.stop - value.start > _MAX_LABEL_BYTES:
                    break
                values = Feature.FromString(data[value]).int64_list.value
                label = int(values[0]) - self.first_label if len(values) == 1 else None
                break
        except ProtobufError as error:
            raise file.damaged(offset, "a tf.train.Example", f"other data ({error})") from None
        if label is None or not -_LABEL_END < label < _LABEL_END:
            raise file.damaged(offset, f"one whole number as feature {_LABEL!r}", "none or several")
        return label


def _checksum(data: bytes | memoryview) -> bytes:
    """Returns the masked CRC-32C of TFRecord: the CRC rotated right by 15 bits, plus a constant."""
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _record_size(file: ShardFile, head: bytes, offset: int, end: int) -> int:
    """Returns the size in bytes of the record at ``offset``.

    Args:
        file: The shard.
        head: First bytes of the record.
        offset: Position of the record in the file.
        end: Position that the record must not exceed.
    """
    if len(head) < _HEAD:
        raise file.damaged(
            offset, f"a record header of {_HEAD} bytes", f"the end of the file after {len(head)} bytes"
        )
    if _checksum(head[:8]) != head[8:]:
        actual = "other data; the file is damaged, compressed or not a TFRecord file"
        raise file.damaged(offset, "a record's length with its checksum", actual)
    size = int(struct.unpack("<Q", head[:8])[0]) + _HEAD + _TAIL
    if offset + size > end:
        raise file.damaged(offset, f"a record of {size} bytes", f"only {end - offset} bytes")
    return size


def _encode(record: ImageRecord, label: int) -> bytes:
    """Returns the message of a record. The label comes first, so reading it does not need the image."""
    example = Example()
    example.features.feature.add(key=_LABEL).value.int64_list.value.append(label)
    example.features.feature.add(key="image/filename").value.bytes_list.value.append(record.name.encode())
    example.features.feature.add(key=_IMAGE).value.bytes_list.value.append(record.image)
    return bytes(example.SerializeToString())


def _find_images(message: memoryview) -> Iterator[slice]:
    """Yields the positions of the images in a message: the values of the image feature's BytesList."""
    for value in _find_feature(message, 0, len(message), _IMAGE):
        for kind, first, last in fields(message, value.start, value.stop):
            if kind == _BYTES_LIST:
                yield from (slice(*span) for _, *span in fields(message, first, last))


def _find_feature(data: Bytes, begin: int, end: int, name: str) -> Iterator[slice]:
    """Yields the positions of the values of a feature in an Example, and skips all other features.

    Args:
        data: Bytes that contain the Example.
        begin: Position of the first byte of the Example.
        end: Position after the last byte of the Example.
        name: Name of the feature.
    """
    for _, features, features_end in fields(data, begin, end):
        for _, entry, entry_end in fields(data, features, features_end):
            parts = {number: slice(first, last) for number, first, last in fields(data, entry, entry_end)}
            if not parts.keys() >= {1, 2}:
                continue
            key = parts[1]
            if key.stop - key.start == len(name) and data[key] == name.encode():
                yield parts[2]
