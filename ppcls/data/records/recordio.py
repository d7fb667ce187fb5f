"""MXNet's RecordIO: images with MXNet's image header, in dmlc-core's framing.

A record is one part or several. A part is the magic number (4 bytes), flag and length in one word (4), the
bytes, zeros up to a multiple of 4. Where the content has the magic number on a multiple of 4 it is left
out and a new part begins, so that the number always begins a part (dmlc-core, recordio.h).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

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

_MAGIC = struct.pack("<I", 0xCED7230A)
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)  # what a part is
_HEAD = 8  # bytes before a part's content
_IMAGE_HEAD = struct.Struct("<IfQQ")  # flag (how many labels follow; 0: this one), label, two ids
_MOST = 1 << 29  # bytes of a part
_MOST_LABEL = 1 << 24  # a float32 counts no further


class _PartError(ValueError):
    """Bytes that are no part: what was expected, what was found."""


@dataclass(frozen=True)
class RecordIOFormat:
    """A `ppcls.data.records.shard.RecordFormat`."""

    name = "RecordIO"
    suffix = ".rec"
    in_folders = False

    def write(self, path: Path, records: Iterable[ImageRecord]) -> None:
        """Writes a new shard; ids count the records."""
        with path.open("xb") as file:
            for number, record in enumerate(records):
                if record.label >= _MOST_LABEL or len(record.image) >= _MOST // 2:
                    raise UserError(
                        f"{path}: RecordIO can't hold {record.name}: its labels go to {_MOST_LABEL}, "
                        f"its images to {_MOST // 2} bytes"
                    )
                file.writelines(_parts(_IMAGE_HEAD.pack(0, record.label, number, 0) + record.image))

    def index(self, path: Path) -> str:
        """Returns lines of ``key<TAB>offset``, as MXNet's im2rec writes them."""
        lines: list[str] = []
        with open_file(path) as file:
            end = os.fstat(file.fileno()).st_size
            offset = 0
            while offset < end:
                lines.append(f"{len(lines)}\t{offset}\n")
                offset = _behind(path, file.fileno(), offset, end)
        if not lines:
            raise UserError(f"{path}: the file is empty; expected RecordIO records")
        return "".join(lines)

    def open(self, path: Path, index_path: Path, files: OpenFiles) -> FileShard:
        """Reads the index and the labels; the order is that of the file."""
        offsets = np.sort(read_pairs(index_path, path, "'key<TAB>offset'")[:, 1])
        with open_file(path) as file:
            end = os.fstat(file.fileno()).st_size
            sizes = np.diff(offsets, append=end)
            if sizes.min() <= 0:
                raise other_file(
                    index_path, path, f"offsets up to {offsets[-1]}, each once, in a file of {end} bytes"
                )
            labels = [
                _label(path, file.fileno(), int(offset), int(size))
                for offset, size in zip(offsets, sizes, strict=True)
            ]
        return FileShard(path, offsets, sizes, np.array(labels, np.int64), _image, files)


def _parts(content: bytes) -> Iterator[bytes]:
    """Yields the framed parts of a record."""
    cuts = []
    at = content.find(_MAGIC)
    while at >= 0:
        if at % 4 == 0:
            cuts.append(at)
        at = content.find(_MAGIC, at + (4 if at % 4 == 0 else 1))
    begins, ends = [0, *(at + 4 for at in cuts)], [*cuts, len(content)]
    for number, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        kind = _MIDDLE
        if number == 0:
            kind = _FIRST if cuts else _WHOLE
        elif number == len(cuts):
            kind = _LAST
        yield (
            _MAGIC
            + struct.pack("<I", kind << 29 | end - begin)
            + content[begin:end]
            + bytes(-(end - begin) % 4)
        )


def _part(head: bytes | memoryview) -> tuple[int, int]:
    """Returns what a part is, and the bytes of its content."""
    if len(head) < _HEAD:
        raise _PartError(f"a part's head of {_HEAD} bytes, found the end after {len(head)}")
    if head[:4] != _MAGIC:
        raise _PartError(f"the magic number {_MAGIC.hex()}, found {head[:4].hex()}")
    word = struct.unpack("<I", head[4:_HEAD])[0]
    return word >> 29, word & (_MOST - 1)


def _follows(kind: int, *, first: bool) -> bool:
    return kind in ((_WHOLE, _FIRST) if first else (_MIDDLE, _LAST))


def _behind(path: Path, file: int, offset: int, end: int) -> int:
    """Returns the offset behind the record at ``offset``, looking at the heads of its parts only."""
    first = True
    while True:
        try:
            kind, size = _part(os.pread(file, _HEAD, offset))
        except _PartError as error:
            raise UserError(f"{path}, byte {offset}: expected {error}") from None
        if not _follows(kind, first=first):
            raise damaged(
                path, offset, "the next part of a record" if not first else "a record", f"part {kind}"
            )
        behind = offset + _HEAD + size + -size % 4
        if behind > end:
            raise damaged(
                path,
                offset,
                f"a part of {behind - offset} bytes",
                f"the end after {end - offset}: it is cut short",
            )
        offset, first = behind, False
        if kind in (_WHOLE, _LAST):
            return offset


def _content(record: bytes | memoryview) -> bytes | memoryview:
    """Joins the parts of a record; a view of the only one.

    Raises:
        _PartError: They are damaged.
    """
    contents: list[bytes | memoryview] = []
    at = 0
    while True:
        kind, size = _part(record[at : at + _HEAD])
        if not _follows(kind, first=not contents):
            raise _PartError(f"another part, found part {kind}")
        at += _HEAD
        if at + size > len(record):
            raise _PartError(f"{size} bytes, found {len(record) - at}")
        contents.append(record[at : at + size])
        at += size + -size % 4
        if kind in (_WHOLE, _LAST):
            return contents[0] if len(contents) == 1 else _MAGIC.join(contents)


def _image_head(content: bytes | memoryview) -> tuple[int, float]:
    """Returns how many bytes are before the image, and the label."""
    if len(content) < _IMAGE_HEAD.size:
        raise _PartError(f"an image header of {_IMAGE_HEAD.size} bytes, found {len(content)}")
    flag, label, _, _ = _IMAGE_HEAD.unpack_from(content)
    if flag > 1:
        raise _PartError(f"one label, found {flag}")
    if flag == 1:
        if len(content) < _IMAGE_HEAD.size + 4:
            raise _PartError("a label, found the end")
        (label,) = struct.unpack_from("<f", content, _IMAGE_HEAD.size)
    return _IMAGE_HEAD.size + 4 * flag, label


def _label(path: Path, file: int, offset: int, size: int) -> int:
    start = _HEAD + _IMAGE_HEAD.size + 4
    try:
        head = os.pread(file, min(start, size), offset)
        kind, length = _part(head)
        # Parts are joined first: the magic number may be in the header itself.
        content = head[_HEAD : _HEAD + length] if kind == _WHOLE else _content(os.pread(file, size, offset))
        _, label = _image_head(content)
        if not label.is_integer():
            raise _PartError(f"a whole number as label, found {label}")
    except _PartError as error:
        raise UserError(f"{path}, byte {offset}: expected {error}") from None
    return int(label)


def _image(record: memoryview) -> bytes | memoryview:
    try:
        content = _content(record)
        before, _ = _image_head(content)
    except _PartError as error:
        raise DecodeError(f"a damaged record: expected {error}") from None
    return content[before:]
