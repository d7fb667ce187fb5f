"""Atomic files and folders, regular files only, and retries on drives that fail for a moment."""

from __future__ import annotations

import errno
import io
import os
import secrets
import select
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, TextIO, TypeVar, cast

from ppcls.errors import UserError

IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".jp2")
_T = TypeVar("_T")
# Errors of network drives that often succeed on a retry.
_TRANSIENT = {
    getattr(errno, name)
    for name in (
        *("EIO", "EAGAIN", "ESTALE", "ETIMEDOUT", "ECONNRESET", "ECONNABORTED", "ENETDOWN", "ENETUNREACH"),
        *("EHOSTDOWN", "EHOSTUNREACH", "ENOTCONN", "EREMOTEIO"),
    )
}
RETRY_DELAYS = (0.5, 2.0, 5.0)  # seconds
_MAX_BYTES = 1 << 30  # of a list or another file that is read as a whole
_PATIENCE = 0.2  # seconds that output waits for its reader


def retry_io(act: Callable[[], _T], delays: Sequence[float] | None = None) -> _T:
    """Returns the result of ``act``, which is retried after errors that may be transient.

    Args:
        act: Function that may be called several times.
        delays: Seconds before each retry; `RETRY_DELAYS` by default.

    Raises:
        OSError: The last attempt failed, or the error is permanent, such as a full disk.
    """
    for delay in RETRY_DELAYS if delays is None else delays:
        try:
            return act()
        except OSError as error:
            if error.errno not in _TRANSIENT:
                raise
        time.sleep(delay)
    return act()


@contextmanager
def open_regular(path: Path) -> Iterator[BinaryIO]:
    """Opens a file for reading, without ever waiting for the other end of a pipe.

    Raises:
        OSError: The file can't be read or is not a regular file.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        yield file


def read_regular(path: Path) -> bytes:
    """Reads a whole file, such as a list of images.

    Raises:
        OSError: The file can't be read, is not a regular file, or is larger than 1 GiB.
    """
    with open_regular(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > _MAX_BYTES:
            raise OSError(errno.EFBIG, f"{size} bytes; expected at most {_MAX_BYTES}", str(path))
        return file.read()


def _sync(path: Path) -> None:
    """Writes a file's content, or a folder's names, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _errors_name(path: Path, temporary: Path) -> Iterator[None]:
    """Sets ``path`` as the file name of OSErrors that name no file or the temporary file."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename in (None, str(temporary)):
            error.filename, error.filename2 = str(path), None
        raise


def temporary_sibling(path: Path) -> Path:
    """Returns an unused hidden name in the folder of ``path``, with the same suffix."""
    return path.with_name(f".{secrets.token_hex(4)}.{path.name}")


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yields a temporary path that becomes ``path`` at the end, for writers that need a path.

    The file is synced and renamed when the block succeeds and removed when it raises. At every moment
    ``path`` is either unchanged or complete.

    Raises:
        FileNotFoundError: The block wrote no file, or the folder does not exist.
    """
    temporary = temporary_sibling(path)
    with _errors_name(path, temporary):
        try:
            yield temporary
            _sync(temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    _sync(path.parent)


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Opens a file for writing that becomes ``path`` when the block succeeds; see `atomic_path`.

    Raises:
        FileNotFoundError: The folder does not exist.
    """
    with atomic_path(path) as temporary, temporary.open("xb") as file:
        yield file


def write_text(path: Path, text: str) -> None:
    """Writes ``text`` as UTF-8, atomically."""
    with atomic_write(path) as file:
        file.write(text.encode("utf-8"))


def append_text(file: TextIO, text: str) -> None:
    """Appends text to an open file and flushes it.

    Raises:
        OSError: The write failed. The error names the file, which the system's own error does not.
    """
    try:
        file.write(text)
        file.flush()
    except OSError as error:
        error.filename = error.filename or str(file.name)
        raise


def check_writable(path: Path) -> None:
    """Checks, before long work, that a file or folder can be created or written. Creates nothing.

    Raises:
        OSError: ``path``, or the nearest folder above it, is not writable.
    """
    existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if existing != path and not existing.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(existing))
    if not os.access(existing, os.W_OK):
        raise PermissionError(errno.EACCES, "can't be written", str(existing))


def create_output_dir(folder: Path, fix: str = "set Global.output_dir") -> Path:
    """Creates an output folder, checks that it can be written, and returns it.

    Args:
        fix: Advice at the end of the error.

    Raises:
        UserError: The folder can't be created or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".writable.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"{folder}: can't write to this output folder: {error.strerror}; {fix}") from None
    return folder


@contextmanager
def new_folder(path: Path, *, sync_each: bool = False) -> Iterator[Path]:
    """Yields an empty temporary folder that becomes ``path`` when the block succeeds.

    The folder and its content are removed when the block raises. Missing parents are created. Everything is
    on disk before the folder gets its name.

    Args:
        sync_each: Sync file by file, which reports write errors. Suited to a few large files; otherwise one
            call syncs all disks and reports no errors.

    Raises:
        FileExistsError: ``path`` exists before or after the block.
    """
    if path.exists():
        raise FileExistsError(f"{path} exists already")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_sibling(path)
    with _errors_name(path, temporary):
        temporary.mkdir()
    try:
        yield temporary
        if path.exists():
            raise FileExistsError(f"{path} was created by another process in the meantime")
        if sync_each:
            for entry in (*temporary.rglob("*"), temporary):
                _sync(entry)
        else:
            os.sync()
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    _sync(path.parent)


class LogWriter:
    """Appends lines to the file ``path`` and flushes each.

    So ``tail -f`` shows it at once, and a crash loses none. Each line begins with the local time, such as
    ``2026-01-31 23:59:59``.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def message(self, text: str) -> None:
        """Writes ``text`` with a time stamp on each of its lines."""
        now = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S")
        append_text(self._file, "".join(f"{now} {line}\n" for line in text.splitlines() or [""]))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class _LossyStream(io.TextIOBase):
    """Writes to a terminal, pipe or file, and drops what its reader does not accept in time.

    Args:
        stream: A stream of the process.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._descriptor, self._reopened = stream, stream.fileno(), False
        self._patience, self._failed = _PATIENCE, False
        mode = os.fstat(self._descriptor).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
            with suppress(OSError):  # opened again: the flag would apply to all processes that share it
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY
                self._descriptor = os.open(f"/proc/self/fd/{self._descriptor}", flags)
                self._reopened = True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Encoding of the stream."""
        return self._stream.encoding

    def isatty(self) -> bool:
        """Returns whether the stream is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """Returns the descriptor of the stream."""
        return self._stream.fileno()

    def write(self, text: str) -> int:
        """Writes text, or drops the rest of it. After a drop, the next call does not wait."""
        data = text.encode(self.encoding, "replace")
        try:
            while data and not self._failed:
                if not select.select([], [self._descriptor], [], self._patience)[1]:
                    self._patience = 0.0
                    break
                data = data[os.write(self._descriptor, data) :]
            else:
                self._patience = _PATIENCE
        except BlockingIOError:
            self._patience = 0.0
        except OSError:  # such as a closed pipe or a full disk
            self._failed = True
        return len(text)

    def close(self) -> None:
        """Closes what this object opened, not the stream."""
        if self._reopened:
            self._reopened = False
            os.close(self._descriptor)
        super().close()


def lossy(stream: TextIO) -> TextIO:
    """Returns a stream that drops text instead of waiting for a reader who paused.

    Args:
        stream: Standard output or standard error. Streams that replace them in this process, as in notebooks,
            are returned unchanged.
    """
    if stream not in (sys.__stdout__, sys.__stderr__):
        return stream
    if stream is sys.__stdout__:
        stream.flush()  # standard error has no buffer
    return cast(TextIO, _LossyStream(stream))


def print_error(text: str) -> None:
    """Prints a line on standard error, or drops it if nobody reads it."""
    stream = lossy(sys.stderr)
    stream.write(f"{text}\n")
    stream.flush()
