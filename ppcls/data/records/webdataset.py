"""Reads and writes WebDataset shards: tar files that contain each image and its label as two files.

The files of a sample have the same name up to the first dot, such as ``0007.jpg`` and ``0007.cls``
(webdataset/webdataset). The index has the format of DALI's wds2idx, version 1.2: one line per sample, with
extension, offset, size and name of each of the sample's files.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from ppcls.data.records.shard import (
    NUMBER,
    FileFormat,
    ImageRecord,
    IndexFile,
    Int64Array,
    ShardFile,
    how_to_rebuild,
)
from ppcls.data.records.tar import check_sizes, list_members
from ppcls.errors import UserError, raise_line_errors
from ppcls.files import IMAGE_EXTENSIONS

_VERSION = "v1.2"
_LABEL = "cls"
_BLOCK = 512  # bytes; headers and files in a tar file start at multiples of this size
_MAX_LABEL_DIGITS = 18  # all numbers with 18 digits fit into int64


class _SampleError(ValueError):
    """The sample does not have one image and one valid label."""


@dataclass(frozen=True)
class _Member:
    extension: str
    offset: int
    size: int


@dataclass(frozen=True)
class WebDatasetFormat(FileFormat):
    """Implements the WebDataset format.

    Attributes:
        extensions: File name extensions of images, in lower case and with the dot.
    """

    extensions: tuple[str, ...] = IMAGE_EXTENSIONS
    name = "WebDataset"
    suffix = ".tar"

    def write(self, path: Path, records: Iterable[ImageRecord]) -> None:
        """Writes a new shard. See `RecordFormat`."""
        with tarfile.open(path, "x:", format=tarfile.USTAR_FORMAT) as tar:
            for record in records:
                stem, dot, ending = record.name.rpartition(".")
                if "." in stem or f"{dot}{ending}".lower() not in self.extensions:
                    raise UserError(
                        f"{path}: WebDataset can't store {record.name}: expected a name with a single dot "
                        f"that ends in {', '.join(self.extensions)}"
                    )
                for name, data in ((record.name, record.image), (f"{stem}.{_LABEL}", b"%d" % record.label)):
                    member = tarfile.TarInfo(name)
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))

    def index_lines(self, file: ShardFile) -> list[str]:
        """Returns a line with version and number of samples, then one line per sample. See `FileFormat`."""
        samples = groupby(_list_members(file), key=lambda member: _split_name(member.name)[0])
        lines = [" ".join(map(_format_member, sample)) + "\n" for _, sample in samples]
        return [f"{_VERSION} {len(lines)}\n", *lines] if lines else []

    def read_samples(self, file: ShardFile, index: IndexFile) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Returns offsets and sizes of the images, and labels. See `FileFormat`."""
        rows: list[tuple[int, int, int]] = []
        problems: list[str] = []
        for line, sample in enumerate(_parse_index(index), start=2):
            end = max(member.offset + member.size for member in sample)
            if end > file.size:
                raise index.mismatch(
                    f"the sample of line {line} ends at byte {end}, but the file ends at byte {file.size}"
                )
            try:
                rows.append(self._read_sample(file, sample))
            except _SampleError as error:
                problems.append(f"{index.path}, line {line}: {error}")
        raise_line_errors(problems)
        offsets, sizes, labels = np.array(rows, np.int64).T
        return offsets, sizes, labels

    def extract_image(self, record: memoryview) -> memoryview:
        """Returns ``record``, which is the encoded image. See `FileFormat`."""
        return record

    def _read_sample(self, file: ShardFile, sample: list[_Member]) -> tuple[int, int, int]:
        """Returns the offset and size of a sample's image in bytes, and the label."""
        images = [member for member in sample if f".{member.extension.lower()}" in self.extensions]
        labels = [member for member in sample if member.extension == _LABEL]
        if len(images) != 1 or len(labels) != 1:
            extensions = ", ".join(f".{member.extension}" for member in sample)
            raise _SampleError(
                f"expected one image ({', '.join(self.extensions)}) and one .{_LABEL} file, "
                f"found {extensions}"
            )
        text = file.read(labels[0].offset, min(labels[0].size, _MAX_LABEL_DIGITS + 2)).strip()
        if not text.isdigit() or len(text) > _MAX_LABEL_DIGITS:
            raise _SampleError(
                f"expected a whole number in the .{_LABEL} file at byte {labels[0].offset}, found {text!r}"
            )
        return images[0].offset, images[0].size, int(text)


def _split_name(name: str) -> tuple[str, str]:
    """Splits a path at the first dot of the file name."""
    folder, slash, file = name.rpartition("/")
    stem, _, extension = file.partition(".")
    return f"{folder}{slash}{stem}", extension


def _list_members(file: ShardFile) -> Iterator[tarfile.TarInfo]:
    """Yields the files that can be part of a sample: regular, not hidden, and with an extension."""
    try:
        with (
            check_sizes(),
            file.path.open("rb") as stream,
            tarfile.open(fileobj=stream, mode="r:") as tar,
        ):
            members = list_members(tar)
            offset = tar.offset
    except (tarfile.TarError, ArithmeticError, LookupError, ValueError) as error:
        # tarfile raises ValueError and others for damaged pax headers and maps of sparse files.
        raise UserError(f"{file.path}: expected a complete, uncompressed tar file, found: {error}") from None
    # tarfile treats a damaged header like the end of the file.
    block = file.read(offset, _BLOCK)
    if block != bytes(_BLOCK):
        actual = "other data" if block else "the end of the file, which is truncated"
        raise file.damaged(offset, "a file header, or a block of zeros at the end", actual)
    for member in members:
        stem, extension = _split_name(member.name)
        if member.isreg() and not member.issparse() and stem.rpartition("/")[2] and extension:
            yield member


def _format_member(member: tarfile.TarInfo) -> str:
    """Returns the index entry of a file: extension, offset, size and name, with ``_`` for blanks."""
    name = "_".join(member.name.split()).encode(errors="replace").decode()
    return f"{_split_name(name)[1]} {member.offset_data} {member.size} {name}"


def _parse_index(index: IndexFile) -> list[list[_Member]]:
    head, *lines = index.text.rstrip("\n").split("\n")
    if head.split() != [_VERSION, str(len(lines))] or not lines:
        raise UserError(
            f"{index.path}, line 1: expected version and number of samples '{_VERSION} {len(lines)}', found "
            f"{head[:60]!r}; {how_to_rebuild(index.shard)}"
        )
    return [_parse_sample(line, f"{index.path}, line {number}") for number, line in enumerate(lines, start=2)]


def _parse_sample(line: str, where: str) -> list[_Member]:
    words = line.split()
    offsets = words[1::4]
    sizes = words[2::4]
    if not words or len(words) % 4 or not all(map(NUMBER.fullmatch, (*offsets, *sizes))):
        raise UserError(
            f"{where}: expected 'extension offset size name' for each file of the sample, found {line[:80]!r}"
        )
    return [
        _Member(extension, int(offset), int(size))
        for extension, offset, size in zip(words[::4], offsets, sizes, strict=True)
    ]
