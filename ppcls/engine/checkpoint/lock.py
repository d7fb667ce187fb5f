"""An output folder belongs to one run at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from pathlib import Path

from ppcls.errors import UserError

LOCK = ".lock"
_PATIENCE = 5.0  # seconds: a run that was killed just now may still be ending
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class OutputLock:
    """Holds an output folder until `release`, or until the process ends, however it does.

    The lock is the system's (POSIX record locks): what a dead run leaves is a file, which holds nobody up,
    and forked workers don't have it. It reaches over network drives that support such locks.

    Args:
        folder: The output folder.
        patience: Seconds to wait for another run to end.

    Attributes:
        note: For the log, where the file system has no locks; else empty.

    Raises:
        UserError: Another run holds it.
        OSError: The lock's file can't be written.
    """

    def __init__(self, folder: Path, patience: float = _PATIENCE) -> None:
        self._folder, self.note = folder, ""
        self._file: int | None = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._take(time.monotonic() + patience)
        except OSError as error:
            self.release()
            error.filename = error.filename or str(folder / LOCK)  # a write that fails names no file
            raise
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Lets go of the folder."""
        if self._file is not None:
            os.close(self._file)
        self._file = None

    def _take(self, until: float) -> None:
        assert self._file is not None
        while True:
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in _UNSUPPORTED:
                    self.note = f"{self._folder}: no locks on this file system; keep other runs out of it"
                    return
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    raise
                if time.monotonic() >= until:
                    holder = os.pread(self._file, 200, 0).decode(errors="replace").strip() or "unknown"
                    raise UserError(
                        f"{self._folder}: another run is writing here ({holder}); wait for its end, or set "
                        "another Global.output_dir"
                    ) from None
                time.sleep(0.1)
            else:
                os.ftruncate(self._file, 0)
                os.pwrite(self._file, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
                return
