"""Functions for files: atomic writes, reads of regular files only, and retries after transient errors."""

from __future__ import annotations

import errno
import io
import os
import re
import select
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, TextIO, TypeVar, cast

from ppcls.errors import UserError
from ppcls.files.temporary import is_temporary_sibling, locked_sibling, remove_leftovers

MODEL_COPY = "-model"  # end of the name of the copy of a model in object storage
IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".jp2")
_T = TypeVar("_T")
# Errors of network drives after which a retry often succeeds.
_TRANSIENT = {
    getattr(errno, name)
    for name in (
        *("EIO", "EAGAIN", "ESTALE", "ETIMEDOUT", "ECONNRESET", "ECONNABORTED", "ENETDOWN", "ENETUNREACH"),
        *("EHOSTDOWN", "EHOSTUNREACH", "ENOTCONN", "EREMOTEIO"),
    )
}
RETRY_DELAYS = (0.5, 2.0, 5.0)  # seconds
_MAX_BYTES = 1 << 30  # limit of `read_regular`
# C0 except tab and line feed, delete, C1, marks and overrides of the direction of text, and line separators
_CONTROLS = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069]"
)
# Folders of network drives (Synology, QNAP), of macOS and Windows, of file systems, and of Python.
_SYSTEM_FOLDERS = re.compile(
    r"@eaDir|@tmp|@sharebin|@Recycle|@Recently-Snapshot|@__thumb|#recycle|#snapshot|~snapshot"
    r"|__MACOSX|Network Trash Folder|Temporary Items|TheVolumeSettingsFolder"
    r"|@Syno\w+|@Trash|#trash|_gsdata_|RECYCLER"
    r"|System Volume Information|\$RECYCLE\.BIN|\$WinREAgent|found\.\d{3}|lost\.dir|lost\+found|__pycache__",
    re.IGNORECASE,
)
_WRITE_TIMEOUT = 0.2  # seconds that `_LossyStream` waits for its reader


def retry_io(act: Callable[[], _T], delays: Sequence[float] | None = None) -> _T:
    """Calls ``act``, retries it after transient errors, and returns its result.

    Args:
        act: Function to call. It must be safe to call several times.
        delays: Seconds before each retry; `RETRY_DELAYS` by default.

    Raises:
        OSError: The last attempt failed, or an error is permanent, such as that of a full disk.
    """
    for delay in RETRY_DELAYS if delays is None else delays:
        try:
            return act()
        except OSError as error:
            if not is_transient(error):
                raise
        time.sleep(delay)
    return act()


def is_transient(error: OSError) -> bool:
    """Returns whether an error is one of network drives, after which another try often succeeds."""
    return error.errno in _TRANSIENT


def is_image_name(name: str, extensions: tuple[str, ...]) -> bool:
    """Returns whether a file has one of the extensions and is not hidden, such as macOS's ``._1.jpg``."""
    return name.lower().endswith(extensions) and not name.startswith(".")


def is_system_folder(name: str) -> bool:
    """Returns whether a folder is hidden, or made by a system, such as the thumbnails of a network drive."""
    return name.startswith(".") or bool(_SYSTEM_FOLDERS.fullmatch(name))


def expand_home(text: str) -> str:
    """Expands a leading ``~/``, which the shell does not do after an equals sign."""
    return str(Path(text).expanduser()) if text.startswith("~/") else text


def real_path(path: Path) -> Path:
    """Returns the absolute path without links. Unlike `Path.resolve`, it accepts a loop of links."""
    return Path(os.path.realpath(path))


@contextmanager
def open_regular(path: Path) -> Iterator[BinaryIO]:
    """Opens a regular file for reading. Rejects a pipe immediately instead of waiting for its writer.

    Raises:
        OSError: The file can't be read or is not a regular file.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        yield file


def read_regular(path: Path) -> bytes:
    """Returns the whole content of a file, such as a list of images.

    Raises:
        OSError: The file can't be read, is not a regular file, or is larger than 1 GiB.
    """
    with open_regular(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > _MAX_BYTES:
            raise OSError(errno.EFBIG, f"{size} bytes; expected at most {_MAX_BYTES}", str(path))
        return file.read()


def file_states(folder: Path, *patterns: str) -> frozenset[tuple[str | int, ...]]:
    """Returns the inode of a folder, and the names, inodes, sizes and modification times of files in it.

    Two results differ if the folder or one of the files was replaced or written in between.

    Args:
        folder: Folder.
        patterns: Patterns of the names of the files.

    Raises:
        OSError: The folder is missing, or a file was removed meanwhile.
    """
    files = [
        (path.name, path.stat()) for pattern in patterns for path in folder.glob(pattern) if path.is_file()
    ]
    states = [(name, state.st_ino, state.st_size, state.st_mtime_ns) for name, state in files]
    return frozenset([(folder.stat().st_ino,), *states])


def _sync(path: Path) -> None:
    """Flushes a file's content, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _errors_name(path: Path) -> Iterator[None]:
    """Sets the file name of an OSError to ``path`` if it is missing, or is a temporary file for ``path``."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and _is_temporary(error.filename, path):
            error.filename = str(path)
            error.filename2 = None
        raise


def _is_temporary(name: Any, path: Path) -> bool:
    if name is None:
        return True
    if not isinstance(name, (str, bytes, os.PathLike)):  # a descriptor
        return False
    file = Path(os.fsdecode(name))
    return any(is_temporary_sibling(part, path) for part in (file, file.parent))


@contextmanager
def atomic_path(path: Path, *, clean: bool = True) -> Iterator[Path]:
    """Yields a temporary path to write to, and moves the file to ``path`` when the block succeeds.

    The file is synced to disk before it is moved, and removed when the block raises. Therefore ``path`` is
    always either unchanged or complete. If the process is killed, the next call for the same path removes the
    temporary file.

    Args:
        path: Path of the file.
        clean: Whether to remove temporary files of processes that were killed. This lists the folder, which
            takes long if it has very many files.

    Raises:
        FileNotFoundError: The block wrote no file, or the folder does not exist.
    """
    if clean:
        remove_leftovers(path)
    # A locked folder, because the block may write the file with a library, which could replace a locked file.
    with _errors_name(path), locked_sibling(path) as folder:
        temporary = folder / path.name
        yield temporary
        _sync(temporary)
        temporary.replace(path)
        with suppress(OSError):  # not empty; the context removes it
            folder.rmdir()
    _sync(path.parent)


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Opens a temporary file for writing, and renames it to ``path`` when the block succeeds.

    See `atomic_path`.

    Raises:
        FileNotFoundError: The folder does not exist.
    """
    with atomic_path(path) as temporary, temporary.open("xb") as file:
        yield file


def write_text(path: Path, text: str) -> None:
    r"""Writes text as UTF-8, atomically. Bytes of names that are not UTF-8 are written as ``\udcff``."""
    with atomic_write(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def append_text(file: TextIO, text: str) -> None:
    """Appends text to an open file and flushes it.

    Raises:
        OSError: The write failed. Unlike the original error, this one names the file.
    """
    try:
        file.write(text)
        file.flush()
    except OSError as error:
        error.filename = error.filename or str(file.name)
        raise


def check_writable(path: Path) -> None:
    """Checks that a file or folder can be created or written, without creating it.

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
        folder: Folder to create, with its parents. It may exist.
        fix: Advice at the end of the error message.

    Raises:
        UserError: The folder can't be created or written.
    """
    try:
        if os.path.lexists(folder) and not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "is a file, a loop of links, or a link to nothing")
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".writable.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"{folder}: can't write to this output folder: {error.strerror}; {fix}") from None
    return folder


@contextmanager
def new_folder(path: Path, *, sync_each: bool = False) -> Iterator[Path]:
    """Yields an empty temporary folder, and renames it to ``path`` when the block succeeds.

    The folder and its content are removed when the block raises, or, if the process is killed, by the next
    call for the same path. Missing parents are created. All content is
    synced to disk before the folder is renamed.

    Args:
        path: Path of the new folder.
        sync_each: Whether to sync each file on its own, which reports write errors and suits a few large
            files. If False, one call syncs all disks and reports no errors.

    Raises:
        FileExistsError: ``path`` exists before or after the block.
    """
    if path.exists():
        raise FileExistsError(f"{path} exists already")
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path)
    with ExitStack() as stack:
        with _errors_name(path):
            temporary = stack.enter_context(locked_sibling(path))
        yield temporary
        if path.exists():
            raise FileExistsError(f"{path} was created by another process in the meantime")
        if sync_each:
            for entry in (*temporary.rglob("*"), temporary):
                _sync(entry)
        else:
            os.sync()
        temporary.rename(path)
    _sync(path.parent)


def open_append(path: Path) -> TextIO:
    """Opens a text file of a run to append to it, and creates it if it is missing.

    A link could lead to another file of the user, and a pipe would wait for its reader.

    Raises:
        UserError: The path is a link, or not a regular file.
        OSError: The file can't be opened.
    """
    return open(path, "a", encoding="utf-8", opener=lambda *_: _open_descriptor(path))


def append_bytes(path: Path, data: bytes) -> None:
    """Appends to a file of a run with a single write, so that lines of different processes don't mix.

    Raises:
        UserError: The path is a link, or not a regular file.
        OSError: The file can't be written.
    """
    with open(path, "ab", buffering=0, opener=lambda *_: _open_descriptor(path)) as file:
        file.write(data)


def _open_descriptor(path: Path) -> int:
    """Opens a regular file to append to it, and returns its descriptor."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    reason = f"{path}: expected a regular file, found a link or a pipe; remove it, or set Global.output_dir"
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise UserError(reason) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UserError(reason)
    return descriptor


def check_replaceable(path: Path) -> None:
    """Checks that a file that a run will write or replace is missing or a regular file.

    Raises:
        UserError: The path is a folder, a link, a pipe or a device.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFLNK: "a link", stat.S_IFIFO: "a pipe"}
    kind = stat.S_IFMT(mode)
    if kind != stat.S_IFREG:
        raise UserError(
            f"{path}: expected a regular file or nothing, found {kinds.get(kind, 'a device or a socket')}; "
            "move it away, or set Global.output_dir"
        )


class LogWriter:
    """Appends messages to the file ``path``, and flushes each message.

    Therefore ``tail -f`` shows a message immediately, and a crash loses no messages. Each line begins with
    the local time, such as ``2026-01-31 23:59:59``.
    """

    def __init__(self, path: Path) -> None:
        self._file = open_append(path)

    def message(self, text: str) -> None:
        """Writes ``text`` with a time stamp on each of its lines."""
        now = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S")
        lines = for_terminal(text).splitlines() or [""]
        append_text(self._file, "".join(f"{now} {line}\n" for line in lines))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class _LossyStream(io.TextIOBase):
    """Writes text to a terminal, pipe or file, and drops text that the reader does not accept in time.

    Args:
        stream: Standard output or standard error of the process.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._descriptor = stream.fileno()
        self._reopened = False
        self._timeout = _WRITE_TIMEOUT
        self._failed = False
        self._is_cut = False
        mode = os.fstat(self._descriptor).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
            with suppress(OSError):  # reopen: O_NONBLOCK would apply to all processes that share the stream
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
        """Writes text, or drops it after a timeout. After a drop, the next call does not wait.

        If a part was written before, as of a text of more than 4,096 bytes, the next text begins a new line.
        """
        data = text.encode(self.encoding, self._stream.errors or "replace")
        if self._is_cut:
            data = b"\n" + data
        whole = len(data)
        try:
            while data and not self._failed:
                if not select.select([], [self._descriptor], [], self._timeout)[1]:
                    self._timeout = 0.0
                    break
                data = data[os.write(self._descriptor, data) :]
            else:
                self._timeout = _WRITE_TIMEOUT
        except BlockingIOError:
            self._timeout = 0.0
        except OSError:  # such as a closed pipe or a full disk
            self._failed = True
        if len(data) < whole:
            self._is_cut = bool(data)
        return len(text)

    def close(self) -> None:
        """Closes the descriptor that this object opened, but not the stream."""
        if self._reopened:
            self._reopened = False
            os.close(self._descriptor)
        super().close()


def lossy(stream: TextIO | None) -> TextIO:
    """Returns a stream that drops text instead of waiting for a slow reader.

    Args:
        stream: Standard output or standard error of the process. Any other stream, such as that of a
            notebook, is returned unchanged. If it is None, because the process has no such stream, all text
            is dropped.
    """
    if stream is None:
        return io.StringIO()
    is_output = stream is sys.__stdout__
    is_error = stream is sys.__stderr__
    if not (is_output or is_error):
        return stream
    if is_output:
        stream.flush()  # standard error has no buffer
    return cast(TextIO, _LossyStream(stream))


def escape_controls(text: str) -> str:
    r"""Returns text without characters that control a terminal or change the direction of text.

    Names of classes and files can come from strangers. Line feeds and tabs remain. Other characters are
    written as ``\x1b`` or ``\u202e``; the second form is also valid in a line of JSON.
    """
    return _CONTROLS.sub(_escape, text)


def for_terminal(text: str) -> str:
    """Returns text without controls, and with the addresses of models in object storage."""
    if MODEL_COPY in text:
        from ppcls.files.urls import show_addresses  # slow, and rarely needed

        text = show_addresses(text)
    return escape_controls(text)


def one_line(name: Path | str) -> str:
    r"""Returns a name or path as one line of text.

    A file name can contain line breaks, with which a stranger could add a line to a log or an error message.
    They are written as ``\n``, and bytes that are not UTF-8 as ``\udcff``.
    """
    text = str(name).encode("utf-8", "backslashreplace").decode("utf-8")
    return escape_controls(text).replace("\n", "\\n").replace("\t", "\\t")


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < ord(" ") else f"\\u{code:04x}"


def print_error(text: str) -> None:
    """Prints a line on standard error, or drops the line if no process reads it."""
    stream = lossy(sys.stderr)
    stream.write(f"{for_terminal(text)}\n")
    stream.flush()
