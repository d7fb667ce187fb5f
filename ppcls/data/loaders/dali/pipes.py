"""Ends waits for named pipes that have replaced image files since the dataset was checked."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from ppcls.data.index.files import FileIndex
from ppcls.data.index.protocol import Index

if TYPE_CHECKING:  # only for annotations
    from ppcls.data.loaders.dali.reader import Reader

_INTERVAL = 1.0  # seconds


class PipeUnblocker:
    """Makes DALI fail on a named pipe instead of waiting for its other end for ever.

    DALI opens files in threads of its own, which no signal interrupts. So whenever the loader has waited for
    a second, a thread opens and closes the other end of all pipes among the files that DALI may be reading.

    Args:
        index: The samples.
        readers: The readers of DALI's pipelines.
    """

    def __init__(self, index: Index, readers: Sequence[Reader]) -> None:
        self._index, self._readers = index, readers
        self._since: float | None = None
        self._stop = threading.Event()
        if isinstance(index, FileIndex):
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
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
