"""Names below a folder that are no images of its own: links that lead elsewhere, and pipes and their like."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

NOT_REGULAR = "not a regular file"


class UnsafePaths(NamedTuple):
    """Positions of paths that are no files of the folder that they are named below.

    Attributes:
        links: Are, or go through, a link that leads out of it.
        special: Are pipes, sockets or devices, which who opens them may wait for.
    """

    links: list[int]
    special: list[int]


def find_unsafe_paths(root: Path, paths: Iterable[bytes], *, follow_links: bool = False) -> UnsafePaths:
    """Finds what is strange among paths; what is not there is not.

    Looks at each folder once, and at no file.

    Args:
        root: May be a link itself.
        paths: Below it.
        follow_links: Whether links may lead anywhere; then none is looked at.
    """
    inside, base = os.path.realpath(os.fsencode(root)), os.fsencode(root)
    known: dict[bytes, tuple[Collection[bytes] | None, Collection[bytes]]] = {}
    found = UnsafePaths([], [])
    for position, path in enumerate(paths):
        folder, _, name = path.rpartition(b"/")
        if folder not in known:
            known[folder] = _look(base + b"/" + folder, None if follow_links else inside)
        out, special = known[folder]
        if out is None or name in out:
            found.links.append(position)
        if name in special:
            found.special.append(position)
    return found


def read_regular_file(path: bytes) -> bytes:
    """Reads a file, and waits for no pipe; by one look at its name, which on a network drive takes time.

    Raises:
        OSError: It can't be read, or is no regular file.
    """
    with open(path, "rb", opener=_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, NOT_REGULAR, path)
        return file.read()


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def is_special_file(path: Path) -> bool:
    """Returns whether a path is a pipe, a socket or a device, or leads to one."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False  # reported where it is read
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _look(folder: bytes, inside: bytes | None) -> tuple[Collection[bytes] | None, Collection[bytes]]:
    """Returns a folder's links that lead out of ``inside``, and its special files, by name.

    None in the place of links where the folder itself leads out of ``inside``.
    """
    if inside is not None and not _within(folder, inside):
        return None, ()
    out, special = set(), set()
    try:
        with os.scandir(folder) as entries:
            for each in entries:
                if each.is_symlink():
                    if inside is not None and not _within(each.path, inside):
                        out.add(each.name)
                elif not (each.is_file(follow_symlinks=False) or each.is_dir(follow_symlinks=False)):
                    special.add(each.name)
    except OSError:
        return (), ()  # each file of it is reported where it is read
    return out, special


def _within(path: bytes, folder: bytes) -> bool:
    real = os.path.realpath(path)
    return real == folder or real.startswith(folder.rstrip(b"/") + b"/")
