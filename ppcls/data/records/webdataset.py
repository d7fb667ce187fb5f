"""WebDataset: tar files with an image and its label, ``0007.jpg`` and ``0007.cls``, one behind the other.

The index is DALI's (wds2idx, version 1.2): a line a sample, for each of its files extension, offset, size
and name. A sample's files share the name up to the first dot (webdataset/webdataset).
"""

from __future__ import annotations

import io
import os
import re
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from ppcls.config.sections.dataset import IMAGE_EXTENSIONS
from ppcls.data.records.shard import (
    FileShard,
    ImageRecord,
    OpenFiles,
    damaged,
    open_file,
    other_file,
    read_index_file,
)
from ppcls.errors import UserError, raise_line_errors

_VERSION = "v1.2"
_LABEL = "cls"
_BLOCK = 512  # bytes; headers and files in a tar begin on multiples
_NUMBER = re.compile("[0-9]{1,18}")
_MOST_LABEL = 18  # digits


class _SampleError(ValueError):
    """A sample that can't be used: what was expected, what was found."""


@dataclass(frozen=True)
class _File:
    extension: str
    offset: int
    size: int


@dataclass(frozen=True)
class WebDatasetFormat:
    """A `ppcls.data.records.shard.RecordFormat`.

    Attributes:
        extensions: Endings of images, in lower case, with their dot.
    """

    extensions: tuple[str, ...] = IMAGE_EXTENSIONS
    name = "WebDataset"
    suffix = ".tar"
    in_folders = False

    def write(self, path: Path, records: Iterable[ImageRecord]) -> None:
        """Writes a new shard, the same bytes for the same records."""
        with tarfile.open(path, "x:", format=tarfile.USTAR_FORMAT) as tar:
            for record in records:
                stem, dot, ending = record.name.rpartition(".")
                if "." in stem or f"{dot}{ending}".lower() not in self.extensions:
                    raise UserError(
                        f"{path}: WebDataset can't hold {record.name}: expected a name ending in one of "
                        f"{', '.join(self.extensions)}, without another dot"
                    )
                for name, data in ((record.name, record.image), (f"{stem}.{_LABEL}", b"%d" % record.label)):
                    member = tarfile.TarInfo(name)
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))

    def index(self, path: Path) -> str:
        """Returns the version and the number of samples, then a line a sample."""
        samples = groupby(_files(path), key=lambda member: _split(member.name)[0])
        lines = [" ".join(map(_entry, sample)) + "\n" for _, sample in samples]
        if not lines:
            raise UserError(
                f"{path}: no samples in this tar file; expected files such as 0.jpg and 0.{_LABEL}"
            )
        return "".join([f"{_VERSION} {len(lines)}\n", *lines])

    def open(self, path: Path, index_path: Path, files: OpenFiles) -> FileShard:
        """Reads the index and the labels."""
        samples = _read_samples(index_path, path)
        rows: list[tuple[int, int, int]] = []
        problems: list[str] = []
        with open_file(path) as file:
            end = os.fstat(file.fileno()).st_size
            for line, sample in enumerate(samples, start=2):
                last = max(each.offset + each.size for each in sample)
                if last > end:
                    raise other_file(index_path, path, f"line {line} goes to byte {last}, the file to {end}")
                try:
                    rows.append(self._row(file.fileno(), sample))
                except _SampleError as error:
                    problems.append(f"{index_path}, line {line}: expected {error}")
        raise_line_errors(problems)
        offsets, sizes, labels = np.array(rows, np.int64).T
        return FileShard(path, offsets, sizes, labels, _whole, files)

    def _row(self, file: int, sample: list[_File]) -> tuple[int, int, int]:
        """Returns offset and size of the image, and the label."""
        images = [each for each in sample if f".{each.extension.lower()}" in self.extensions]
        labels = [each for each in sample if each.extension == _LABEL]
        if len(images) != 1 or len(labels) != 1:
            found = ", ".join(f".{each.extension}" for each in sample)
            raise _SampleError(f"one image ({', '.join(self.extensions)}) and one .{_LABEL}, found {found}")
        text = os.pread(file, min(labels[0].size, _MOST_LABEL + 2), labels[0].offset).strip()
        if not text.isdigit() or len(text) > _MOST_LABEL:
            raise _SampleError(f"a whole number in the .{_LABEL} at byte {labels[0].offset}, found {text!r}")
        return images[0].offset, images[0].size, int(text)


def _whole(record: memoryview) -> memoryview:
    return record


def _split(name: str) -> tuple[str, str]:
    """Splits a path at the first dot of its last part."""
    folder, slash, file = name.rpartition("/")
    stem, _, extension = file.partition(".")
    return f"{folder}{slash}{stem}", extension


def _files(path: Path) -> list[tarfile.TarInfo]:
    """Returns the plain files of a tar file that can belong to a sample: not hidden, with an extension.

    Raises:
        UserError: No tar file, a compressed one, or one that is damaged or cut short.
    """
    try:
        with open_file(path) as file, tarfile.open(fileobj=file, mode="r:") as tar:
            members = tar.getmembers()
    except tarfile.TarError as error:
        raise UserError(f"{path}: expected an uncompressed tar file, whole; found: {error}") from None
    # tarfile takes a damaged header for the end.
    offset = members[-1].offset_data + (-(-members[-1].size // _BLOCK)) * _BLOCK if members else 0
    with open_file(path) as file:
        block = os.pread(file.fileno(), _BLOCK, offset)
    if block != bytes(_BLOCK):
        found = "other bytes" if block else "the file's end: it is cut short"
        raise damaged(path, offset, "a file's header, or a block of zeros at the end", found)
    kept = []
    for member in members:
        stem, extension = _split(member.name)
        if member.isreg() and not member.issparse() and stem.rpartition("/")[2] and extension:
            kept.append(member)
    return kept


def _entry(member: tarfile.TarInfo) -> str:
    """Returns a file's four words in the index; blanks in names become ``_``, for blanks end words."""
    name = "_".join(member.name.split()).encode(errors="replace").decode()
    return f"{_split(name)[1]} {member.offset_data} {member.size} {name}"


def _read_samples(index_path: Path, path: Path) -> list[list[_File]]:
    head, *lines = read_index_file(index_path, path).rstrip("\n").split("\n")
    if head.split() != [_VERSION, str(len(lines))] or not lines:
        raise UserError(
            f"{index_path}, line 1: expected '{_VERSION} {len(lines)}', version and number of samples, "
            f"found {head[:60]!r}; make it by: python tools/dataset.py index {path}"
        )
    return [_read_sample(line, f"{index_path}, line {number}") for number, line in enumerate(lines, start=2)]


def _read_sample(line: str, where: str) -> list[_File]:
    words = line.split()
    offsets, sizes = words[1::4], words[2::4]
    if not words or len(words) % 4 or not all(_NUMBER.fullmatch(each) for each in (*offsets, *sizes)):
        raise UserError(
            f"{where}: expected 'extension offset size name' for each file of the sample, found {line[:80]!r}"
        )
    return [
        _File(extension, int(offset), int(size))
        for extension, offset, size in zip(words[::4], offsets, sizes, strict=True)
    ]
