"""Batches: full where many wait, soon where few do, each result to who asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppcls.serve.batcher import Batcher
from ppcls.serve.room import BusyError, Room, Share


def with_batcher(
    act: Callable[[Batcher[int, int]], Awaitable[Any]],
    work: Callable[[list[int]], Awaitable[Sequence[int]]],
    max_batch: int = 4,
    max_wait: float = 0.0,
) -> Any:
    async def run() -> Any:
        batcher = Batcher[int, int](work, max_batch, max_wait)
        batcher.start()
        try:
            return await act(batcher)
        finally:
            await batcher.stop()

    return asyncio.run(run())


@settings(max_examples=40)
@given(st.lists(st.integers(0, 3), max_size=30), st.integers(1, 8))
def test_each_gets_its_own_result_in_order_and_no_batch_is_too_large(
    waits: list[int], max_batch: int
) -> None:
    sizes: list[int] = []

    async def work(batch: list[int]) -> list[int]:
        sizes.append(len(batch))
        await asyncio.sleep(0)
        return [10 * each for each in batch]

    async def ask(batcher: Batcher[int, int], item: int, turns: int) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        return await batcher.put(item)

    async def act(batcher: Batcher[int, int]) -> list[int]:
        return await asyncio.gather(*(ask(batcher, at, turns) for at, turns in enumerate(waits)))

    assert with_batcher(act, work, max_batch) == [10 * at for at in range(len(waits))]
    assert sum(sizes) == len(waits)
    assert max(sizes, default=0) <= max_batch


def test_what_comes_while_the_model_works_is_one_batch_and_a_lone_image_waits_for_others() -> None:
    batches: list[list[int]] = []
    free = asyncio.Event()

    async def work(batch: list[int]) -> list[int]:
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

    with_batcher(act, work, max_batch=4, max_wait=60.0)
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_who_has_gone_takes_no_place() -> None:
    batches: list[list[int]] = []
    free = asyncio.Event()

    async def work(batch: list[int]) -> list[int]:
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

    with_batcher(act, work)
    assert batches == [[0], [2]]


def test_a_batch_that_fails_is_told_to_all_of_it_and_the_next_one_works() -> None:
    async def work(batch: list[int]) -> list[int]:
        if 1 in batch:
            raise ValueError("not this one")
        return batch

    async def act(batcher: Batcher[int, int]) -> list[Any]:
        found: list[Any] = await asyncio.gather(*map(batcher.put, (0, 1)), return_exceptions=True)
        return [*map(str, found), await batcher.put(2)]

    assert with_batcher(act, work) == ["not this one", "not this one", 2]


def test_what_waits_at_the_end_is_given_up() -> None:
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


def test_room_is_taken_and_left() -> None:
    room = Room(5, "images")
    with Share(room) as share, Share(room) as other:
        share.take(3)
        with pytest.raises(BusyError, match="too busy: 3 of at most 5 images are in work"):
            other.take(3)
        other.take(2)
        assert room.taken == 5
    assert room.taken == 0
