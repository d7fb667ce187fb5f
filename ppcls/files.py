"""Files and folders that are either whole and new, or untouched; and drives that fail for a moment."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, TextIO, TypeVar

_T = TypeVar("_T")
# What a network drive says that may be back in a moment.
_MOMENTARY = {
    getattr(errno, name)
    for name in (
        *("EIO", "EAGAIN", "ESTALE", "ETIMEDOUT", "ECONNRESET", "ECONNABORTED", "ENETDOWN", "ENETUNREACH"),
        *("EHOSTDOWN", "EHOSTUNREACH", "ENOTCONN", "EREMOTEIO"),
    )
}
RETRY_DELAYS = (0.5, 2.0, 5.0)  # seconds


def retry_io(act: Callable[[], _T], waits: Sequence[float] | None = None) -> _T:
    """Returns what ``act`` gives, tried again where a drive fails that may be back in a moment.

    Args:
        act: May be called several times.
        waits: Seconds before each further try; by default `RETRY_DELAYS`.

    Raises:
        OSError: The last try failed, or the failure is one that lasts, such as a full disk.
    """
    for wait in RETRY_DELAYS if waits is None else waits:
        try:
            return act()
        except OSError as error:
            if error.errno not in _MOMENTARY:
                raise
        time.sleep(wait)
    return act()


def _sync(path: Path) -> None:
    """Has the disk hold what was written to the file ``path``, or the names in the folder ``path``."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _told_of(path: Path, temporary: Path) -> Iterator[None]:
    """Has the system's errors name ``path``: a write that fails names no file, an open the temporary one."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename in (None, str(temporary)):
            error.filename, error.filename2 = str(path), None
        raise


def temporary_sibling(path: Path) -> Path:
    """Returns an unused name in the folder of ``path``; it is hidden and keeps the suffix."""
    return path.with_name(f".{secrets.token_hex(4)}.{path.name}")


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Lends a temporary path, for writers that insist on a path; it becomes ``path`` at the end.

    The file is synced to disk and renamed when the block ends well, and removed when it raises: at
    every moment ``path`` is what it was before, or complete.

    Raises:
        FileNotFoundError: The block wrote no file, or the folder does not exist.
    """
    temporary = temporary_sibling(path)
    with _told_of(path, temporary):
        try:
            yield temporary
            _sync(temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    _sync(path.parent)


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Opens a file for writing that becomes ``path`` when the block ends well; see `atomic_path`.

    Raises:
        FileNotFoundError: The folder does not exist.
    """
    with atomic_path(path) as temporary, temporary.open("xb") as file:
        yield file


def append(file: TextIO, text: str) -> None:
    """Writes text to the end of a file at once.

    Raises:
        OSError: It can't be written; with the file's name, which the system's error lacks.
    """
    try:
        file.write(text)
        file.flush()
    except OSError as error:
        error.filename = error.filename or str(file.name)
        raise


def check_writable(path: Path) -> None:
    """Shows, before long work, that a file or folder can be made or written; makes nothing.

    Raises:
        OSError: With the folder in the way, or the path itself where it is there already.
    """
    place = next(each for each in (path, *path.absolute().parents) if each.exists())
    if place != path and not place.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(place))
    if not os.access(place, os.W_OK):
        raise PermissionError(errno.EACCES, "can't be written", str(place))


def write_text(path: Path, text: str) -> None:
    """Writes ``text`` as UTF-8, atomically."""
    with atomic_write(path) as file:
        file.write(text.encode("utf-8"))


def _sync_each(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        _sync(path)


@contextmanager
def new_folder(path: Path, *, sync_each: bool = False) -> Iterator[Path]:
    """Lends an empty temporary folder that becomes ``path`` when the block ends well.

    When the block raises, the folder is removed with all in it. Missing parents are made. All that
    was written is on disk before the folder has its name.

    Args:
        path: The folder.
        sync_each: Sync file by file, which tells whether the disk took them; for a few large files.
            Otherwise one call syncs everything on the machine, and tells nothing.

    Raises:
        FileExistsError: ``path`` is there, before the block or after it.
    """
    if path.exists():
        raise FileExistsError(f"{path} exists already")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_sibling(path)
    with _told_of(path, temporary):
        temporary.mkdir()
    try:
        yield temporary
        if path.exists():
            raise FileExistsError(f"{path} was made by someone else meanwhile")
        if sync_each:
            _sync_each(temporary)
        else:
            os.sync()
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    _sync(path.parent)


class LogWriter:
    """Appends lines to the file ``path`` and flushes each, so that ``tail -f`` and a crash show all.

    Each line begins with the local time, as ``2026-01-31 23:59:59``.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def message(self, text: str) -> None:
        """Writes ``text`` with a time stamp on each of its lines."""
        now = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S")
        append(self._file, "".join(f"{now} {line}\n" for line in text.splitlines() or [""]))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
