"""Reads datasets of image files: from a list file, from file names, or from class folders."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ppcls.data.images.header import DecodeError
from ppcls.data.images.paths import (
    ARRAY_SUFFIXES,
    NOT_REGULAR,
    explain_file,
    explain_records,
    find_unsafe_paths,
    read_regular_file,
)
from ppcls.data.index.arrays.list_line import MAX_DIGITS, LineFormat
from ppcls.data.index.arrays.path_hashes import find_paths
from ppcls.data.index.arrays.read import read_arrays
from ppcls.data.index.arrays.safe_folders import find_unsafe_images
from ppcls.data.index.arrays.scan import CACHED_IMAGES, scan_classes
from ppcls.data.index.class_folders import METADATA, check_are_classes, find_class_folders, read_metadata
from ppcls.data.index.class_names import check_known_folders
from ppcls.errors import UserError, counted, raise_line_errors
from ppcls.files import one_line, retry_io


def read_image(path: bytes) -> bytes:
    """Reads an image file.

    Raises:
        DecodeError: The file is missing, is empty, is too large, is not a regular file, or can't be read, or
            there is not enough memory.
    """
    try:
        data = retry_io(lambda: read_regular_file(path))
    except OSError as error:
        raise DecodeError((error.strerror or str(error)).lower()) from None
    except MemoryError:  # one image must not end a run or a server
        raise DecodeError("there is not enough memory to read the file") from None
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

    @property
    def _folder(self) -> bytes:
        return os.fsencode(self.root).rstrip(b"/") + b"/"

    def path(self, position: int) -> bytes:
        """Returns the full path of a sample, encoded for the file system."""
        return self._folder + bytes(self.paths[position])

    def path_block(self, positions: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Returns the full paths of samples as bytes, [N, L], padded with zeros to the longest path."""
        paths = np.char.add(self._folder, self.paths[positions])
        return paths.view(np.uint8).reshape(len(positions), -1)

    def name(self, position: int) -> str:
        """Returns the full path of a sample, for messages."""
        return os.fsdecode(self.path(position))

    def where(self, position: int) -> str:
        """Returns the location of a sample in the dataset, such as ``train_list.txt, line 7``."""
        return f"{self.source}, line {self.lines[position]}" if self.lines is not None else str(self.source)

    def find(self, places: Collection[tuple[str, str]]) -> list[int]:
        """Returns the positions of samples. See `ppcls.data.index.protocol.find_samples`."""
        prefix = self._folder
        names = (os.fsencode(name) for name, _ in places)
        return find_paths(self.paths, {name[len(prefix) :] for name in names if name.startswith(prefix)})

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
        listing: List file. Each line has a path in ``root``, relative or absolute, the delimiter and a label.
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
    form = LineFormat(delimiter, labelled, class_num)
    return _read_lines(root, listing, form, follow_links=follow_links)


def read_paths(root: Path, listing: Path, delimiter: str | None, *, follow_links: bool) -> FileIndex:
    """Reads a list file of paths without opening images. All labels are 0.

    Args:
        root: Folder of the images.
        listing: List file. Each line has a path in ``root``, relative or absolute.
        delimiter: Text that ends the path in a line; None if lines contain only paths.
        follow_links: Whether to allow links that lead out of ``root``.

    Raises:
        UserError: The folder or the list is missing, or the list is empty or has invalid lines.
    """
    return _read_lines(root, listing, LineFormat(delimiter, "none"), follow_links=follow_links)


def _read_lines(root: Path, listing: Path, form: LineFormat, *, follow_links: bool) -> FileIndex:
    """Reads a list file. The arrays of a long list are cached for all processes of the machine.

    Raises:
        UserError: The folder or the list is missing, or the list is empty or has invalid lines.
    """
    _check_folder(root)
    folders = dict.fromkeys((os.path.abspath(root), os.path.realpath(root)))  # noqa: PTH100 - keeps links
    form = replace(form, roots=tuple(f"{folder.rstrip('/')}/" for folder in folders))
    if listing.suffix.lower() in ARRAY_SUFFIXES:
        raise UserError(f"{listing}: expected a list file with lines of '{form}', found a file of arrays")
    if records := explain_records(listing.name):
        raise UserError(f"{listing}: expected a list file with lines of '{form}'; {records}")
    try:
        arrays = read_arrays(listing, form)
    except FileNotFoundError:
        raise UserError(f"{listing}: no such list file; expected lines of '{form}'") from None
    except OSError as error:
        raise UserError(f"{listing}: can't read this list file: {error.strerror}") from None
    index = FileIndex(root, arrays.paths, arrays.labels, listing, arrays.lines, cameras=arrays.cameras)
    _check_paths(index, follow_links, arrays.folders)
    return index


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
        if max(map(len, match.groups())) > MAX_DIGITS:
            raise UserError(f"{root / name}: expected at most {MAX_DIGITS} digits for identity and camera")
    labels = np.array([int(match[1]) for match in images.values()], np.int64)
    if relabel:
        labels = np.unique(labels, return_inverse=True)[1].reshape(-1).astype(np.int64)
    if class_num is not None and labels.max() >= class_num:
        count = len(np.unique(labels))
        raise UserError(
            f"{root}: {counted(count, 'identity')} with labels up to {labels.max()}, but the head's "
            f"class_num is {class_num}; expected at least {labels.max() + 1}"
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
        root: Folder with one subfolder per class, or with a file of names and labels (see `read_metadata`).
        extensions: File name extensions of images, in lower case.
        class_num: Number of classes of the model; None to accept any number.
        class_names: Names of the subfolders in the order of their labels. Some subfolders may be missing.
            Others are ignored if they contain no images. None numbers the subfolders in sorted order.
        follow_links: Whether to allow links that lead out of ``root``.

    Raises:
        UserError: The folder is missing or has no images, has a subfolder of images that is not in
            ``class_names``, or the number of classes differs from ``class_num``.
    """
    _check_folder(root)
    metadata = read_metadata(root)
    classes = find_class_folders(root) if metadata is None else {name: [""] for name in metadata.classes}
    if not classes:
        raise UserError(f"{root}: expected one subfolder per class, found none{_explain_metadata(root)}")
    if metadata is None and class_names is None:
        check_are_classes(root, tuple(classes))
    names = tuple(classes if class_names is None else class_names)
    if class_num is not None and len(names) != class_num:
        number = (
            f"found {counted(len(names), 'class folder')}"
            if class_names is None
            else f"{len(names)} class_names"
        )
        raise UserError(
            f"{root}: {number}, but Arch.class_num is {class_num}; set it to {len(names)}, or to auto to "
            "count them. A run can't be resumed with other classes: to add one to a trained model, start a "
            "new run from its weights, with --pretrained RUN and --output NEW"
        )
    labels_by_name = {name: label for label, name in enumerate(names)}
    if metadata is not None:
        check_known_folders(root, tuple(classes), names)
        index = FileIndex(
            root,
            np.array([os.fsencode(path) for path in metadata.paths]),
            np.array([labels_by_name[name] for name in metadata.labels], np.int64),
            metadata.file,
            np.array(metadata.lines, np.int64),
        )
        _check_paths(index, follow_links)
        return index
    scan = scan_classes(root, classes, extensions)
    if not len(scan.paths):
        raise UserError(f"{root}: no images; expected files that end in {', '.join(extensions)}")
    with_images = set(np.unique(scan.classes).tolist())
    check_known_folders(root, [name for at, name in enumerate(classes) if at in with_images], names)
    labels = np.array([labels_by_name.get(name, -1) for name in classes], np.int64)[scan.classes]
    index = FileIndex(root, scan.paths, labels, root, skipped=scan.skipped)
    _check_paths(index, follow_links, scan.folders)
    return index


def _explain_metadata(root: Path) -> str:
    """Returns what to change in a file of names without labels; "" without such a file."""
    present = [name for name in METADATA if (root / name).is_file()]
    return f"; {present[0]} has no column 'label': rename the column of the classes to it" if present else ""


def list_files(files: Sequence[Path]) -> FileIndex:
    """Returns an index of the files. All labels are 0."""
    root = Path(os.path.commonpath([file.absolute().parent for file in files]))
    paths = np.array([os.fsencode(file.absolute().relative_to(root)) for file in files])
    return FileIndex(root, paths, np.zeros(len(files), np.int64), root)


def _check_folder(root: Path) -> None:
    if root.is_file():
        raise UserError(f"{root}: {explain_file(root)}")
    if not root.is_dir():
        raise UserError(f"{root}: no such folder; set image_root to the folder of the images")


def _check_paths(index: FileIndex, follow_links: bool, folders: NDArray[np.bytes_] | None = None) -> None:
    """Raises `UserError` for links that lead out of the folder, and for special files.

    An untrusted archive may contain such links. Pipes would block DALI.

    Args:
        index: The images.
        follow_links: Whether to allow links that lead out of the folder.
        folders: [F] different folders of the images, if they are known.
    """
    if folders is not None and len(index) >= CACHED_IMAGES:
        links, special = find_unsafe_images(
            index.root, index.source, index.paths, folders, follow_links=follow_links
        )
    else:
        links, special = find_unsafe_paths(index.root, index.paths.tolist(), follow_links=follow_links)
    raise_line_errors(
        [
            f"{index.where(at)}: {one_line(index.name(at))} is a link that leads out of {index.root}; if you "
            "trust it, set follow_links: True"
            for at in links
        ]
        + [f"{index.where(at)}: {one_line(index.name(at))} is {NOT_REGULAR}; remove it" for at in special]
    )
