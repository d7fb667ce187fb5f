"""Collects the items of several requests into batches and returns to each request its own results."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True, eq=False)
class _PendingItem(Generic[_Item, _Result]):
    item: _Item
    result: asyncio.Future[_Result]


class Batcher(Generic[_Item, _Result]):
    """Collects items into batches and processes one batch after the other.

    A batch starts as soon as the model is free and an item waits. If it has fewer than ``max_batch`` items,
    others have ``max_wait`` seconds to join. An idle server therefore answers after that time, and a busy
    one has full batches without waiting.

    Args:
        process: Maps a batch to one result per item.
        max_batch: Maximum number of items of a batch.
        max_wait: Seconds that the first item of a batch waits for others.
        count_coming: Returns the number of items that were or will be put and have no result. A batch of all
            of them starts at once. By default it is not known.
    """

    def __init__(
        self,
        process: Callable[[list[_Item]], Awaitable[Sequence[_Result]]],
        max_batch: int,
        max_wait: float,
        count_coming: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self._process, self._max_batch, self._max_wait = process, max_batch, max_wait
        self._count_coming = count_coming
        self._pending: deque[_PendingItem[_Item, _Result]] = deque()
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        """Whether items are processed."""
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        """Starts processing in the running event loop."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stops processing and cancels all pending items."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for pending in self._pending:
            pending.result.cancel()
        self._pending.clear()

    async def put(self, item: _Item) -> _Result:
        """Returns the result of an item. If the caller is cancelled, the item leaves its batch."""
        pending = _PendingItem[_Item, _Result](item, asyncio.get_running_loop().create_future())
        self._pending.append(pending)
        self._arrived.set()
        return await pending.result

    async def _run(self) -> None:
        while True:
            batch = await self._next_batch()
            try:
                results = await self._process([pending.item for pending in batch])
            except Exception as error:  # noqa: BLE001 - the requests of the batch report it
                for pending in batch:
                    if not pending.result.done():
                        pending.result.set_exception(error)
                continue
            for pending, result in zip(batch, results, strict=True):
                if not pending.result.done():
                    pending.result.set_result(result)

    async def _next_batch(self) -> list[_PendingItem[_Item, _Result]]:
        """Waits for a batch of at least one item."""
        loop = asyncio.get_running_loop()
        batch: list[_PendingItem[_Item, _Result]] = []
        deadline: float | None = None
        while True:
            while self._pending and len(batch) < self._max_batch:
                batch.append(self._pending.popleft())
            batch = [pending for pending in batch if not pending.result.done()]
            left = None
            if batch:
                deadline = deadline or loop.time() + self._max_wait
                left = deadline - loop.time()
            everything = len(batch) >= min(self._max_batch, self._count_coming())
            if left is not None and (everything or left <= 0):
                return batch
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), left)
            except asyncio.TimeoutError:
                continue
