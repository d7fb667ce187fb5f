"""Unblocks DALI when it waits for a named pipe.

A pipe may have replaced an image file after the dataset was checked.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ppcls.data.index.files import FileIndex
from ppcls.data.index.protocol import Index

if TYPE_CHECKING:  # only for annotations
    from ppcls.data.loaders.dali.reader import Reader

_INTERVAL = 1.0  # seconds
_TGKILL = {"x86_64": 234, "aarch64": 131}  # number of the system call that signals a single thread


class PipeUnblocker:
    """Makes DALI fail on a named pipe instead of waiting forever for a writer.

    DALI opens files in its own threads, which Ctrl-C does not interrupt. If the loader has waited for a
    second, a watching thread opens and closes the other end of every pipe among the files that DALI may be
    reading. If the process has no permission to write to a pipe, the watching thread sends SIGURG to DALI's
    threads. The handler of SIGURG does nothing, but the signal interrupts the blocking call.

    Args:
        index: The samples. Only image files are watched.
        readers: Readers of DALI's pipelines.
    """

    def __init__(self, index: Index, readers: Sequence[Reader]) -> None:
        self._index = index
        self._readers = readers
        self._since: float | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if isinstance(index, FileIndex):
            with suppress(ValueError):  # only the main thread can set a handler
                if signal.getsignal(signal.SIGURG) is signal.SIG_DFL:
                    signal.signal(signal.SIGURG, lambda *_: None)
            self._thread = threading.Thread(target=self._watch, name="pipes", daemon=True)
            self._thread.start()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Returns a context in which the thread watches for pipes."""
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._since = None

    def close(self) -> None:
        """Ends the watching thread. It never blocks, so this takes no longer than one of its rounds."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(_INTERVAL):
            since = self._since
            if since is None or time.monotonic() - since < _INTERVAL:
                continue
            for reader in self._readers:
                for _, step in tuple(reader.under_way):
                    for position in step.indices.tolist():
                        _unblock(self._index.path(position))  # type: ignore[attr-defined]


def _unblock(path: bytes) -> None:
    """Opens a named pipe for writing and closes it, so that a thread that waits for a writer continues."""
    with suppress(OSError):
        if stat.S_ISFIFO(os.stat(path).st_mode):  # noqa: PTH116 - bytes
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            except PermissionError:
                _interrupt_threads()


def _interrupt_threads() -> None:
    """Makes blocking system calls in the other threads of this process fail with EINTR."""
    if signal.getsignal(signal.SIGURG) in (signal.SIG_DFL, signal.SIG_IGN):
        return
    number = _TGKILL.get(platform.machine())
    process = os.getpid()
    for entry in Path("/proc/self/task").iterdir():
        thread = int(entry.name)
        if number is not None and thread not in (process, threading.get_native_id()):
            ctypes.CDLL(None).syscall(number, process, thread, signal.SIGURG)
