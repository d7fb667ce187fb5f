"""Downloads the objects of coming batches before the loader needs them."""

from __future__ import annotations

import queue
import threading
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ppcls.data.sampling.order import BatchOrder, Cursor
from ppcls.errors import UserError
from ppcls.files.objects import ObjectInfo

_THREADS = 32


@runtime_checkable
class StoredIndex(Protocol):
    """The part of the index of a data set in object storage that reading ahead needs.

    Attributes:
        ahead: Number of images to read ahead.
    """

    ahead: int

    def objects(self, positions: NDArray[np.int64]) -> Iterable[tuple[str, ObjectInfo]]:
        """Returns the names and properties of the objects of samples."""

    def fetch(self, name: str, info: ObjectInfo) -> object:
        """Downloads an object unless there is a copy."""


class ReadAhead:
    """Downloads the objects of coming batches in threads.

    An object that can't be downloaded is no error here. The loader tries again when it needs the object, and
    reports the error.

    Args:
        index: The samples.
        order: The batches.
    """

    def __init__(self, index: StoredIndex, order: BatchOrder) -> None:
        self._index = index
        self._order = order
        self._steps = max(index.ahead // max(order.batch_size, 1), 1)
        self._next: Cursor | None = None
        self._requested: OrderedDict[str, tuple[int, int]] = (
            OrderedDict()
        )  # last batch that needs each object
        self._queue: queue.SimpleQueue[tuple[str, ObjectInfo] | None] = queue.SimpleQueue()
        self._started = False

    def move(self, cursor: Cursor) -> None:
        """Requests the objects of the batches from ``cursor`` on that were not requested before."""
        if not self._started:
            self._started = True
            for _ in range(_THREADS):
                threading.Thread(target=self._download, daemon=True).start()
        steps = len(self._order)
        end = cursor.next(steps, self._steps)
        position = self._next
        if position is None or not (cursor.epoch, cursor.step) <= (position.epoch, position.step):
            position = cursor  # the run has moved to another position
        while (position.epoch, position.step) < (end.epoch, end.step):
            for name, info in self._index.objects(self._order.at(position).indices):
                if name not in self._requested:
                    self._queue.put((name, info))
                self._requested[name] = (position.epoch, position.step)
                self._requested.move_to_end(name)
            position = position.next(steps)
        self._next = position
        # Copies of objects that were used may be removed, so the next epoch requests them again.
        while self._requested and next(iter(self._requested.values())) < (cursor.epoch, cursor.step):
            self._requested.popitem(last=False)

    def _download(self) -> None:
        while True:
            item = self._queue.get()
            if item is None:
                return
            with suppress(UserError, FileNotFoundError):
                self._index.fetch(*item)

    def close(self) -> None:
        """Ends the threads after the downloads in progress, without those that have not started."""
        with suppress(queue.Empty):
            while True:
                self._queue.get_nowait()
        for _ in range(_THREADS if self._started else 0):
            self._queue.put(None)
