"""What several requests ask of one model, in batches; each gets its own results."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True, eq=False)
class _Waiting(Generic[_Item, _Result]):
    item: _Item
    result: asyncio.Future[_Result]


class Batcher(Generic[_Item, _Result]):
    """Gathers items into batches, and hands each result to who gave the item.

    A batch begins as soon as the model is free and an item waits; where there are fewer than ``max_batch``,
    others have ``max_wait`` seconds to join. So an idle server answers after that, and a busy one has full
    batches without waiting.

    Args:
        work: Maps a batch to as many results; called for one batch after the other.
        max_batch: Items of a batch, at most.
        max_wait: Seconds that the first item of a batch waits for others.
    """

    def __init__(
        self,
        work: Callable[[list[_Item]], Awaitable[Sequence[_Result]]],
        max_batch: int,
        max_wait: float,
    ) -> None:
        self._work, self._max_batch, self._max_wait = work, max_batch, max_wait
        self._waiting: deque[_Waiting[_Item, _Result]] = deque()
        self._came = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to work, in the running event loop."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Ends; what still waits is given up."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for each in self._waiting:
            each.result.cancel()
        self._waiting.clear()

    async def put(self, item: _Item) -> _Result:
        """Returns an item's result. An item whose caller has gone meanwhile takes no place in a batch."""
        waiting = _Waiting[_Item, _Result](item, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._came.set()
        return await waiting.result

    async def _run(self) -> None:
        while True:
            batch = await self._next()
            try:
                results = await self._work([each.item for each in batch])
            except Exception as error:  # noqa: BLE001 - whose it is, a request says
                for each in batch:
                    if not each.result.done():
                        each.result.set_exception(error)
                continue
            for each, result in zip(batch, results, strict=True):
                if not each.result.done():
                    each.result.set_result(result)

    async def _next(self) -> list[_Waiting[_Item, _Result]]:
        """Waits for a batch that is not empty."""
        loop = asyncio.get_running_loop()
        batch: list[_Waiting[_Item, _Result]] = []
        until: float | None = None
        while True:
            while self._waiting and len(batch) < self._max_batch:
                batch.append(self._waiting.popleft())
            batch = [each for each in batch if not each.result.done()]
            left = None if not batch else (until := until or loop.time() + self._max_wait) - loop.time()
            if len(batch) == self._max_batch or (left is not None and left <= 0):
                return batch
            self._came.clear()
            try:
                await asyncio.wait_for(self._came.wait(), left)
            except asyncio.TimeoutError:
                continue
