"""A lock that prevents two runs from using the same output folder."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import time
from contextlib import ExitStack
from pathlib import Path

from ppcls.errors import UserError

LOCK = ".lock"
_TIMEOUT = 5.0  # seconds, because a run that was just killed may need some time to end
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


def _open(path: Path) -> int:
    """Opens the lock file. A link could lead to another file, whose content would be lost."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        file = os.open(path, flags, 0o644)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UserError(f"{path}: expected a regular file, found a link; remove it") from None
        raise
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise UserError(f"{path}: expected a regular file, found a pipe or a device; remove it")
    return file


class OutputLock:
    """Locks an output folder until `release`, or until the process ends.

    This is a POSIX record lock. When a process crashes, the system releases its lock; the remaining file has
    no effect. Forked workers do not inherit the lock. On network file systems that support record locks, the
    lock also works between machines.

    Args:
        folder: Existing output folder.
        timeout: Seconds to wait for another run to release the lock.

    Attributes:
        note: Line for the log if the file system does not support locks, else empty.

    Raises:
        UserError: Another run holds the lock.
        OSError: The lock file can't be written.
    """

    def __init__(self, folder: Path, timeout: float = _TIMEOUT) -> None:
        self._folder = folder
        self.note = ""
        self._file: int | None = _open(folder / LOCK)
        with ExitStack() as failure:
            failure.callback(self.release)
            try:
                self._acquire(time.monotonic() + timeout)
            except OSError as error:
                error.filename = error.filename or str(folder / LOCK)  # missing in errors of os.pwrite
                raise
            failure.pop_all()

    def release(self) -> None:
        """Releases the lock."""
        if self._file is not None:
            os.close(self._file)
        self._file = None

    def _acquire(self, deadline: float) -> None:
        assert self._file is not None
        while True:
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in _UNSUPPORTED:
                    self.note = (
                        f"{self._folder}: this file system does not support locks; "
                        "make sure that no other run writes there"
                    )
                    return
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    raise
                if time.monotonic() >= deadline:
                    holder = os.pread(self._file, 200, 0).decode(errors="replace").strip() or "unknown"
                    raise UserError(
                        f"{self._folder}: another run is writing here ({holder}); wait until it ends, or set "
                        "another Global.output_dir"
                    ) from None
                time.sleep(0.1)
            else:
                os.ftruncate(self._file, 0)
                os.pwrite(self._file, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
                return
