"""Collects the items of several requests into batches, and returns the results to the requests."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import anyio

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True, eq=False)
class _PendingItem(Generic[_Item, _Result]):
    item: _Item
    result: asyncio.Future[_Result]


class Batcher(Generic[_Item, _Result]):
    """Collects items into batches, and processes one batch after another.

    A batch starts when the model is free and an item is pending. If further items are expected, the batch
    waits for them for at most ``max_wait`` seconds. An item therefore waits only if further items
    are expected. On a busy server, batches are full.

    Args:
        process: Function that maps a batch to one result per item.
        max_batch: Maximum number of items in a batch.
        max_wait: Maximum time in seconds that the first item of a batch waits for expected items.
    """

    def __init__(
        self,
        process: Callable[[list[_Item]], Awaitable[Sequence[_Result]]],
        max_batch: int,
        max_wait: float,
    ) -> None:
        self._process = process
        self._max_batch = max_batch
        self._max_wait = max_wait
        self._pending: deque[_PendingItem[_Item, _Result]] = deque()
        self._expected = 0
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        """Whether processing has been started and not stopped."""
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        """Starts to process items in the running event loop."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stops processing, and cancels all pending items."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for pending in self._pending:
            pending.result.cancel()
        self._pending.clear()

    @contextmanager
    def expecting(self, count: int) -> Iterator[None]:
        """Announces items that the ``with`` block may add. Batches wait for them until the end of the block.

        Args:
            count: Number of expected items.
        """
        self._expected += count
        try:
            yield
        finally:
            self._expected -= count
            self._changed.set()

    def put(self, item: _Item) -> asyncio.Future[_Result]:
        """Adds an item, and returns its future result. Cancelling the future removes the item."""
        pending = _PendingItem[_Item, _Result](item, asyncio.get_running_loop().create_future())
        self._pending.append(pending)
        self._changed.set()
        return pending.result

    async def _run(self) -> None:
        while True:
            batch = await self._next_batch()
            try:
                results = await self._process([pending.item for pending in batch])
            except Exception as error:  # noqa: BLE001 - all requests in the batch report it
                for pending in batch:
                    if not pending.result.done():
                        pending.result.set_exception(error)
                continue
            for pending, result in zip(batch, results, strict=True):
                if not pending.result.done():
                    pending.result.set_result(result)

    async def _next_batch(self) -> list[_PendingItem[_Item, _Result]]:
        """Waits until a batch with at least one item is complete, and returns it."""
        batch: list[_PendingItem[_Item, _Result]] = []
        deadline = math.inf
        while True:
            while self._pending and len(batch) < self._max_batch:
                batch.append(self._pending.popleft())
            # Requests whose clients have gone are cancelled while the batch waits.
            batch = [pending for pending in batch if not pending.result.done()]
            now = anyio.current_time()
            deadline = min(deadline, now + self._max_wait) if batch else math.inf
            if batch and (len(batch) == self._max_batch or not self._expected or now >= deadline):
                return batch
            self._changed.clear()
            with anyio.move_on_after(deadline - now):
                await self._changed.wait()
