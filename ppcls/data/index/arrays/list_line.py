"""Parses one line of a list file, and describes what is wrong with it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ppcls.errors import counted

MAX_DIGITS = 18  # maximum number of digits of a label; Python does not parse thousands of digits
MAX_CAMERA = 10**9 - 1
MAX_PATH = 4095  # maximum length in bytes of a path that Linux opens
_SHOWN = 80  # maximum number of characters that a message quotes
_DELIMITERS = {"\t": "a tab", ";": "a semicolon", "|": "a vertical bar", " ": "a space", ",": "a comma"}

Labelled = Literal["once", "per class", "with cameras", "none"]


class ListEntry(NamedTuple):
    """The content of a line.

    Attributes:
        path: Path of the image.
        label: Class id, or 0 or 1 for each class.
        camera: Number of the camera; None if the line has none.
    """

    path: bytes
    label: int | list[bool]
    camera: int | None


@dataclass(frozen=True)
class LineFormat:
    """Format of the lines of a list.

    Attributes:
        delimiter: Text between path and label; None if lines contain only paths.
        labelled: See `ppcls.data.index.files.read_list`. ``none``: the line has no label, and the first
            delimiter ends the path.
        class_num: Number of classes of the model; None if any label >= 0 is valid.
        roots: Absolute paths of the folder of the images, which end with a slash. Absolute paths of images
            may start with one of them, which is removed.
    """

    delimiter: str | None
    labelled: Labelled
    class_num: int | None = None
    roots: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Returns the expected form of a line, for messages."""
        return "path" if self.labelled == "none" else f"path{self.delimiter}label"

    def parse(self, line: str) -> ListEntry | str | None:
        """Returns the content of a line, a description of what is wrong, or None for an empty line."""
        if not line.strip():
            return None
        if self.labelled == "none":
            path = line.split(self.delimiter)[0].strip() if self.delimiter else line.strip()
            if not path:
                return f"expected a path before {self.delimiter!r}, got an empty path"
            path = self._below_root(path)
            return self._path_problem(path) or ListEntry(os.fsencode(path), 0, None)
        delimiter = self.delimiter or " "
        camera = None
        if self.labelled == "with cameras":
            line, camera = _split_camera(line, delimiter)
        path, separator, label = line.rstrip().rpartition(delimiter)
        path = path.strip()
        label = label.strip()
        several = self.labelled == "per class"
        label_problem = _multi_label_problem if several else _label_problem
        if not (separator and path):
            hint = _other_delimiter(line, delimiter, label_problem)
            return f"expected 'path{delimiter}label', got no label after {delimiter!r}; {hint}"
        path = self._below_root(path)
        problem = self._path_problem(path) or label_problem(label, self.class_num)
        if camera is not None and camera > MAX_CAMERA:
            problem = problem or f"camera {camera}: expected at most {MAX_CAMERA}"
        if problem:
            return problem
        value = [flag.strip() == "1" for flag in label.split(",")] if several else int(label)
        return ListEntry(os.fsencode(path), value, camera)

    def _below_root(self, path: str) -> str:
        """Returns a path relative to the folder of the images, if it is an absolute path in this folder."""
        for root in self.roots:
            if path.startswith(root):
                return path.removeprefix(root).lstrip("/")
        return path

    def _path_problem(self, path: str) -> str | None:
        if "\0" in path:
            return "expected a path without zero bytes, found one"
        if (size := len(os.fsencode(path))) > MAX_PATH:
            return f"a path of {size} bytes, {path[:_SHOWN]!r}…; expected at most {MAX_PATH} bytes"
        if path.startswith("/"):
            folder = f" ({self.roots[0]})" if self.roots else ""
            return (
                f"path {path!r} leads out of image_root{folder}; set image_root to a folder that contains it"
            )
        if not path or ".." in path.split("/"):
            return f"path {path!r} leads out of image_root; expected a path below image_root"
        return None

    def difference(self, entry: ListEntry, first: ListEntry, number: int) -> str | None:
        """Returns in what the form of a line differs from that of the first one, whose number is given."""
        if isinstance(entry.label, list) and isinstance(first.label, list):
            if len(entry.label) != len(first.label):
                return (
                    f"found labels of {counted(len(entry.label), 'class')}, but line {number} has "
                    f"{len(first.label)}"
                )
        elif (entry.camera is None) != (first.camera is None):
            return f"expected a camera in all lines or in none, but line {number} differs from this line"
        return None


def _split_camera(line: str, delimiter: str) -> tuple[str, int | None]:
    """Splits a line into path with label, and the camera number, which is None if there is no camera."""
    rest, _, camera = line.rstrip().rpartition(delimiter)
    _, separator, label = rest.rstrip().rpartition(delimiter)
    if not (separator and re.fullmatch("-?[0-9]+", label.strip()) and re.fullmatch("[0-9]+", camera.strip())):
        return line, None
    return rest, int(camera.strip()[:MAX_DIGITS])


def read_delimiter(text: str) -> str:
    r"""Returns a delimiter, in which ``\t`` means a tab, because a shell passes on these two characters."""
    return text.replace("\\t", "\t")


def _other_delimiter(line: str, delimiter: str, label_problem: Callable[[str, None], str | None]) -> str:
    """Returns the hint for a line without the delimiter: the delimiter that the line seems to have.

    Args:
        line: The line.
        delimiter: The expected delimiter.
        label_problem: Function that returns what is wrong with the text of a label.
    """
    for other, name in _DELIMITERS.items():
        path, _, label = line.rstrip().rpartition(other)
        if other != delimiter and path.strip() and label_problem(label.strip(), None) is None:
            return f"this line has {name} before the label: set delimiter: {json.dumps(other)}"
    return "is the delimiter right?"


def _label_problem(label: str, class_num: int | None) -> str | None:
    if not re.fullmatch("-?[0-9]+", label):
        hint = "for several labels use MultiLabelDataset" if "," in label else "number the classes from 0"
        return f"expected a whole number as label, got {label[:_SHOWN]!r}; {hint}"
    if len(label) <= MAX_DIGITS and int(label) >= 0 and (class_num is None or int(label) < class_num):
        return None
    if class_num is None:
        return f"expected a label >= 0, got {label}"
    return f"label {label} is not in 0..{class_num - 1}; Arch.class_num is {class_num}"


def _multi_label_problem(label: str, class_num: int | None) -> str | None:
    flags = [flag.strip() for flag in label.split(",")]
    if wrong := next((flag for flag in flags if flag not in ("0", "1")), None):
        return f"expected a 0 or 1 for each class, separated by commas, got {wrong[:_SHOWN]!r}"
    if "" in flags:
        return "expected a 0 or 1 for each class, separated by commas, got an empty value"
    if class_num is not None and len(flags) != class_num:
        return f"expected labels of {counted(class_num, 'class')} (Arch.class_num), got {len(flags)}"
    return None
