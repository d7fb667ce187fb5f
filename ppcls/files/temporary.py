"""Temporary folders that are removed even if their process is killed.

A process cannot clean up after SIGKILL, or when the machine loses power. Therefore each process locks its
temporary folders, and the next one that needs such a folder removes those that nobody locks. The
system releases the locks of a process when it ends. A process number instead of a lock would mean another
process after a restart, or in another container that shares the disk.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MAX_NAME_BYTES = 255  # of file systems of Linux
_TOKEN = r"\.[0-9a-f]{8}\."  # noqa: S105 - of the names of `temporary_sibling`
# Long, because folders with such a name are removed: nobody gives it to a folder of their own.
_PREFIX = "ppcls-temporary-"
_RANDOM = r"-[a-z0-9_]{8}"  # what `tempfile.mkdtemp` appends
_PRIVATE = 0o700  # permissions of the folders of `tempfile.mkdtemp`


def temporary_sibling(path: Path) -> Path:
    """Returns an unused hidden name in the folder of ``path``, with the same suffix if it is short."""
    token = secrets.token_hex(4)
    for name in (f".{token}.{path.name}", f".{token}{path.suffix}"):
        if len(os.fsencode(name)) <= _MAX_NAME_BYTES:
            return path.with_name(name)
    return path.with_name(f".{token}")


def is_temporary_sibling(file: Path, path: Path) -> bool:
    """Returns whether ``file`` may be a result of `temporary_sibling` for ``path``."""
    return file.parent == path.parent and re.match(r"\.[0-9a-f]{8}(\.|\Z)", file.name) is not None


@contextmanager
def locked_sibling(path: Path) -> Iterator[Path]:
    """Yields a new, empty, locked folder beside ``path``, and removes it at the end if it still exists.

    Raises:
        OSError: The folder can't be created.
    """
    descriptor = None
    folder = temporary_sibling(path)
    try:  # begins before the folder exists, because a signal can end the process right after its creation
        while descriptor is None:
            folder = temporary_sibling(path)
            folder.mkdir()
            descriptor = _lock_new(folder)
        yield folder
    finally:
        if folder.exists():
            shutil.rmtree(folder, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)


@contextmanager
def temporary_folder(purpose: str) -> Iterator[Path]:
    """Yields a new folder in the temporary folder of the system, and removes it at the end.

    Folders of processes of the same user that were killed are removed first.

    Args:
        purpose: Word that becomes a part of the name of the folder.

    Raises:
        OSError: The folder can't be created.
    """
    root = Path(tempfile.gettempdir())
    for folder in _list(root):
        if re.fullmatch(rf"{_PREFIX}[a-z0-9]+{_RANDOM}", folder.name) and _is_ours(folder):
            _remove_if_unlocked(folder)
    descriptor = None
    while descriptor is None:
        folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{purpose}-"))
        descriptor = _lock_new(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def remove_leftovers(path: Path) -> None:
    """Removes the temporary folders of processes that were killed while they wrote ``path``."""
    for folder, name in find_leftovers(path.parent):
        if name == path.name and folder.is_dir() and not folder.is_symlink():
            remove_leftover(folder)


def find_leftovers(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yields the temporary files and folders in a folder, each with its intended final name."""
    for path in _list(folder):
        if match := re.fullmatch(f"{_TOKEN}(.+)", path.name, re.DOTALL):
            yield path, match[1]


def remove_leftover(path: Path) -> None:
    """Removes a temporary folder, except if a running process uses it; or a file, which nobody locks."""
    if path.is_dir() and not path.is_symlink():
        _remove_if_unlocked(path)
    else:
        path.unlink(missing_ok=True)


def _list(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:  # missing, or not readable; creating the file reports it
        return []


def _is_ours(folder: Path) -> bool:
    try:
        state = folder.lstat()
    except OSError:  # removed meanwhile
        return False
    return (
        stat.S_ISDIR(state.st_mode)
        and stat.S_IMODE(state.st_mode) == _PRIVATE
        and state.st_uid == os.geteuid()
    )


def _lock_new(folder: Path) -> int | None:
    """Locks a new folder, and returns its descriptor; None if another process has removed it before."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return None
    _try_lock(descriptor)
    try:
        exists = os.path.samestat(os.fstat(descriptor), folder.stat())
    except FileNotFoundError:
        exists = False
    if exists:
        return descriptor
    os.close(descriptor)
    return None


def _remove_if_unlocked(folder: Path) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:  # removed meanwhile, or of another user
        return
    try:
        if _try_lock(descriptor):
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    """Locks an open folder until it is closed, and returns whether this was possible."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # locked by another process, or a file system without locks
        return False
    return True
