"""Finds image files, links that lead out of a folder, and special files such as pipes."""

from __future__ import annotations

import errno
import glob
import os
import stat
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from ppcls.data.images.header import check_size
from ppcls.errors import UserError
from ppcls.files import IMAGE_EXTENSIONS, is_image_name, is_system_folder

NOT_REGULAR = "not a regular file"


def find_images(paths: Sequence[Path]) -> list[Path]:
    """Lists image files without opening them.

    Args:
        paths: Files, folders, or patterns such as ``photos/**/*.jpg``. Files may have any suffix. Folders are
            searched recursively for files with a suffix in ``IMAGE_EXTENSIONS``.

    Returns:
        Paths without duplicates, in the order of ``paths``. The files of each folder or pattern are sorted.

    Raises:
        UserError: A path does not exist, or a folder can't be read or contains no image.
    """
    files: dict[Path, None] = {}
    problems: list[str] = []
    for path in [match for named in paths for match in _expand_pattern(named)]:
        try:
            images = _list_folder(path) if path.is_dir() else [path]
        except OSError as error:
            problems.append(f"{error.filename}: can't read this folder: {error.strerror}")
            continue
        if not images:
            endings = ", ".join(IMAGE_EXTENSIONS)
            problems.append(f"{path}: no images in this folder; expected files that end in {endings}")
        elif not path.exists():
            problems.append(f"{path}: no such file or folder")
        files.update(dict.fromkeys(images))
    if problems:
        raise UserError("\n".join(problems))
    return list(files)


def read_paths(lines: Iterable[bytes]) -> list[Path]:
    """Returns one path per line. Skips empty lines."""
    return [Path(os.fsdecode(path)) for line in lines if (path := line.rstrip(b"\r\n"))]


def _expand_pattern(path: Path) -> list[Path]:
    """Returns the sorted matches of a pattern, or only the path itself if it exists or nothing matches."""
    if path.exists() or not glob.has_magic(str(path)):
        return [path]
    return sorted(map(Path, glob.glob(str(path), recursive=True))) or [path]  # noqa: PTH207 - ** as in a shell


def _list_folder(root: Path) -> list[Path]:
    def fail(error: OSError) -> None:
        raise error

    images = []
    for folder, folders, files in os.walk(root, onerror=fail):
        folders[:] = [below for below in folders if not is_system_folder(below)]
        images += [Path(folder) / file for file in files if is_image_name(file, IMAGE_EXTENSIONS)]
    return sorted(images)


class UnsafePaths(NamedTuple):
    """Positions of paths that should not be opened.

    Attributes:
        links: Positions of links that lead out of the folder, and of paths that contain such a link.
        special: Positions of pipes, sockets and devices, which can block a reader, and of links to them.
    """

    links: list[int]
    special: list[int]


def find_unsafe_paths(root: Path, paths: Iterable[bytes], *, follow_links: bool = False) -> UnsafePaths:
    """Finds special files, and links that lead out of a folder. Ignores missing files.

    This scans each folder once and opens no file. Only links need an additional lookup.

    Args:
        root: The folder. It may itself be a link.
        paths: Paths relative to ``root``.
        follow_links: Whether to allow links that lead out of ``root``.
    """
    inside = os.path.realpath(os.fsencode(root))
    base = os.fsencode(root)
    known: dict[bytes, tuple[Collection[bytes] | None, Collection[bytes]]] = {}
    unsafe = UnsafePaths([], [])
    for position, path in enumerate(paths):
        folder, _, name = path.rpartition(b"/")
        if folder not in known:
            known[folder] = _scan_folder(base + b"/" + folder, None if follow_links else inside)
        links, special = known[folder]
        if links is None or name in links:
            unsafe.links.append(position)
        if name in special:
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


def _scan_folder(folder: bytes, inside: bytes | None) -> tuple[Collection[bytes] | None, Collection[bytes]]:
    """Finds links that lead out of ``inside``, and special files, in one folder.

    Returns:
        Names of the links, or None if the folder itself is outside ``inside``; and names of the special
        files.
    """
    if inside is not None and not _is_within(folder, inside):
        return None, ()
    links = set()
    special = set()
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_symlink() and inside is not None and not _is_within(entry.path, inside):
                    links.add(entry.name)
                elif not (entry.is_file() or entry.is_dir()) and is_special_file(
                    Path(os.fsdecode(entry.path))
                ):
                    special.add(entry.name)
    except OSError:
        return (), ()  # reported when the files are read
    return links, special


def _is_within(path: bytes, folder: bytes) -> bool:
    real = os.path.realpath(path)
    return real == folder or real.startswith(folder.rstrip(b"/") + b"/")
