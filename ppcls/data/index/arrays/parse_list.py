"""Parses list files of any size into arrays.

NumPy parses the ordinary lines of a piece of the list together. Every other line, such as an invalid one, is
parsed by `LineFormat.parse`, which defines the rules. So both give the same result.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ppcls.data.index.arrays.list_line import MAX_CAMERA, MAX_DIGITS, LineFormat, ListEntry
from ppcls.errors import MAX_LINE_ERRORS, UserError, counted, raise_line_errors

_PIECE = 1 << 22  # bytes of a list that are parsed together
_MAX_LINE = 1 << 26  # maximum length of a line in bytes
_LONG = (
    512  # length in bytes from which a path is parsed alone, because a piece is padded to its longest path
)
_MAX_INDEX = 1 << 32  # maximum size in bytes of all paths, which are padded to the longest one
_MAX_PADDING = 2  # or maximum ratio of that size to the length of all paths
_BOM = b"\xef\xbb\xbf"
# First bytes in UTF-8 of the blanks that `str.strip` removes and that are not in ASCII.
_BLANK_STARTS = np.array([0xC2, 0xE1, 0xE2, 0xE3], np.uint8)
_BLANKS = np.zeros(256, np.bool_)
_BLANKS[[*range(9, 14), *range(28, 33)]] = True  # the blanks in ASCII
_POWERS = 10 ** np.arange(MAX_DIGITS, dtype=np.int64)

Offsets = NDArray[np.int64]


class ListArrays(NamedTuple):
    """The entries of a list.

    Attributes:
        paths: [N] bytes of fixed width.
        labels: [N] int64, or [N, C] float32, 0 or 1 for each class.
        lines: [N] int64, line numbers from 1.
        cameras: [N] int64; None if lines have no camera.
        folders: [F] different folders of the paths, sorted, as bytes of fixed width.
    """

    paths: NDArray[np.bytes_]
    labels: NDArray[Any]
    lines: NDArray[np.int64]
    cameras: NDArray[np.int64] | None
    folders: NDArray[np.bytes_]


class _Piece(NamedTuple):
    """The entries of a piece. See `ListArrays`."""

    paths: NDArray[np.bytes_]
    labels: NDArray[Any]
    lines: Offsets
    cameras: Offsets | None


class _Rows(NamedTuple):
    """Positions in a piece of the lines that are not empty.

    Attributes:
        begin: [n] start of each line.
        end: [n] end of each line.
        first: [n] first character that is not a blank.
        last: [n] position after the last character that is not a blank.
        numbers: [n] line numbers.
    """

    begin: Offsets
    end: Offsets
    first: Offsets
    last: Offsets
    numbers: Offsets


class _Fields(NamedTuple):
    """Fields of the lines of a piece.

    Attributes:
        ordinary: [n] whether a line was parsed. The fields of the others are undefined.
        path_end: [n] end of each path, which starts at `_Rows.first`.
        labels: [n] or [n, C] labels.
        cameras: [n] cameras; None without cameras.
    """

    ordinary: NDArray[np.bool_]
    path_end: Offsets
    labels: NDArray[Any]
    cameras: Offsets | None


def parse_list(listing: Path, file: BinaryIO, form: LineFormat) -> ListArrays:
    """Parses a list file. The memory is that of the result and of some pieces of 4 MiB.

    Args:
        listing: Path of the list, for messages.
        file: The list.
        form: Format of the lines.

    Raises:
        UserError: The list is empty or has invalid lines.
        OSError: The file can't be read.
    """
    parser = _ListParser(listing, form)
    for piece in _split_pieces(file, listing):
        parser.add(piece)
    return parser.finish()


def _split_pieces(file: BinaryIO, listing: Path) -> Iterator[bytes]:
    """Yields pieces of whole lines. All lines end with a line feed."""
    rest = b""
    start = True
    number = 0
    while True:
        data = file.read(_PIECE)
        piece = rest + data
        if start:
            piece = piece.removeprefix(_BOM)
            start = False
        held = b"\r" if data and piece.endswith(b"\r") else b""  # its line feed may be in the next piece
        if b"\r" in piece:
            piece = piece[: len(piece) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        end = piece.rfind(b"\n") + 1 if data else len(piece)
        rest = piece[end:] + held
        if len(rest) > _MAX_LINE:
            raise UserError(
                f"{listing}, line {number + piece[:end].count(10) + 1}: longer than {_MAX_LINE >> 20} MiB; "
                "is this a list file?"
            )
        if not data:
            if piece:
                yield piece if piece.endswith(b"\n") else piece + b"\n"
            return
        if end:
            number += piece[:end].count(b"\n")
            yield piece[:end]


@dataclass
class _ListParser:
    """Collects the entries of a list."""

    listing: Path
    form: LineFormat
    _line: int = 0
    _first: ListEntry | None = None
    _first_line: int = 0
    _problems: list[str] = field(default_factory=list)
    _problem_count: int = 0
    _pieces: list[_Piece] = field(default_factory=list)
    _folders: set[bytes] = field(default_factory=set)
    _path_bytes: int = 0
    _count: int = 0
    _longest: tuple[int, int] = (0, 0)  # length and line of the longest path

    def add(self, piece: bytes) -> None:
        """Parses the lines of a piece."""
        # Zeros on both sides, so that windows of fixed width stay inside.
        text = np.zeros(MAX_DIGITS + len(piece) + _LONG, np.uint8)
        text[MAX_DIGITS : MAX_DIGITS + len(piece)] = np.frombuffer(piece, np.uint8)
        rows = self._enter_roots(text, self._split_rows(text))
        if self._first is None:
            self._find_first(text, rows)
        if self._first is None or not len(rows.begin):
            return
        fields = self._parse_together(text, rows, self._first)
        others = self._parse_alone(text, rows, ~fields.ordinary)
        if not self._problem_count:
            self._append(text, rows, fields, others)

    def finish(self) -> ListArrays:
        """Returns the arrays. Each piece is released after it was copied.

        Raises:
            UserError: The list is empty or has invalid lines.
        """
        raise_line_errors(self._problems, self._problem_count)
        if self._first is None or not self._count:
            raise UserError(f"{self.listing}: the list is empty; expected lines of '{self.form}'")
        width, line = self._longest
        limit = max(_MAX_INDEX, _MAX_PADDING * self._path_bytes)
        if self._count * width > limit:
            raise UserError(
                f"{self.listing}, line {line}: a path of {width} bytes is too long for a list of "
                f"{counted(self._count, 'image')}: expected at most {limit // self._count} bytes; shorten "
                "the path"
            )
        several = isinstance(self._first.label, list)
        classes = (len(self._first.label),) if isinstance(self._first.label, list) else ()
        result = ListArrays(
            np.zeros(self._count, f"S{width}"),
            np.zeros((self._count, *classes), np.float32 if several else np.int64),
            np.zeros(self._count, np.int64),
            None if self._first.camera is None else np.zeros(self._count, np.int64),
            np.array(sorted(self._folders)),
        )
        start = 0
        self._pieces.reverse()
        while self._pieces:
            piece = self._pieces.pop()
            end = start + len(piece.paths)
            result.paths[start:end] = piece.paths
            result.labels[start:end] = piece.labels
            result.lines[start:end] = piece.lines
            if result.cameras is not None and piece.cameras is not None:
                result.cameras[start:end] = piece.cameras
            start = end
        return result

    def _split_rows(self, text: NDArray[np.uint8]) -> _Rows:
        end = np.flatnonzero(text == ord("\n"))
        begin = np.concatenate([[MAX_DIGITS], end[:-1] + 1])
        first = _skip_blanks(text, begin, end)
        last = _drop_blanks(text, first, end)
        numbers = self._line + 1 + np.arange(len(end))
        self._line += len(end)
        filled = np.flatnonzero(first < last)
        if len(filled) == len(end):
            return _Rows(begin, end, first, last, numbers)
        return _Rows(begin[filled], end[filled], first[filled], last[filled], numbers[filled])

    def _enter_roots(self, text: NDArray[np.uint8], rows: _Rows) -> _Rows:
        """Returns the rows without the folder of the images in front of absolute paths."""
        first = rows.first.copy()
        absolute = np.flatnonzero(text[first] == ord("/"))
        for root in self.form.roots:
            folder = np.frombuffer(os.fsencode(root), np.uint8)
            long = absolute[rows.last[absolute] - first[absolute] > len(folder)]
            if len(long):
                windows = np.lib.stride_tricks.sliding_window_view(text, len(folder))[first[long]]
                inside = (windows == folder).all(axis=1)
                first[long[inside]] += len(folder)
                absolute = np.setdiff1d(absolute, long[inside], assume_unique=True)
        return rows._replace(first=first)

    def _find_first(self, text: NDArray[np.uint8], rows: _Rows) -> None:
        """Finds the first valid line, whose form all other lines must have."""
        for row in range(len(rows.begin)):
            entry = self.form.parse(_line_text(text, rows, row))
            if isinstance(entry, ListEntry):
                self._first = entry
                self._first_line = int(rows.numbers[row])
                return
            self._add_problem(int(rows.numbers[row]), entry)

    def _parse_together(self, text: NDArray[np.uint8], rows: _Rows, first: ListEntry) -> _Fields:
        if self.form.labelled == "none":
            fields = self._cut_paths(text, rows)
        elif self.form.labelled == "per class":
            fields = self._cut_flags(text, rows, first)
        else:
            fields = self._cut_labels(text, rows, first)
        length = fields.path_end - rows.first
        fields.ordinary[(length <= 0) | (length > _LONG)] = False
        start = text[rows.first]
        fields.ordinary[(start == ord("/")) | np.isin(start, _BLANK_STARTS)] = False
        fields.ordinary[text[fields.path_end - 1] >= 0x80] = False
        _mark(fields.ordinary, rows, np.flatnonzero(text[MAX_DIGITS : rows.end[-1]] == 0) + MAX_DIGITS)
        dots = text == ord(".")
        _mark(fields.ordinary, rows, np.flatnonzero(dots[:-1] & dots[1:]))
        if sys.getfilesystemencoding() != "utf-8":
            _mark(fields.ordinary, rows, np.flatnonzero(text >= 0x80))
        return fields

    def _cut_paths(self, text: NDArray[np.uint8], rows: _Rows) -> _Fields:
        """Cuts lines without labels."""
        end = rows.last
        if self.form.delimiter:
            places = np.append(_find(text, os.fsencode(self.form.delimiter)), len(text))
            # The whole line is searched, so that a line that starts with the delimiter has an empty path.
            cut = places[np.searchsorted(places, rows.begin)]
            end = _drop_blanks(text, rows.first, np.maximum(np.minimum(rows.last, cut), rows.first))
        count = len(end)
        return _Fields(np.ones(count, np.bool_), end, np.zeros(count, np.int64), None)

    def _cut_labels(self, text: NDArray[np.uint8], rows: _Rows, first: ListEntry) -> _Fields:
        """Cuts lines with a class id, and with a camera if the first line has one."""
        places = _find(text, os.fsencode(self.form.delimiter or " "))
        size = len(os.fsencode(self.form.delimiter or " "))
        cut, ordinary = _last_place(places, rows.first, rows.last - size)
        numbers, valid = _parse_digits(text, _skip_blanks(text, cut + size, rows.last), rows.last)
        ordinary &= valid
        cameras = None
        if self.form.labelled == "with cameras":
            last = _drop_blanks(text, rows.first, cut)
            before, has_camera = _last_place(places, rows.first, last - size)
            if first.camera is None:
                ordinary &= ~has_camera
            else:
                cameras = numbers
                numbers, valid = _parse_digits(text, _skip_blanks(text, before + size, last), last)
                ordinary &= has_camera & valid & (cameras <= MAX_CAMERA)
                cut = before
        if self.form.class_num is not None:
            ordinary &= numbers < self.form.class_num
        return _Fields(ordinary, _drop_blanks(text, rows.first, cut), numbers, cameras)

    def _cut_flags(self, text: NDArray[np.uint8], rows: _Rows, first: ListEntry) -> _Fields:
        """Cuts lines with a 0 or 1 for each class."""
        assert isinstance(first.label, list)
        delimiter = os.fsencode(self.form.delimiter or " ")
        cut, ordinary = _last_place(_find(text, delimiter), rows.first, rows.last - len(delimiter))
        start = _skip_blanks(text, cut + len(delimiter), rows.last)
        width = 2 * len(first.label) - 1
        ordinary &= rows.last - start == width
        labels = np.zeros((len(start), len(first.label)), np.float32)
        chosen = np.flatnonzero(ordinary)
        if len(chosen):
            flags = np.lib.stride_tricks.sliding_window_view(text, width)[start[chosen]]
            ones = flags[:, ::2] == ord("1")
            valid = (ones | (flags[:, ::2] == ord("0"))).all(axis=1) & (flags[:, 1::2] == ord(",")).all(
                axis=1
            )
            labels[chosen] = ones
            ordinary[chosen[~valid]] = False
        return _Fields(ordinary, _drop_blanks(text, rows.first, cut), labels, None)

    def _parse_alone(
        self, text: NDArray[np.uint8], rows: _Rows, chosen: NDArray[np.bool_]
    ) -> dict[int, ListEntry | None]:
        """Returns the entries of the chosen rows; None for an empty line."""
        entries: dict[int, ListEntry | None] = {}
        for row in np.flatnonzero(chosen).tolist():
            number = int(rows.numbers[row])
            entry = self.form.parse(_line_text(text, rows, row))
            if isinstance(entry, ListEntry) and self._first is not None:
                difference = self.form.difference(entry, self._first, self._first_line)
                self._add_problem(number, difference)
                entries[row] = entry
            elif number >= self._first_line:  # `_find_first` reported the lines before
                self._add_problem(number, entry if isinstance(entry, str) else None)
                entries[row] = None
            else:
                entries[row] = None
        return {} if self._problem_count else entries

    def _add_problem(self, number: int, problem: ListEntry | str | None) -> None:
        if isinstance(problem, str):
            self._problem_count += 1
            if len(self._problems) < MAX_LINE_ERRORS:
                self._problems.append(f"{self.listing}, line {number}: {problem}")

    def _append(
        self, text: NDArray[np.uint8], rows: _Rows, fields: _Fields, others: dict[int, ListEntry | None]
    ) -> None:
        """Adds the entries of a piece."""
        length = np.where(fields.ordinary, fields.path_end - rows.first, 0)
        for row, entry in others.items():
            length[row] = 0 if entry is None else len(entry.path)
        kept = np.flatnonzero(length)
        if not len(kept):
            return
        paths = _cut_windows(text, rows.first, np.where(fields.ordinary, length, 0), int(length.max()))
        for row, entry in others.items():
            if entry is not None:
                paths[row] = entry.path
                fields.labels[row] = entry.label
                if fields.cameras is not None and entry.camera is not None:
                    fields.cameras[row] = entry.camera
        longest = int(length.argmax())
        self._longest = max(self._longest, (int(length[longest]), int(rows.numbers[longest])))
        piece = _Piece(paths, fields.labels, rows.numbers, fields.cameras)
        if len(kept) < len(paths):
            piece = _Piece(*[None if array is None else array[kept] for array in piece])  # type: ignore[arg-type]
        self._folders |= _folders_of(piece.paths)
        self._pieces.append(_Piece(*[None if array is None else _to_pages(array) for array in piece]))  # type: ignore[arg-type]
        self._path_bytes += int(length.sum())
        self._count += len(kept)


def _to_pages(array: NDArray[Any]) -> NDArray[Any]:
    """Copies an array to memory pages of its own, which return to the system when the copy is deleted."""
    pages = mmap.mmap(-1, array.nbytes)
    copy = np.frombuffer(pages, array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _skip_blanks(text: NDArray[np.uint8], begin: Offsets, end: Offsets) -> Offsets:
    """Returns the positions of the first characters from ``begin`` that are not blanks, at most ``end``."""
    begin = begin.copy()
    rows = np.arange(len(begin))
    while len(rows):
        rows = rows[(begin[rows] < end[rows]) & _BLANKS[text[begin[rows]]]]
        begin[rows] += 1
    return begin


def _drop_blanks(text: NDArray[np.uint8], begin: Offsets, end: Offsets) -> Offsets:
    """Returns the ends of the texts without blanks at their ends, at least ``begin``."""
    end = end.copy()
    rows = np.arange(len(end))
    while len(rows):
        rows = rows[(begin[rows] < end[rows]) & _BLANKS[text[end[rows] - 1]]]
        end[rows] -= 1
    return end


def _find(text: NDArray[np.uint8], part: bytes) -> Offsets:
    """Returns the positions of all occurrences of ``part``, which may overlap."""
    count = len(text) - len(part) + 1
    equal = text[:count] == part[0]
    for at, byte in enumerate(part[1:], start=1):
        equal &= text[at : count + at] == byte
    return np.flatnonzero(equal)


def _last_place(places: Offsets, begin: Offsets, last: Offsets) -> tuple[Offsets, NDArray[np.bool_]]:
    """Returns the largest of ``places`` in each of the ranges ``begin..last``, and whether there is one.

    Where there is none, ``begin`` is returned.
    """
    at = np.searchsorted(places, last, side="right") - 1
    if not len(places):
        return begin, np.zeros(len(begin), np.bool_)
    valid = (at >= 0) & (places[at] >= begin)
    return np.where(valid, places[at], begin), valid


def _parse_digits(text: NDArray[np.uint8], begin: Offsets, end: Offsets) -> tuple[Offsets, NDArray[np.bool_]]:
    """Returns the numbers from ``begin`` to ``end``, and which of them are whole numbers of 1..18 digits."""
    length = end - begin
    valid = (length > 0) & (length <= MAX_DIGITS)
    values = np.zeros(len(begin), np.int64)
    for place in range(int(length[valid].max(initial=0))):
        digits = text[end - 1 - place] - np.uint8(ord("0"))  # other characters become values above 9
        inside = place < length
        valid &= (digits <= 9) | ~inside
        # As int64: NumPy 1 would multiply bytes by a number in the narrowest type that holds the number.
        values += np.where(inside, digits, 0).astype(np.int64) * _POWERS[place]
    return values, valid


def _cut_windows(text: NDArray[np.uint8], begin: Offsets, length: Offsets, width: int) -> NDArray[np.bytes_]:
    """Returns texts as bytes of fixed width."""
    used = max(int(length.max(initial=0)), 1)
    cut = np.zeros((len(begin), width), np.uint8)
    cut[:, :used] = np.lib.stride_tricks.sliding_window_view(text, used)[begin]
    column = np.arange(used, dtype=np.uint16)  # small integers are compared faster
    cut[:, :used] *= (column < length.astype(np.uint16)[:, None]).view(np.uint8)
    return cut.view(f"S{width}").reshape(len(begin))


def _folders_of(paths: NDArray[np.bytes_]) -> set[bytes]:
    """Returns the different folders of the paths."""
    text = paths.view(np.uint8).reshape(len(paths), -1)
    slash = text == ord("/")
    width = text.shape[1]
    length = np.where(slash.any(axis=1), width - 1 - slash[:, ::-1].argmax(axis=1), 0)
    # Neighbours often have the same folder. Only the first of them is kept.
    inside = np.arange(width) < length[:, None]
    folders = text * inside.view(np.uint8)
    new = np.ones(len(folders), np.bool_)
    new[1:] = (folders[1:] != folders[:-1]).any(axis=1)
    return set(np.ascontiguousarray(folders[new]).view(f"S{width}").reshape(-1).tolist())


def _mark(ordinary: NDArray[np.bool_], rows: _Rows, places: Offsets) -> None:
    """Marks the rows that contain one of the places as not ordinary."""
    if len(places):
        row = np.searchsorted(rows.begin, places, side="right") - 1
        ordinary[row[row >= 0]] = False


def _line_text(text: NDArray[np.uint8], rows: _Rows, row: int) -> str:
    return bytes(text[rows.begin[row] : rows.end[row]]).decode("utf-8", "surrogateescape")
