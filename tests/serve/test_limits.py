from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from ppcls.serve.limits import AdmissionLimit, BusyError, FairSlots


def test_admission_limit_rejects_what_does_not_fit_and_releases() -> None:
    limit = AdmissionLimit(5, "images")
    with limit.acquire(3, "first"):
        with (
            pytest.raises(BusyError, match="the server is busy: 3 of 5 images are in use; try again later"),
            limit.acquire(3, "second"),
        ):
            raise AssertionError
        with limit.acquire(2, "second"):
            assert limit.used == 5
        assert limit.used == 3
    assert limit.used == 0


def test_client_uses_at_most_half_with_several_requests_but_any_amount_with_one() -> None:
    limit = AdmissionLimit(8, "images")
    with ExitStack() as held:
        for _ in range(4):
            held.enter_context(limit.acquire(1, "greedy"))
        with (
            pytest.raises(BusyError, match="4 images of this client are in use, of at most 4"),
            limit.acquire(1, "greedy"),
        ):
            raise AssertionError
        with limit.acquire(4, "other"):
            assert limit.used == 8
    with limit.acquire(8, "greedy"):
        assert limit.used == 8


def test_clients_take_turns_for_slots() -> None:
    order: list[str] = []

    async def use(slots: FairSlots, client: str) -> None:
        async with slots.acquire(client):
            order.append(client)
            await asyncio.sleep(0)

    async def run() -> None:
        slots = FairSlots(1)
        clients = ["greedy"] * 5 + ["second"] * 2 + ["third"]
        await asyncio.gather(*(use(slots, client) for client in clients))

    asyncio.run(run())
    # The first task takes the free slot. Then the clients take turns.
    assert order == ["greedy", "greedy", "second", "third", "greedy", "second", "greedy", "greedy"]


@pytest.mark.parametrize("cancelled_at", range(4))
def test_cancelled_tasks_neither_take_nor_lose_slots(cancelled_at: int) -> None:
    """Tasks are cancelled while they wait, while they receive a slot, or while they use it."""

    async def use(slots: FairSlots, client: str) -> None:
        async with slots.acquire(client):
            await asyncio.sleep(0)

    async def run() -> None:
        slots = FairSlots(1)
        tasks = [asyncio.create_task(use(slots, client)) for client in "aabbcc"]
        for _ in range(cancelled_at):
            await asyncio.sleep(0)
        tasks[1].cancel()
        tasks[2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(use(slots, client) for client in "xyz"))

    asyncio.run(run())
