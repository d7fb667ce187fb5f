from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
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


def test_batcher_collects_items_while_busy() -> None:
    batches: list[list[int]] = []
    free = asyncio.Event()

    async def process(batch: list[int]) -> list[int]:
        batches.append(batch)
        await free.wait()
        return batch

    async def act(batcher: Batcher[int, int]) -> None:
        first = batcher.put(0)
        while not batches:
            await asyncio.sleep(0)
        others = [batcher.put(each) for each in (1, 2, 3, 4, 5)]
        free.set()
        await asyncio.gather(first, *others)

    with_batcher(act, process, max_batch=4, max_wait=60.0)
    assert batches == [[0], [1, 2, 3, 4], [5]]


@pytest.mark.parametrize("arrives", [True, False])
def test_batch_waits_for_expected_items_only(arrives: bool) -> None:
    batches: list[list[int]] = []

    async def process(batch: list[int]) -> list[int]:
        batches.append(batch)
        return batch

    async def act(batcher: Batcher[int, int]) -> None:
        await asyncio.wait_for(batcher.put(0), GUARD)
        with batcher.expecting(1):
            first = batcher.put(1)
            await asyncio.sleep(0.05)
            assert not first.done(), "another one is expected"
            second = [batcher.put(2)] if arrives else []
        await asyncio.wait_for(asyncio.gather(first, *second), GUARD)

    with_batcher(act, process, max_wait=1000.0)
    assert batches == [[0], [1, 2] if arrives else [1]]


def test_batch_starts_without_a_late_item() -> None:
    async def process(batch: list[int]) -> list[int]:
        return batch

    async def act(batcher: Batcher[int, int]) -> int:
        with batcher.expecting(1):
            return await asyncio.wait_for(batcher.put(1), GUARD)

    assert with_batcher(act, process, max_wait=0.01) == 1


def test_cancelled_item_leaves_its_batch() -> None:
    batches: list[list[int]] = []
    free = asyncio.Event()

    async def process(batch: list[int]) -> list[int]:
        batches.append(batch)
        await free.wait()
        return batch

    async def act(batcher: Batcher[int, int]) -> None:
        first = batcher.put(0)
        while not batches:
            await asyncio.sleep(0)
        gone, last = batcher.put(1), batcher.put(2)
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
        tasks = [batcher.put(each) for each in (0, 1)]
        await asyncio.sleep(0.01)
        await batcher.stop()
        tasks[0].cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(each) for each in found] == [asyncio.CancelledError] * 2

    asyncio.run(run())
