from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from runs import GUARD

from ppcls.serve.batcher import Batcher


def with_batcher(
    act: Callable[[Batcher[int, int]], Awaitable[Any]],
    process: Callable[[list[int]], Awaitable[Sequence[int]]],
    max_batch: int = 4,
    max_wait: float = 0.0,
) -> Any:
    async def run() -> Any:
        batcher = Batcher[int, int](process, max_batch, max_wait)
        batcher.start()
        try:
            return await act(batcher)
        finally:
            await batcher.stop()

    return asyncio.run(run())


@settings(max_examples=40)
@given(st.lists(st.integers(0, 3), max_size=30), st.integers(1, 8))
def test_batcher_returns_each_item_its_result_in_bounded_batches(waits: list[int], max_batch: int) -> None:
    sizes: list[int] = []

    async def process(batch: list[int]) -> list[int]:
        sizes.append(len(batch))
        await asyncio.sleep(0)
        return [10 * each for each in batch]

    async def ask(batcher: Batcher[int, int], item: int, turns: int) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        return await batcher.put(item)

    async def act(batcher: Batcher[int, int]) -> list[int]:
        return await asyncio.gather(*(ask(batcher, at, turns) for at, turns in enumerate(waits)))

    assert with_batcher(act, process, max_batch) == [10 * at for at in range(len(waits))]
    assert sum(sizes) == len(waits)
    assert max(sizes, default=0) <= max_batch


def test_batcher_collects_items_while_busy_and_waits_for_more() -> None:
    batches: list[list[int]] = []
    free = asyncio.Event()

    async def process(batch: list[int]) -> list[int]:
        batches.append(batch)
        await free.wait()
        return batch

    async def act(batcher: Batcher[int, int]) -> None:
        tasks = [asyncio.create_task(batcher.put(each)) for each in (0, 1, 2, 3)]
        while not batches:
            await asyncio.sleep(0)
        tasks += [asyncio.create_task(batcher.put(each)) for each in (4, 5, 6, 7)]
        await asyncio.sleep(0)
        free.set()
        await asyncio.gather(*tasks)
        late = asyncio.create_task(batcher.put(8))
        await asyncio.sleep(0.05)
        assert not late.done(), "others may join"
        await asyncio.gather(late, *map(batcher.put, (9, 10, 11)))

    with_batcher(act, process, max_batch=4, max_wait=60.0)
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_batch_of_all_coming_items_starts_without_waiting() -> None:
    batches: list[list[int]] = []

    async def process(batch: list[int]) -> list[int]:
        batches.append(batch)
        return batch

    async def run() -> None:
        batcher = Batcher[int, int](process, 4, 1000.0, lambda: 2)
        batcher.start()
        first = asyncio.create_task(batcher.put(0))
        await asyncio.sleep(0.05)
        assert not first.done(), "one more is coming"
        await asyncio.gather(first, batcher.put(1))
        await batcher.stop()

    asyncio.run(asyncio.wait_for(run(), GUARD))
    assert batches == [[0, 1]]


def test_cancelled_item_leaves_its_batch() -> None:
    batches: list[list[int]] = []
    free = asyncio.Event()

    async def process(batch: list[int]) -> list[int]:
        batches.append(batch)
        await free.wait()
        return batch

    async def act(batcher: Batcher[int, int]) -> None:
        first = asyncio.create_task(batcher.put(0))
        while not batches:
            await asyncio.sleep(0)
        gone = asyncio.create_task(batcher.put(1))
        last = asyncio.create_task(batcher.put(2))
        await asyncio.sleep(0)
        gone.cancel()
        free.set()
        assert await asyncio.gather(first, last) == [0, 2]

    with_batcher(act, process)
    assert batches == [[0], [2]]


def test_failing_batch_raises_for_all_its_items_only() -> None:
    async def process(batch: list[int]) -> list[int]:
        if 1 in batch:
            raise ValueError("not this one")
        return batch

    async def act(batcher: Batcher[int, int]) -> list[Any]:
        found: list[Any] = await asyncio.gather(*map(batcher.put, (0, 1)), return_exceptions=True)
        return [*map(str, found), await batcher.put(2)]

    assert with_batcher(act, process) == ["not this one", "not this one", 2]


def test_stop_cancels_pending_items() -> None:
    async def run() -> None:
        batcher = Batcher[int, int](lambda _: asyncio.sleep(60, []), 1, 0.0)
        batcher.start()
        tasks = [asyncio.create_task(batcher.put(each)) for each in (0, 1)]
        await asyncio.sleep(0.01)
        await batcher.stop()
        tasks[0].cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(each) for each in found] == [asyncio.CancelledError] * 2

    asyncio.run(run())
