"""Runs that take turns, by a clock that goes only where it is told to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from ppcls.bench.loader.rounds import Stopwatch, Taken, Turn, take_turns
from ppcls.bench.measure.usage import Usage


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.started: list[float] = []

    def __call__(self) -> float:
        return self.now

    def start(self) -> None:
        self.started.append(self.now)

    def stop(self) -> Usage:
        return Usage(self.now - self.started[-1])

    def watch(self, seconds: float, least: int = 1, still: float = 0.0) -> Stopwatch:
        def finish() -> None:
            self.now += still

        return Stopwatch(seconds, least, self, finish, self)

    def batches(self, *seconds: float, size: int = 10) -> Iterator[int]:
        for each in seconds:
            self.now += each
            yield size


def test_the_first_batches_do_not_count() -> None:
    clock = Clock()
    run = clock.watch(2.0).time(clock.batches(100.0, 100.0, *[0.5] * 100), not_counted=2)
    assert (run.images, run.seconds, run.rate) == (40, 2.0, 20.0)
    assert run.usage.cpu_seconds == 2.0


def test_some_batches_count_however_long_they_take() -> None:
    clock = Clock()
    run = clock.watch(1.0, least=3).time(clock.batches(*[5.0] * 9), not_counted=1)
    assert (run.images, run.seconds) == (30, 15.0)


def test_work_that_is_under_way_counts_where_it_belongs() -> None:
    clock = Clock()
    run = clock.watch(1.0, still=0.5).time(clock.batches(*[1.0] * 9), not_counted=1)
    assert (run.images, run.seconds) == (10, 1.5)


def test_the_end_of_the_batches_ends_a_run() -> None:
    clock = Clock()
    assert clock.watch(100.0).time(clock.batches(1.0, 1.0, 1.0), not_counted=1).images == 20
    with pytest.raises(ValueError, match="no batches behind the first 3"):
        clock.watch(1.0).time(clock.batches(1.0, 1.0, 1.0), not_counted=3)


def test_everyone_runs_once_a_round_in_changing_order() -> None:
    clock, order, ended = Clock(), list[str](), list[str]()

    @contextmanager
    def lent(name: str) -> Iterator[Iterator[int]]:
        order.append(name)
        yield clock.batches(*[1.0] * 9)
        ended.append(name)

    groups = [
        [Turn(name, partial(lent, name), 0) for name in "abcd"],
        [Turn("z", partial(lent, "z"), 0, lambda: order.append("dropped"))],
    ]
    done: list[int] = []
    found = take_turns(groups, 5, clock.watch(2.0), lambda: done.append(1))
    rounds = [order[begin : begin + 6] for begin in range(0, len(order), 6)]
    assert all(sorted(each[:4]) == list("abcd") and each[4:] == ["dropped", "z"] for each in rounds)
    assert len({tuple(each) for each in rounds}) > 1, "no order is the order"
    assert [len(runs) for runs in found.runs.values()] == [5] * 5
    assert found.failed == {}
    assert len(done) == 25
    assert ended == [name for name in order if name != "dropped"]


def test_an_interrupt_keeps_what_was_measured() -> None:
    clock, tries, kept = Clock(), list[str](), list[Taken[str]]()

    @contextmanager
    def lent(name: str) -> Iterator[Iterator[int]]:
        tries.append(name)
        if len(tries) == 4:
            raise KeyboardInterrupt
        yield clock.batches(*[1.0] * 9)

    turns = [[Turn(name, partial(lent, name), 0)] for name in "ab"]
    found = take_turns(turns, 5, clock.watch(2.0), keep=kept.append)
    assert found.interrupted
    assert {name: len(runs) for name, runs in found.runs.items()} == {"a": 2, "b": 1}
    assert [[len(runs) for runs in each.runs.values()] for each in kept] == [[1, 1]], "after each round"


def test_who_fails_is_left_out_and_the_others_go_on() -> None:
    clock, tries = Clock(), list[str]()

    @contextmanager
    def lent(name: str) -> Iterator[Iterator[int]]:
        tries.append(name)
        if name == "large" and tries.count("large") == 2:
            raise RuntimeError("CUDA   out of\nmemory")
        yield clock.batches(*[1.0] * 9)

    turns = [Turn(name, partial(lent, name), 0) for name in ("large", "small")]
    done: list[int] = []
    found = take_turns([turns], 4, clock.watch(2.0), lambda: done.append(1))
    assert (list(found.runs), found.failed) == (["small"], {"large": "CUDA out of memory"})
    assert (tries.count("small"), tries.count("large"), len(done)) == (4, 2, 8)
