"""Reads and writes MXNet's RecordIO files.

A record contains MXNet's image header and an encoded image, and consists of one or more parts. A part
consists of the magic number (4 bytes), a word with flag and length (4 bytes), the content, and zeros up to a
multiple of 4 bytes. If the content of a record contains the magic number at a multiple of 4, the writer
removes it and starts a new part. So this number always marks the start of a part (dmlc-core, recordio.h).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ppcls.data.images.header import MAX_IMAGE_BYTES, DecodeError
from ppcls.data.records.shard import FileFormat, ImageRecord, IndexFile, Int64Array, ShardFile
from ppcls.errors import UserError

_MAGIC = struct.pack("<I", 0xCED7230A)
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)  # flags of a part
_HEAD = 8  # number of bytes before the content of a part
# Flag, label and two ids. The flag is the number of labels after this header; with 0, the label in the
# header is valid.
_IMAGE_HEAD = struct.Struct("<IfQQ")
_MAX_PART = 1 << 29  # maximum size of a part in bytes
_MAX_LABEL = 1 << 24  # float32 can't represent all larger integers


class _PartError(ValueError):
    """The bytes are not a valid part of a record."""


@dataclass(frozen=True)
class RecordIOFormat(FileFormat):
    """Implements the RecordIO format.

    The index has one line ``key<TAB>offset`` per record, like the index of MXNet's im2rec.
    """

    name = "RecordIO"
    suffix = ".rec"

    def write(self, path: Path, records: Iterable[ImageRecord]) -> None:
        """Writes a new shard. The ids are the numbers of the records. See `RecordFormat`."""
        with path.open("xb") as file:
            for number, record in enumerate(records):
                if record.label >= _MAX_LABEL or len(record.image) >= _MAX_PART // 2:
                    raise UserError(
                        f"{path}: RecordIO can't store {record.name}: labels must be below {_MAX_LABEL}, "
                        f"images smaller than {_MAX_PART // 2} bytes"
                    )
                file.writelines(_split_parts(_IMAGE_HEAD.pack(0, record.label, number, 0) + record.image))

    def index_lines(self, file: ShardFile) -> Iterator[str]:
        """Yields the line of each record in the index. See `FileFormat`."""
        offset = number = 0
        while offset < file.size:
            yield f"{number}\t{offset}\n"
            offset = _record_end(file, offset)
            number = number + 1

    def read_samples(self, file: ShardFile, index: IndexFile) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Returns offsets, sizes and labels of the records, in the order of the file. See `FileFormat`."""
        # The index has no sizes. im2rec may write shuffled records, but a record ends where the next one of
        # the file begins.
        offsets = np.sort(index.parse_pairs("'key<TAB>offset'")[:, 1])
        sizes = np.diff(offsets, append=file.size)
        if sizes.min() <= 0:
            raise index.mismatch(
                f"two records have the same offset, or the last offset, {offsets[-1]}, is beyond the end of "
                f"the file of {file.size} bytes"
            )
        labels = [
            _read_label(file, offset, size)
            for offset, size in zip(offsets.tolist(), sizes.tolist(), strict=True)
        ]
        return offsets, sizes, np.array(labels, np.int64)

    def extract_image(self, record: memoryview) -> bytes | memoryview:
        """Returns the encoded image in a record. See `FileFormat`."""
        try:
            content = _join_parts(record)
            size, _ = _parse_image_head(content)
        except _PartError as error:
            raise DecodeError(f"damaged record: {error}") from None
        return content[size:]


def _split_parts(content: bytes) -> Iterator[bytes]:
    """Yields the parts of a record, each with its header and padding."""
    cuts = []
    at = content.find(_MAGIC)
    while at >= 0:
        if at % 4 == 0:
            cuts.append(at)
        at = content.find(_MAGIC, at + (4 if at % 4 == 0 else 1))
    begins = [0, *(at + 4 for at in cuts)]
    ends = [*cuts, len(content)]
    for number, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        kind = _MIDDLE
        if number == 0:
            kind = _FIRST if cuts else _WHOLE
        elif number == len(cuts):
            kind = _LAST
        head = _MAGIC + struct.pack("<I", kind << 29 | end - begin)
        yield head + content[begin:end] + bytes(-(end - begin) % 4)


def _parse_part_head(head: bytes | memoryview) -> tuple[int, int]:
    """Returns the flag of a part and the size of its content in bytes."""
    if len(head) < _HEAD:
        raise _PartError(f"expected a part header of {_HEAD} bytes, found only {len(head)} bytes")
    if head[:4] != _MAGIC:
        raise _PartError(f"expected the magic number {_MAGIC.hex()}, found {head[:4].hex()}")
    word = struct.unpack("<I", head[4:_HEAD])[0]
    return word >> 29, word & (_MAX_PART - 1)


def _may_follow(kind: int, *, first: bool) -> bool:
    return kind in ((_WHOLE, _FIRST) if first else (_MIDDLE, _LAST))


def _record_end(file: ShardFile, offset: int) -> int:
    """Returns the end offset of the record at ``offset``. Reads only the headers of its parts."""
    first = True
    while True:
        try:
            kind, size = _parse_part_head(file.read(offset, _HEAD))
        except _PartError as error:
            raise UserError(f"{file.path}, byte {offset}: {error}") from None
        if not _may_follow(kind, first=first):
            raise file.damaged(
                offset, "a record" if first else "the next part of a record", f"a part with flag {kind}"
            )
        size += _HEAD + -size % 4
        if offset + size > file.size:
            actual = f"only {file.size - offset} bytes"
            raise file.damaged(offset, f"a part of {size} bytes", actual)
        offset = offset + size
        first = False
        if kind in (_WHOLE, _LAST):
            return offset


def _join_parts(record: bytes | memoryview) -> bytes | memoryview:
    """Returns the content of a record, without a copy if the record has a single part."""
    contents: list[bytes | memoryview] = []
    at = 0
    while True:
        kind, size = _parse_part_head(record[at : at + _HEAD])
        if not _may_follow(kind, first=not contents):
            raise _PartError(f"expected the next part of a record, found a part with flag {kind}")
        at += _HEAD
        if at + size > len(record):
            raise _PartError(f"expected a part of {size} bytes, found only {len(record) - at} bytes")
        contents.append(record[at : at + size])
        at += size + -size % 4
        if kind in (_WHOLE, _LAST):
            return contents[0] if len(contents) == 1 else _MAGIC.join(contents)


def _parse_image_head(content: bytes | memoryview) -> tuple[int, float]:
    """Returns the offset of the image in ``content``, and the label."""
    if len(content) < _IMAGE_HEAD.size:
        raise _PartError(
            f"expected an image header of {_IMAGE_HEAD.size} bytes, found only {len(content)} bytes"
        )
    flag, label, _, _ = _IMAGE_HEAD.unpack_from(content)
    if flag > 1:
        raise _PartError(f"expected one label, found {flag}")
    if flag == 1:
        if len(content) < _IMAGE_HEAD.size + 4:
            raise _PartError(
                "expected a label of 4 bytes after the image header, found the end of the record"
            )
        (label,) = struct.unpack_from("<f", content, _IMAGE_HEAD.size)
    return _IMAGE_HEAD.size + 4 * flag, label


def _read_label(file: ShardFile, offset: int, size: int) -> int:
    try:
        head = file.read(offset, min(_HEAD + _IMAGE_HEAD.size + 4, size))
        kind, length = _parse_part_head(head)
        if kind == _WHOLE:
            content: bytes | memoryview = head[_HEAD : _HEAD + length]
        elif size <= MAX_IMAGE_BYTES:  # the image header may contain the magic number and be split
            content = _join_parts(file.read(offset, size))
        else:
            raise _PartError(f"expected a record of at most {MAX_IMAGE_BYTES} bytes, found {size} bytes")
        _, label = _parse_image_head(content)
        if not label.is_integer() or abs(label) > _MAX_LABEL:
            raise _PartError(f"expected a whole number up to {_MAX_LABEL} as label, found {label}")
    except _PartError as error:
        raise UserError(f"{file.path}, byte {offset}: {error}") from None
    return int(label)
