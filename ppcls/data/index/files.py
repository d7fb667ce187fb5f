"""Images that are files of their own: named in a list, or found in class folders."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppcls.data.index.class_names import list_class_folders
from ppcls.data.records.links import NOT_REGULAR, find_unsafe_paths, read_regular_file
from ppcls.data.transforms.numpy_ops import DecodeError
from ppcls.errors import UserError, raise_line_errors
from ppcls.files import retry_io

_SHOWN = 10
_MOST_DIGITS = 18  # of a label; Python refuses to read thousands


def read_image(path: bytes) -> bytes:
    """Reads a file.

    Raises:
        DecodeError: It is missing, empty, a folder, a pipe, or can't be read.
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
    """A `ppcls.data.index.read.Index` of image files.

    Attributes:
        root: Folder of the images.
        paths: [N] bytes, relative to ``root``; fixed-width, so that worker processes share the memory.
        labels: [N] int64, 0..class_num - 1; or [N, class_num] float32, 0 or 1 for each class.
        source: Where the samples are listed, for messages.
        lines: [N] int64 line numbers in ``source``, from 1; None for a folder.
    """

    root: Path
    paths: NDArray[np.bytes_]
    labels: NDArray[Any]
    source: Path
    lines: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.paths)

    def path(self, position: int) -> bytes:
        """Returns the whole path of a sample, as the file system spells it."""
        return os.fsencode(self.root) + b"/" + bytes(self.paths[position])

    def path_block(self, positions: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Returns the whole paths of samples as one array [N, L], padded with zero bytes as C strings are."""
        paths = np.char.add(os.fsencode(self.root) + b"/", self.paths[positions])
        return paths.view(np.uint8).reshape(len(positions), -1)

    def name(self, position: int) -> str:
        """Returns the whole path of a sample, for messages."""
        return os.fsdecode(self.path(position))

    def where(self, position: int) -> str:
        """Returns where a sample is listed, such as ``train_list.txt, line 7``."""
        return f"{self.source}, line {self.lines[position]}" if self.lines is not None else str(self.source)

    def read(self, position: int) -> bytes:
        """Reads a sample's file; raises what `read_image` raises."""
        return read_image(self.path(position))


def read_list(
    root: Path,
    listing: Path,
    delimiter: str,
    class_num: int | None = None,
    *,
    follow_links: bool = False,
    several: bool = False,
) -> FileIndex:
    """Reads a list file; opens no image.

    Args:
        root: Folder of the images.
        listing: Lines of path, ``delimiter``, label; the path below ``root``.
        delimiter: Between path and label; the last one of a line counts.
        class_num: Number of classes of the model; None for any.
        follow_links: Whether images may be links out of ``root``.
        several: Whether a label is ``0,1,1``: a 0 or 1 for each of ``class_num`` classes.

    Raises:
        UserError: No such folder or list, nothing in it, or lines that are wrong (all of them, by number).
    """
    _need_folder(root)
    try:
        text = listing.read_text(encoding="utf-8-sig", errors="surrogateescape")
    except FileNotFoundError:
        raise UserError(f"{listing}: no such list file; expected lines of 'path{delimiter}label'") from None
    except OSError as error:
        raise UserError(f"{listing}: can't read this list file: {error.strerror}") from None
    paths: list[bytes] = []
    labels: list[Any] = []
    lines: list[int] = []
    problems: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        path, found, label = line.rstrip().rpartition(delimiter)
        path, label = path.strip(), label.strip()
        wrong_label = _wrong_labels if several else _wrong_label
        wrong = _wrong_path(path, found, delimiter) or wrong_label(label, class_num)
        if wrong:
            problems.append(f"{listing}, line {number}: {wrong}")
            continue
        paths.append(os.fsencode(path))
        labels.append(_zeros_and_ones(label) if several else int(label))
        lines.append(number)
    raise_line_errors(problems)
    if not paths:
        raise UserError(f"{listing}: the list is empty; expected lines of 'path{delimiter}label'")
    index = FileIndex(
        root,
        np.array(paths),
        np.array(labels, np.float32 if several else np.int64),
        listing,
        np.array(lines, np.int64),
    )
    _refuse_strange(index, follow_links)
    return index


def _refuse_strange(index: FileIndex, follow_links: bool) -> None:
    """Shows images that links take out of the folder, as those of an archive might, and pipes.

    DALI, which opens files by itself, would wait for a pipe.
    """
    links, special = find_unsafe_paths(index.root, map(bytes, index.paths), follow_links=follow_links)
    raise_line_errors(
        [
            f"{index.where(at)}: {index.name(at)} is a link out of {index.root}; if it is yours, set "
            "follow_links: True"
            for at in links
        ]
        + [f"{index.where(at)}: {index.name(at)} is {NOT_REGULAR}; remove it" for at in special]
    )


def _need_folder(root: Path) -> None:
    if not root.is_dir():
        raise UserError(f"{root}: no such folder; expected the images of image_root there")


def _zeros_and_ones(label: str) -> NDArray[np.float32]:
    return np.array([each.strip() == "1" for each in label.split(",")], np.float32)


def _wrong_path(path: str, found: str, delimiter: str) -> str | None:
    if not found or not path:
        return f"expected 'path{delimiter}label', got no label after {delimiter!r}; is the delimiter right?"
    if "\0" in path:
        return "expected text, got a zero byte"
    if path.startswith("/") or ".." in path.split("/"):
        return f"path {path!r} leads out of image_root; expected a path below it"
    return None


def _wrong_label(label: str, class_num: int | None) -> str | None:
    if not re.fullmatch("-?[0-9]+", label):
        several = "; MultiLabelDataset takes several" if "," in label else ""
        return f"expected a whole number as label, got {label!r}{several}"
    if class_num is None and (len(label) > _MOST_DIGITS or int(label) < 0):
        return f"expected a label from 0, got {label}"
    if class_num is not None and (len(label) > _MOST_DIGITS or not 0 <= int(label) < class_num):
        return f"label {label} is not in 0..{class_num - 1}; Arch.class_num is {class_num}"
    return None


def _wrong_labels(label: str, class_num: int | None) -> str | None:
    found = [each.strip() for each in label.split(",")]
    if wrong := next((each for each in found if each not in ("0", "1")), None):
        return f"expected a 0 or 1 for each class, with commas between them, got {wrong[:80]!r}"
    if "" in found:
        return "expected a 0 or 1 for each class, with commas between them, got nothing after a comma"
    if class_num is not None and len(found) != class_num:
        return f"labels of {len(found)} classes; Arch.class_num is {class_num}"
    return None


def read_folder(
    root: Path, extensions: tuple[str, ...], class_num: int | None = None, *, follow_links: bool = False
) -> FileIndex:
    """Finds the images of class folders; opens none.

    Args:
        root: Has one sub-folder a class; labels follow the folders' sorted names.
        extensions: Endings of image files, in lower case.
        class_num: Number of classes of the model; None for any.
        follow_links: Whether images may be links out of ``root``.

    Raises:
        UserError: No such folder, another number of class folders, or no images.
    """
    _need_folder(root)
    classes = list_class_folders(root)
    if not classes:
        raise UserError(f"{root}: expected one sub-folder a class, found none")
    if class_num is not None and len(classes) != class_num:
        raise UserError(
            f"{root}: {len(classes)} class folders, but Arch.class_num is {class_num}; auto counts them"
        )
    paths: list[bytes] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        for folder, folders, files in os.walk(root / name):
            folders.sort()
            here = Path(folder).relative_to(root)
            chosen = sorted(each for each in files if each.lower().endswith(extensions))
            paths += [os.fsencode(here / each) for each in chosen]
            labels += [label] * len(chosen)
    if not paths:
        raise UserError(f"{root}: no images; expected files ending in {', '.join(extensions)}")
    index = FileIndex(root, np.array(paths), np.array(labels, np.int64), root)
    _refuse_strange(index, follow_links)
    return index


def list_files(files: Sequence[Path]) -> FileIndex:
    """Returns an index of files that are named one by one, all of class 0."""
    root = Path(os.path.commonpath([file.absolute().parent for file in files]))
    paths = np.array([os.fsencode(file.absolute().relative_to(root)) for file in files])
    return FileIndex(root, paths, np.zeros(len(files), np.int64), root)
