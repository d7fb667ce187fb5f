"""Symbolic links by which image files lie outside the folder that they are named below."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path


def leading_out(root: Path, paths: Iterable[bytes]) -> list[int]:
    """Returns which paths are, or go through, a link that leads out of ``root``.

    Looks at each folder once, and at no file; what is not there leads nowhere.

    Args:
        root: May be a link itself.
        paths: Below it.
    """
    inside, base = os.path.realpath(os.fsencode(root)), os.fsencode(root)
    known: dict[bytes, Collection[bytes] | None] = {}
    found = []
    for position, path in enumerate(paths):
        folder, _, name = path.rpartition(b"/")
        if folder not in known:
            known[folder] = _links_out(base + b"/" + folder, inside)
        out = known[folder]
        if out is None or name in out:
            found.append(position)
    return found


def _links_out(folder: bytes, inside: bytes) -> Collection[bytes] | None:
    """Returns a folder's links that lead out of ``inside``, by name; None where the folder itself does."""
    if not _within(folder, inside):
        return None
    try:
        with os.scandir(folder) as entries:
            return {each.name for each in entries if each.is_symlink() and not _within(each.path, inside)}
    except OSError:
        return ()  # each file of it is reported where it is read


def _within(path: bytes, folder: bytes) -> bool:
    real = os.path.realpath(path)
    return real == folder or real.startswith(folder.rstrip(b"/") + b"/")
