"""Writes ``metadata.csv`` from tables of other tools: CSV files of competitions, Roboflow and Label Studio.

Decisions:

- The column of the images is the one whose values are names of existing images, so its title does not matter.
- The column of the labels is never guessed from values. If its title is unknown and there are several, the
  user names it.
- Nothing is moved or overwritten: ``metadata.csv`` is a new file beside the images, which all commands read.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ppcls.data.index.class_folders import METADATA, read_metadata
from ppcls.errors import UserError, counted, raise_line_errors
from ppcls.files import IMAGE_EXTENSIONS, is_image_name, read_regular, write_text
from ppcls.files.outputs import SPREADSHEETS

# Usual titles of the column with the classes.
_LABELS = re.compile(
    r"labels?|class(_?name|_label)?|category(_name)?|target|species|breed|diagnosis|choice|tag|y",
    re.IGNORECASE,
)
_DELIMITERS = (",", ";", "\t", "|")
_ONE_HOT = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1}
_UPLOAD_PREFIX = re.compile(r"^[0-9a-f]{8}-")  # Label Studio adds it to the names of uploaded files
_BYTE_ORDER_MARKS = (b"\xff\xfe", b"\xfe\xff")

Row = Mapping[str, str]


@dataclass(frozen=True)
class LabelColumns:
    """Titles of columns that the user names; None to find them.

    Attributes:
        file: Column with the paths or names of the images.
        label: Column with the classes.
    """

    file: str | None = None
    label: str | None = None


@dataclass(frozen=True)
class LabelledFiles:
    """Images of a table, with their classes.

    Attributes:
        labels: Class of each image, by its path relative to the folder of the images.
        columns: Titles of the columns that were used.
        missing: Names of images that don't exist, with their places in the table.
    """

    labels: dict[str, str]
    columns: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def classes(self) -> list[str]:
        """Different classes, sorted."""
        return sorted(set(self.labels.values()))


def write_metadata(images: Path, files: LabelledFiles) -> Path:
    """Writes ``metadata.csv`` into the folder of the images, and returns its path.

    Raises:
        UserError: The folder has such a file, or a class has an invalid name.
    """
    for name in METADATA:
        if (images / name).exists():
            raise UserError(f"{images / name}: this file exists; remove or rename it to write a new one")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["file_name", "label"])
    writer.writerows(files.labels.items())
    file = images / METADATA[0]
    write_text(file, text.getvalue())
    try:
        read_metadata(images)
    except UserError:
        file.unlink()
        raise
    return file


def read_labels(table: Path, images: Path, columns: LabelColumns) -> LabelledFiles:
    """Finds the images of a table and their classes.

    Args:
        table: ``.csv``, ``.tsv``, ``.txt``, ``.json`` or ``.jsonl`` with one image per row.
        images: Folder of the images, which is searched with its subfolders.
        columns: Columns to use.

    Raises:
        UserError: The table can't be read, has no such columns, or has an image with several classes.
    """
    rows = _read_rows(table)
    finder = _ImageFinder(images)
    titles = list(dict.fromkeys(title for _, row in rows for title in row))
    file = _file_column(table, images, rows, titles, columns.file, finder)
    rest = [title for title in titles if title != file]
    one_hot = [] if columns.label else _one_hot_columns(rows, rest)
    label = None if one_hot else _label_column(table, rest, columns.label)
    classes: dict[str, str] = {}
    missing: list[str] = []
    problems: list[str] = []
    matches = [finder.find(row.get(file, "")) for _, row in rows]
    # Names may begin with any folder, such as that of another machine. But if some names contain folders that
    # exist, all must begin as these. Else, train/1.jpg would be test/1.jpg if there is no folder train.
    outside = {match.outside for match in matches if match is not None and match.names_folder}
    for (place, row), match in zip(rows, matches, strict=True):
        path = match.path if match and (not outside or match.outside in {"", *outside}) else None
        name = _one_hot_label(row, one_hot) if label is None else row.get(label, "")
        if path is None:
            missing.append(f"{place}: {row.get(file, '')!r}")
        elif not name:
            problems.append(f"{table}, {place}: expected one class, found {_describe(row, one_hot)}")
        elif classes.setdefault(path, name) != name:
            problems.append(
                f"{table}, {place}: {path} has the classes {classes[path]!r} and {name!r}, expected one; "
                "for images with several classes, see docs/objectives.md#several-labels-per-image"
            )
    raise_line_errors(problems)
    used = (file, *one_hot) if label is None else (file, label)
    return LabelledFiles(classes, used, tuple(missing))


def _read_rows(table: Path) -> list[tuple[str, Row]]:
    """Returns the place of each row, such as ``line 2``, and its cells without spaces at their ends."""
    suffix = table.suffix.lower()
    if suffix in SPREADSHEETS:
        raise UserError(
            f"{table}: this is a spreadsheet; save its table as a CSV file first, which Excel calls "
            "'CSV UTF-8'"
        )
    if suffix not in (".csv", ".tsv", ".txt", ".json", ".jsonl"):
        raise UserError(f"{table}: expected a table with the suffix .csv, .tsv, .txt, .json or .jsonl")
    try:
        content = read_regular(table)
    except OSError as error:
        raise UserError(f"{table}: can't read this table: {error.strerror}") from None
    try:
        text = content.decode("utf-16" if content.startswith(_BYTE_ORDER_MARKS) else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{table}: expected UTF-8, found the byte {content[error.start]:#04x} at position {error.start}; "
            "save the table as UTF-8, which Excel calls 'CSV UTF-8'"
        ) from None
    try:
        rows = list(_READERS.get(suffix, _csv_rows)(text))
    except (csv.Error, ValueError, RecursionError) as error:
        raise UserError(f"{table}: can't read this table: {error}") from None
    if not rows:
        raise UserError(f"{table}: expected a line with the titles of the columns, and a line per image")
    return rows


def _csv_rows(text: str) -> Iterable[tuple[str, Row]]:
    lines = io.StringIO(text, newline="").readlines()
    blank = next((number for number, line in enumerate(lines) if not line.isspace()), len(lines))
    header = "".join(lines[blank : blank + 1])
    delimiter = max(_DELIMITERS, key=header.count)
    reader = csv.DictReader(lines[blank:], delimiter=delimiter, skipinitialspace=True, strict=True)
    for row in reader:
        cells = {title.strip(): (cell or "").strip() for title, cell in row.items() if title is not None}
        if any(cells.values()):  # spreadsheets save empty rows below a table
            yield f"line {blank + reader.line_num}", cells


def _json_rows(text: str) -> Iterable[tuple[str, Row]]:
    """Yields the rows of a list of objects, or of an object of names and classes."""
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error}; a table with one object per line needs the suffix .jsonl") from None
    if isinstance(content, dict):
        content = [{"image": name, "label": label} for name, label in content.items()]
    if not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
        raise ValueError("expected a list of objects, such as [{'image': '1.jpg', 'label': 'cats'}]")
    for number, row in enumerate(content, start=1):
        yield f"item {number}", _cells(row)


def _json_line_rows(text: str) -> Iterable[tuple[str, Row]]:
    """Yields the rows of a table with one object per line."""
    for number, line in enumerate(io.StringIO(text), start=1):
        if line.isspace():
            continue
        try:
            row = json.loads(line.rstrip("\r\n"))
        except json.JSONDecodeError as error:
            raise ValueError(f"line {number}, column {error.colno}: {error.msg}") from None
        if not isinstance(row, dict):
            raise ValueError(
                f"line {number}: expected an object, such as {{'image': '1.jpg', 'label': 'cats'}}"
            )
        yield f"line {number}", _cells(row)


_READERS = {".json": _json_rows, ".jsonl": _json_line_rows}  # by suffix; `_csv_rows` for others


def _cells(row: Mapping[str, Any]) -> Row:
    return {title: _cell(cell).strip() for title, cell in _flat(row).items()}


def _cell(value: Any) -> str:
    return str(value) if isinstance(value, (str, int)) else "" if value is None else json.dumps(value)


def _flat(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a row, or the image and the choice of a task in Label Studio's complete export."""
    match row:
        case {"data": dict(data), "annotations": [{"result": [{"value": {"choices": [str(choice)]}}]}]}:
            return {**data, "choice": choice}
        case _:
            return row


class _Match(NamedTuple):
    """An image that a row of a table names.

    Attributes:
        path: Path of the image relative to the folder of the images.
        outside: Part of its name in the table before this path, such as the folder on another machine.
        names_folder: Whether the name contains the folder of the image: a subfolder, or that of all images.
    """

    path: str
    outside: str
    names_folder: bool


class _ImageFinder:
    """Finds images by the names in a table: paths, names with or without a suffix, or addresses."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve().name
        self._by_name: dict[str, set[str]] = defaultdict(set)
        for place, _, names in os.walk(folder):
            for name in names:
                if is_image_name(name, IMAGE_EXTENSIONS):
                    path = os.path.relpath(os.path.join(place, name), folder)  # noqa: PTH118
                    for key in (path, os.path.splitext(path)[0], name, os.path.splitext(name)[0]):  # noqa: PTH122
                        self._by_name[key].add(path)
                        self._by_name[key.casefold()].add(path)

    def find(self, text: str) -> _Match | None:
        """Returns the image with this name; None if none or several have it."""
        name = os.path.normpath(text.partition("?")[0].replace("\\", "/")) if text else ""
        parts = name.split("/")
        for at in range(len(parts)):  # the longest part of the name first
            key = "/".join(parts[at:])
            if path := self._only(key) or self._only(key.casefold()):
                names_folder = "/" in key or parts[:at][-1:] == [self._folder]
                return _Match(path, "/".join(parts[:at]), names_folder)
        path = self._only(_UPLOAD_PREFIX.sub("", parts[-1]))
        return None if path is None else _Match(path, "/".join(parts[:-1]), names_folder=False)

    def _only(self, key: str) -> str | None:
        paths = self._by_name.get(key, set())
        return next(iter(paths)) if len(paths) == 1 else None


def _file_column(
    table: Path,
    images: Path,
    rows: Sequence[tuple[str, Row]],
    titles: Sequence[str],
    named: str | None,
    finder: _ImageFinder,
) -> str:
    if named is not None:
        return _named_column(table, titles, named, "--file-column")
    matches = {title: sum(finder.find(row.get(title, "")) is not None for _, row in rows) for title in titles}
    best = max(titles, key=lambda title: matches[title], default="")
    if not matches.get(best):
        shown = next((row for _, row in rows), {})
        raise UserError(
            f"{table}: no column has names of images in {images}; expected names such as 1.jpg or "
            f"cats/1.jpg, found for example {dict(list(shown.items())[:4])}; set "
            "--images to the folder of the images"
        )
    return best


def _label_column(table: Path, titles: Sequence[str], named: str | None) -> str:
    if named is not None:
        return _named_column(table, titles, named, "--label-column")
    known = [title for title in titles if _LABELS.fullmatch(title.replace(" ", "_"))]
    choices = known or list(titles)
    if len(choices) == 1:
        return choices[0]
    choices_text = ", ".join(map(repr, titles)) or "no other column"
    raise UserError(
        f"{table}: which column has the classes? Set --label-column to one of them: {choices_text}"
    )


def _named_column(table: Path, titles: Sequence[str], named: str, option: str) -> str:
    if named in titles:
        return named
    raise UserError(f"{option} {named}: {table} has no such column; expected one of {', '.join(titles)}")


def _one_hot_columns(rows: Sequence[tuple[str, Row]], titles: Sequence[str]) -> list[str]:
    """Returns the columns of the classes if each has 0 or 1 in all rows; empty otherwise."""
    values = {row.get(title, "").lower() for _, row in rows for title in titles}
    return list(titles) if len(titles) > 1 and values <= set(_ONE_HOT) else []


def _one_hot_label(row: Row, titles: Sequence[str]) -> str:
    """Returns the class whose column has a 1; "" if none or several have."""
    names = [title for title in titles if _ONE_HOT[row.get(title, "").lower()]]
    return names[0] if len(names) == 1 else ""


def _describe(row: Row, one_hot: Sequence[str]) -> str:
    count = sum(_ONE_HOT.get(row.get(title, "").lower(), 0) for title in one_hot)
    return counted(count, "class") if one_hot else "an empty cell"
