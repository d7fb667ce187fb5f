"""Ends waits for named pipes that have replaced image files since the dataset was checked."""

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
    """Makes DALI fail on a named pipe instead of waiting forever for its other end.

    DALI opens files in threads of its own, which no signal interrupts. So whenever the loader has waited for
    a second, a thread opens and closes the other end of all pipes among the files that DALI may be reading.
    If it may not write to a pipe, it interrupts DALI's threads by SIGURG, whose handler does nothing.

    Args:
        readers: The readers of DALI's pipelines.
    """

    def __init__(self, index: Index, readers: Sequence[Reader]) -> None:
        self._index, self._readers = index, readers
        self._since: float | None = None
        self._stop = threading.Event()
        if isinstance(index, FileIndex):
            with suppress(ValueError):  # only the main thread can set a handler
                if signal.getsignal(signal.SIGURG) is signal.SIG_DFL:
                    signal.signal(signal.SIGURG, lambda *_: None)
            threading.Thread(target=self._watch, name="pipes", daemon=True).start()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Watches while the block runs."""
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._since = None

    def close(self) -> None:
        """Ends the thread."""
        self._stop.set()

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
    """Opens a named pipe for writing, if another thread waits for that, and closes it."""
    with suppress(OSError):
        if stat.S_ISFIFO(os.stat(path).st_mode):  # noqa: PTH116 - bytes
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            except PermissionError:
                _interrupt_threads()


def _interrupt_threads() -> None:
    """Makes blocking system calls of the process's other threads fail with EINTR."""
    if signal.getsignal(signal.SIGURG) in (signal.SIG_DFL, signal.SIG_IGN):
        return
    number, process = _TGKILL.get(platform.machine()), os.getpid()
    for entry in Path("/proc/self/task").iterdir():
        thread = int(entry.name)
        if number is not None and thread not in (process, threading.get_native_id()):
            ctypes.CDLL(None).syscall(number, process, thread, signal.SIGURG)
