"""Reads datasets of image files: from a list file, from file names, or from class folders."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ppcls.data.images.header import DecodeError
from ppcls.data.images.paths import NOT_REGULAR, find_unsafe_paths, read_regular_file
from ppcls.data.index.class_folders import find_class_folders
from ppcls.data.index.class_names import check_known_folders
from ppcls.errors import UserError, raise_line_errors
from ppcls.files import is_image_name, is_system_folder, read_regular, retry_io

_MAX_DIGITS = 18  # maximum number of digits of a label; Python does not parse thousands of digits
_MAX_CAMERA = 10**9 - 1
_MAX_PATH = 4095  # maximum length in bytes of a path that Linux opens
_MAX_INDEX = 1 << 32  # maximum size in bytes of all paths, which are padded to the longest one
_SHOWN = 80  # maximum number of characters that a message quotes


def read_image(path: bytes) -> bytes:
    """Reads an image file.

    Raises:
        DecodeError: The file is missing, is empty, is too large, is not a regular file, or can't be read.
    """
    try:
        data = retry_io(lambda: read_regular_file(path))
    except OSError as error:
        raise DecodeError((error.strerror or str(error)).lower()) from None
    if not data:
        raise DecodeError("the file is empty")
    return data


@dataclass(frozen=True)
class FileIndex:
    """Implements `ppcls.data.index.protocol.Index` for image files.

    Attributes:
        root: Folder of the images.
        paths: [N] paths relative to ``root``, as an array of fixed-width bytes, which worker processes can
            share.
        labels: [N] int64, 0..class_num - 1; or [N, class_num] float32, 0 or 1 for each class.
        source: List file or folder, for messages.
        lines: [N] int64, line numbers in ``source``, from 1; None for a folder.
        skipped: Number of files that a scan of folders skipped, per file name extension.
        cameras: [N] int64, number of the camera of each image; None if unknown.
    """

    root: Path
    paths: NDArray[np.bytes_]
    labels: NDArray[Any]
    source: Path
    lines: NDArray[np.int64] | None = None
    skipped: Mapping[str, int] = field(default_factory=dict)
    cameras: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.paths)

    def path(self, position: int) -> bytes:
        """Returns the full path of a sample, encoded for the file system."""
        return os.fsencode(self.root) + b"/" + bytes(self.paths[position])

    def path_block(self, positions: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Returns the full paths of samples as bytes, [N, L], padded with zeros to the longest path."""
        paths = np.char.add(os.fsencode(self.root) + b"/", self.paths[positions])
        return paths.view(np.uint8).reshape(len(positions), -1)

    def name(self, position: int) -> str:
        """Returns the full path of a sample, for messages."""
        return os.fsdecode(self.path(position))

    def where(self, position: int) -> str:
        """Returns the location of a sample in the dataset, such as ``train_list.txt, line 7``."""
        return f"{self.source}, line {self.lines[position]}" if self.lines is not None else str(self.source)

    def read(self, position: int) -> bytes:
        """Returns the contents of a sample's file. See `read_image` for errors."""
        return read_image(self.path(position))


def read_list(
    root: Path,
    listing: Path,
    delimiter: str,
    class_num: int | None = None,
    *,
    follow_links: bool = False,
    labelled: Literal["once", "per class", "with cameras"] = "once",
) -> FileIndex:
    """Reads a list file without opening images.

    Args:
        root: Folder of the images.
        listing: List file. Each line has a path relative to ``root``, the delimiter and a label.
        delimiter: Text between path and label. Paths may contain it, because the last delimiter in a line
            ends the path.
        class_num: Number of classes of the model; None if any label >= 0 is valid.
        follow_links: Whether to allow links that lead out of ``root``.
        labelled: Format of the labels. ``once``: a class id. ``per class``: 0 or 1 for each class, such as
            ``0,1,1``. ``with cameras``: a class id, followed in all lines or in none by the delimiter and the
            number of the camera.

    Raises:
        UserError: The folder or the list is missing, or the list is empty or has invalid lines.
    """
    _check_folder(root)
    text = _read_text(listing, f"path{delimiter}label")
    multi_label = labelled == "per class"
    label_problem = _multi_label_problem if multi_label else _label_problem
    paths: list[bytes] = []
    labels: list[Any] = []
    lines: list[int] = []
    problems: list[str] = []
    cameras: list[int | None] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        camera = None
        if labelled == "with cameras":
            line, camera = _split_camera(line, delimiter)
        path, separator, label = line.rstrip().rpartition(delimiter)
        path = path.strip()
        label = label.strip()
        problem = _path_problem(path, separator, delimiter) or label_problem(label, class_num)
        if camera is not None and camera > _MAX_CAMERA:
            problem = problem or f"camera {camera}: expected at most {_MAX_CAMERA}"
        if problem:
            problems.append(f"{listing}, line {number}: {problem}")
            continue
        paths.append(os.fsencode(path))
        labels.append([flag.strip() == "1" for flag in label.split(",")] if multi_label else int(label))
        if multi_label and len(labels[-1]) != len(labels[0]):
            problem = f"found labels of {len(labels[-1])} classes, but line {lines[0]} has {len(labels[0])}"
            problems.append(f"{listing}, line {number}: {problem}")
        lines.append(number)
        cameras.append(camera)
        if (camera is None) != (cameras[0] is None):
            problem = f"expected a camera in all lines or in none, but line {lines[0]} differs from this line"
            problems.append(f"{listing}, line {number}: {problem}")
    raise_line_errors(problems)
    _check_length(listing, paths, lines, f"path{delimiter}label")
    index = FileIndex(
        root,
        np.array(paths),
        np.array(labels, np.float32 if multi_label else np.int64),
        listing,
        np.array(lines, np.int64),
        cameras=None if cameras[0] is None else np.array(cameras, np.int64),
    )
    _check_paths(index, follow_links)
    return index


def read_paths(root: Path, listing: Path, delimiter: str | None, *, follow_links: bool) -> FileIndex:
    """Reads a list file of paths without opening images. All labels are 0.

    Args:
        root: Folder of the images.
        listing: List file. Each line has a path relative to ``root``.
        delimiter: Text that ends the path in a line; None if lines contain only paths.
        follow_links: Whether to allow links that lead out of ``root``.

    Raises:
        UserError: The folder or the list is missing, or the list is empty or has invalid lines.
    """
    _check_folder(root)
    lines = {
        number: line.split(delimiter)[0].strip() if delimiter else line.strip()
        for number, line in enumerate(_read_text(listing, "path").split("\n"), start=1)
        if line.strip()
    }
    problems = {
        number: _path_problem(path, "", delimiter or "", labelled=False) for number, path in lines.items()
    }
    raise_line_errors([f"{listing}, line {number}: {text}" for number, text in problems.items() if text])
    paths = [os.fsencode(path) for path in lines.values()]
    _check_length(listing, paths, [*lines], "path")
    labels = np.zeros(len(paths), np.int64)
    numbers = np.array([*lines], np.int64)
    index = FileIndex(root, np.array(paths), labels, listing, numbers)
    _check_paths(index, follow_links)
    return index


def _read_text(listing: Path, form: str) -> str:
    """Returns the text of a list file, in which all lines end with a line feed.

    Args:
        listing: List file.
        form: Expected form of a line, for messages.
    """
    try:
        text = read_regular(listing).decode("utf-8-sig", "surrogateescape")
    except FileNotFoundError:
        raise UserError(f"{listing}: no such list file; expected lines of '{form}'") from None
    except OSError as error:
        raise UserError(f"{listing}: can't read this list file: {error.strerror}") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _check_length(listing: Path, paths: Sequence[bytes], lines: Sequence[int], form: str) -> None:
    """Raises `UserError` if a list is empty, or if its longest path is too long for the number of paths."""
    if not paths:
        raise UserError(f"{listing}: the list is empty; expected lines of '{form}'")
    longest = max(range(len(paths)), key=lambda at: len(paths[at]))
    if len(paths) * len(paths[longest]) > _MAX_INDEX:
        raise UserError(
            f"{listing}, line {lines[longest]}: a path of {len(paths[longest])} bytes is too long for a list "
            f"of {len(paths)} images: expected at most {_MAX_INDEX // len(paths)} bytes; shorten the path"
        )


def read_named_files(root: Path, pattern: str, class_num: int | None, relabel: bool) -> FileIndex:
    """Reads identities and cameras from the names of image files, without opening the files.

    Args:
        root: Folder of the images, ``*.jpg``.
        pattern: Regular expression for the beginning of a file name. Its first group is the identity, the
            second one the camera. Images with identity -1 are distractors and are ignored.
        class_num: Number of classes of the model; None if any label >= 0 is valid.
        relabel: Whether to replace the identities by consecutive labels from 0.

    Raises:
        UserError: The folder is missing or has no matching images, or an identity or camera is too large.
    """
    _check_folder(root)
    matches = {file.name: re.match(pattern, file.name) for file in sorted(root.glob("*.jpg"))}
    images = {name: match for name, match in matches.items() if match and int(match[1]) >= 0}
    if not images:
        raise UserError(f"{root}: no images with identities; expected names such as 0002_c1s1_000451_03.jpg")
    for name, match in images.items():
        if max(map(len, match.groups())) > _MAX_DIGITS:
            raise UserError(f"{root / name}: expected at most {_MAX_DIGITS} digits for identity and camera")
    labels = np.array([int(match[1]) for match in images.values()], np.int64)
    if relabel:
        labels = np.unique(labels, return_inverse=True)[1].reshape(-1).astype(np.int64)
    if class_num is not None and labels.max() >= class_num:
        count = len(np.unique(labels))
        raise UserError(
            f"{root}: {count} identities with labels up to {labels.max()}, but the head's class_num is "
            f"{class_num}; expected at least {labels.max() + 1}"
        )
    cameras = np.array([int(match[2]) for match in images.values()], np.int64)
    paths = np.array([os.fsencode(name) for name in images])
    index = FileIndex(root, paths, labels, root, cameras=cameras)
    _check_paths(index, follow_links=False)
    return index


def read_folder(
    root: Path,
    extensions: tuple[str, ...],
    class_num: int | None = None,
    *,
    class_names: Sequence[str] | None = None,
    follow_links: bool = False,
) -> FileIndex:
    """Finds the images of class folders without opening them.

    Args:
        root: Folder with one subfolder per class.
        extensions: File name extensions of images, in lower case.
        class_num: Number of classes of the model; None to accept any number.
        class_names: Names of the subfolders in the order of their labels. Some subfolders may be missing.
            None numbers the subfolders in sorted order.
        follow_links: Whether to allow links that lead out of ``root``.

    Raises:
        UserError: The folder is missing or has no images, has a subfolder that is not in ``class_names``, or
            the number of classes differs from ``class_num``.
    """
    _check_folder(root)
    classes = find_class_folders(root)
    if not classes:
        raise UserError(f"{root}: expected one subfolder per class, found none")
    names = tuple(classes if class_names is None else class_names)
    if class_num is not None and len(names) != class_num:
        number = f"found {len(names)} class folders" if class_names is None else f"{len(names)} class_names"
        raise UserError(
            f"{root}: {number}, but Arch.class_num is {class_num}; set it to {len(names)}, or to auto to "
            "count them"
        )
    check_known_folders(root, tuple(classes), names)
    labels_by_name = {name: label for label, name in enumerate(names)}
    paths: list[bytes] = []
    labels: list[int] = []
    skipped: Counter[str] = Counter()
    for name, place in [(name, place) for name, places in classes.items() for place in places]:
        for folder, folders, files in os.walk(root / place):
            folders[:] = sorted(below for below in folders if not is_system_folder(below))
            relative = Path(folder).relative_to(root)
            images = sorted(file for file in files if is_image_name(file, extensions))
            if len(images) < len(files):
                skipped.update(count_skipped(files, extensions))
            paths += [os.fsencode(relative / file) for file in images]
            labels += [labels_by_name[name]] * len(images)
    if not paths:
        raise UserError(f"{root}: no images; expected files that end in {', '.join(extensions)}")
    index = FileIndex(root, np.array(paths), np.array(labels, np.int64), root, skipped=dict(skipped))
    _check_paths(index, follow_links)
    return index


def count_skipped(files: Sequence[str], extensions: tuple[str, ...]) -> Counter[str]:
    """Counts files without one of the extensions, per extension such as ``.gif``. Ignores hidden files."""
    others = (file for file in files if not file.lower().endswith(extensions) and not file.startswith("."))
    return Counter(Path(file).suffix.lower() or "without an ending" for file in others)


def describe_skipped(root: Path, skipped: Mapping[str, int]) -> str:
    """Returns a log line about skipped files that are not images, or "" if no file was skipped."""
    files = ", ".join(f"{count} {ending}" for ending, count in sorted(skipped.items()))
    return f"{root}: skipped files that are not images of a known format: {files}" if files else ""


def list_files(files: Sequence[Path]) -> FileIndex:
    """Returns an index of the files. All labels are 0."""
    root = Path(os.path.commonpath([file.absolute().parent for file in files]))
    paths = np.array([os.fsencode(file.absolute().relative_to(root)) for file in files])
    return FileIndex(root, paths, np.zeros(len(files), np.int64), root)


def _split_camera(line: str, delimiter: str) -> tuple[str, int | None]:
    """Splits a line into path with label, and the camera number, which is None if there is no camera."""
    rest, _, camera = line.rstrip().rpartition(delimiter)
    _, separator, label = rest.rstrip().rpartition(delimiter)
    if not (separator and re.fullmatch("-?[0-9]+", label.strip()) and re.fullmatch("[0-9]+", camera.strip())):
        return line, None
    return rest, int(camera.strip()[:_MAX_DIGITS])


def _check_folder(root: Path) -> None:
    if not root.is_dir():
        raise UserError(f"{root}: no such folder; set image_root to the folder of the images")


def _check_paths(index: FileIndex, follow_links: bool) -> None:
    """Raises `UserError` for links that lead out of the folder, and for special files.

    An untrusted archive may contain such links. Pipes would block DALI.
    """
    links, special = find_unsafe_paths(index.root, map(bytes, index.paths), follow_links=follow_links)
    raise_line_errors(
        [
            f"{index.where(at)}: {index.name(at)} is a link that leads out of {index.root}; if you trust it, "
            "set follow_links: True"
            for at in links
        ]
        + [f"{index.where(at)}: {index.name(at)} is {NOT_REGULAR}; remove it" for at in special]
    )


def _path_problem(path: str, separator: str, delimiter: str, *, labelled: bool = True) -> str | None:
    if not path and not labelled:
        return f"expected a path before {delimiter!r}, got an empty path"
    if labelled and not (separator and path):
        return f"expected 'path{delimiter}label', got no label after {delimiter!r}; is the delimiter right?"
    if "\0" in path:
        return "expected a path without zero bytes, found one"
    if (size := len(os.fsencode(path))) > _MAX_PATH:
        return f"a path of {size} bytes, {path[:_SHOWN]!r}…; expected at most {_MAX_PATH} bytes"
    if path.startswith("/") or ".." in path.split("/"):
        return f"path {path!r} leads out of image_root; expected a path below image_root"
    return None


def _label_problem(label: str, class_num: int | None) -> str | None:
    if not re.fullmatch("-?[0-9]+", label):
        hint = "for several labels use MultiLabelDataset" if "," in label else "number the classes from 0"
        return f"expected a whole number as label, got {label[:_SHOWN]!r}; {hint}"
    if len(label) <= _MAX_DIGITS and int(label) >= 0 and (class_num is None or int(label) < class_num):
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
        return f"expected labels of {class_num} classes (Arch.class_num), got {len(flags)}"
    return None
