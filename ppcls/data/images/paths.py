"""Finds image files, links that lead out of a folder, and special files such as pipes."""

from __future__ import annotations

import errno
import glob
import os
import re
import shlex
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ppcls.data.images.header import check_size
from ppcls.data.images.skipped import advise_to_convert, count_skipped, describe_skipped
from ppcls.errors import UserError
from ppcls.files import IMAGE_EXTENSIONS, is_image_name, is_system_folder

NOT_REGULAR = "not a regular file"
ARRAY_SUFFIXES = (".npy", ".npz", ".h5", ".hdf5", ".mat", ".pkl", ".pickle")
_SOURCES = "docs/data.md#sources"
# Names of files with many images, in lower case, and the data sets that read them.
_DATASETS = {
    r".*-idx\d-ubyte(\.gz)?": "IdxDataset",
    r"cifar-10-python\.tar\.gz": "Cifar10",
    r".*\.tfrecords?": "TFRecordDataset",
    r".*\.rec": "RecordIODataset",
    r"data\.mdb": "LMDBDataset",
    r".*\.parquet": "ParquetDataset",
}


def find_images(paths: Sequence[Path], report: Callable[[str], None] = lambda _line: None) -> list[Path]:
    """Lists image files without opening them.

    Args:
        paths: Files, folders, or patterns such as ``photos/**/*.jpg``. Files may have any suffix. Folders are
            searched recursively for files with a suffix in ``IMAGE_EXTENSIONS``.
        report: Function that is called with a line about each folder whose pictures in other
            formats are skipped.

    Returns:
        Paths without duplicates, in the order of ``paths``. The files of each folder or pattern are sorted.

    Raises:
        UserError: A path does not exist, or a folder can't be read or contains no image.
    """
    files: dict[Path, None] = {}
    problems: list[str] = []
    for path in [match for named in paths for match in _expand_pattern(named)]:
        try:
            images, skipped = _list_folder(path) if path.is_dir() else ([path], Counter())
        except OSError as error:
            problems.append(f"{error.filename}: can't read this folder: {error.strerror}")
            continue
        if not images:
            endings = ", ".join(IMAGE_EXTENSIONS)
            problems.append(
                f"{path}: no images in this folder; expected files that end in {endings}"
                f"{advise_to_convert(skipped)}"
            )
        elif not path.exists():
            if address := re.match(r"((?:https?|s3|gs|ftp):)/(.*)", str(path)):  # paths have no double slash
                advice = "addresses are not downloaded; download the image first"
                problems.append(f"{address[1]}//{address[2]}: {advice}")
                continue
            is_pattern = glob.has_magic(str(path))
            problem = "no file matches this pattern" if is_pattern else "no such file or folder"
            problems.append(f"{path}: {problem}")
        files.update(dict.fromkeys(images))
        if advise_to_convert(skipped):
            report(describe_skipped(path, skipped))
    if problems:
        raise UserError("\n".join(problems))
    return list(files)


def explain_file(path: Path) -> str:
    """Returns what to do with a file that was named instead of a folder of images."""
    if records := explain_records(path.name):
        return f"this is a file, not a folder of images; {records}"
    match path.suffix.lower():
        case ".yaml" | ".yml":
            return (
                f"this is a config, not a folder of images; to use it, write {shlex.join(['-c', str(path)])}"
            )
        case ".txt" | ".csv" | ".tsv" | ".lst":
            return (
                "this is a list, not a folder of images; `ppcls dataset labels TABLE --images FOLDER` lets "
                "`ppcls train FOLDER` use a table with titles, and docs/own-data.md says how to use a list "
                "of 'path label'"
            )
        case ".xlsx" | ".xls" | ".ods":
            return "this is a spreadsheet, not a folder of images; save it as CSV for `ppcls dataset labels`"
        case ".json" | ".jsonl":
            return "this is a file, not a folder of images; `ppcls dataset labels` reads classes from a table"
        case ".zip" | ".tar" | ".gz" | ".tgz" | ".7z" | ".rar":
            return "this is an archive, not a folder of images; unpack it first"
        case suffix if suffix in ARRAY_SUFFIXES:
            return (
                "this is a file of arrays, not a folder of images; write the images as PNG files into one "
                f"subfolder per class, or let PythonDataset read them ({_SOURCES})"
            )
        case suffix if suffix in IMAGE_EXTENSIONS:
            return (
                "this is one image, not a folder of images; name the folder that contains the folders of the "
                "classes"
            )
        case _:
            return f"this is a file, not a folder of images; {_SOURCES} lists what ppcls reads"


def explain_records(name: str) -> str:
    """Returns what to do with a file of many images, from its name; "" for any other file."""
    for pattern, dataset in _DATASETS.items():
        if re.fullmatch(pattern, name.lower()):
            return f"{dataset} reads it: set DataLoader.Train.dataset.name in a config ({_SOURCES})"
    return ""


def read_paths(lines: Iterable[bytes]) -> list[Path]:
    """Returns one path per line. Skips empty lines."""
    return [Path(os.fsdecode(path)) for line in lines if (path := line.rstrip(b"\r\n"))]


def _expand_pattern(path: Path) -> list[Path]:
    """Returns the sorted matches of a pattern, or only the path itself if it exists or nothing matches."""
    if path.exists() or not glob.has_magic(str(path)):
        return [path]
    return sorted(map(Path, glob.glob(str(path), recursive=True))) or [path]  # noqa: PTH207 - ** as in a shell


def _list_folder(root: Path) -> tuple[list[Path], Counter[str]]:
    """Returns the images in a folder, and the number of other files per extension."""

    def fail(error: OSError) -> None:
        raise error

    images = []
    skipped = Counter[str]()
    for folder, folders, files in os.walk(root, onerror=fail):
        folders[:] = [below for below in folders if not is_system_folder(below)]
        images += [Path(folder) / file for file in files if is_image_name(file, IMAGE_EXTENSIONS)]
        skipped += count_skipped(files, IMAGE_EXTENSIONS)
    return sorted(images), skipped


class UnsafePaths(NamedTuple):
    """Positions of paths that should not be opened.

    Attributes:
        links: Positions of links that lead out of the folder, and of paths that contain such a link.
        special: Positions of pipes, sockets and devices, which can block a reader, and of links to them.
    """

    links: list[int]
    special: list[int]


class FolderScan(NamedTuple):
    """Unsafe files of a folder.

    Attributes:
        links: Names of the links that lead out of the root folder; None if the folder itself is outside.
        special: Names of special files, and of links to them.
        has_links: Whether the folder is a link or contains links, also harmless ones.
    """

    links: Collection[bytes] | None
    special: Collection[bytes]
    has_links: bool


def find_unsafe_paths(root: Path, paths: Iterable[bytes], *, follow_links: bool = False) -> UnsafePaths:
    """Finds special files, and links that lead out of a folder. Ignores missing files.

    This scans each folder once and opens no file. Only links need an additional lookup.

    Args:
        root: The folder. It may itself be a link.
        paths: Paths relative to ``root``.
        follow_links: Whether to allow links that lead out of ``root``.
    """
    listed = list(paths)
    base = os.path.realpath(os.fsencode(root))
    folders = {path.rpartition(b"/")[0] for path in listed}
    return select_unsafe(
        listed, {folder: scan_folder(base, folder, follow_links=follow_links) for folder in folders}
    )


def select_unsafe(paths: Iterable[bytes], scans: Mapping[bytes, FolderScan]) -> UnsafePaths:
    """Returns the positions of unsafe paths. Folders without a scan have no unsafe files."""
    unsafe = UnsafePaths([], [])
    for position, path in enumerate(paths):
        folder, _, name = path.rpartition(b"/")
        if (scan := scans.get(folder)) is None:
            continue
        if scan.links is None or name in scan.links:
            unsafe.links.append(position)
        if name in scan.special:
            unsafe.special.append(position)
    return unsafe


def read_regular_file(path: bytes) -> bytes:
    """Reads an image file, and does not block if the path is a pipe.

    Looks up the path only once, because lookups are slow on a network drive.

    Raises:
        OSError: The file can't be read or is not a regular file.
        DecodeError: The file is too large.
    """
    with open(path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, NOT_REGULAR, path)
        check_size(status.st_size)
        return file.read()


def is_special_file(path: Path) -> bool:
    """Returns whether a path is a pipe, a socket or a device, or a link to one."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False  # reported when the file is read
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def scan_folder(root: bytes, folder: bytes, *, follow_links: bool) -> FolderScan:
    """Finds links that lead out of ``root``, and special files, in one folder.

    Args:
        root: Real path of the root folder.
        folder: Path of the folder relative to ``root``.
        follow_links: Whether to allow links that lead out of ``root``.
    """
    inside = None if follow_links else root
    path = root + b"/" + folder
    real = os.path.realpath(path)
    if inside is not None and not _is_below(real, inside):
        return FolderScan(None, (), has_links=True)
    has_links = real != os.path.normpath(path)
    links = set()
    special = set()
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    continue
                if entry.is_symlink():
                    has_links = True
                    if inside is not None and not _is_within(entry.path, inside):
                        links.add(entry.name)
                        continue
                if not (entry.is_file() or entry.is_dir()) and is_special_file(Path(os.fsdecode(entry.path))):
                    special.add(entry.name)
    except OSError:
        return FolderScan((), (), has_links)  # reported when the files are read
    return FolderScan(links, special, has_links)


def _is_within(path: bytes, folder: bytes) -> bool:
    return _is_below(os.path.realpath(path), folder)


def _is_below(real: bytes, folder: bytes) -> bool:
    return real == folder or real.startswith(folder.rstrip(b"/") + b"/")
