"""Runs that take turns: each a warm-up and a stretch that counts, once a round, in random order."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from ppcls.bench.measure.usage import Usage

_TOLD = 300  # characters of an error
Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Run:
    """What one run did while the clock ran.

    Attributes:
        images: That came.
        seconds: They took.
        usage: Of the machine.
    """

    images: int
    seconds: float
    usage: Usage

    @property
    def rate(self) -> float:
        """Images a second."""
        return self.images / self.seconds


class UsageMeter(Protocol):
    """Measures what is used between two moments."""

    def start(self) -> None:
        """Begins."""

    def stop(self) -> Usage:
        """Returns what was used since."""


@dataclass(frozen=True)
class Stopwatch:
    """How a run is timed.

    Attributes:
        seconds: That are counted, at least.
        least: Batches that are counted, at least.
        meter: Of the machine.
        finish: Waits for work that is still under way.
        clock: Seconds.
    """

    seconds: float
    least: int
    meter: UsageMeter
    finish: Callable[[], None]
    clock: Callable[[], float] = time.perf_counter

    def time(self, batches: Iterator[int], not_counted: int) -> Run:
        """Times batches, and stops in the midst of them.

        Args:
            batches: Numbers of images; more than are timed, or else their end ends the run.
            not_counted: Batches before the clock starts.

        Raises:
            ValueError: There are no batches but those that are not counted.
        """
        for _ in range(not_counted):
            next(batches, None)
        self.finish()
        self.meter.start()
        began, images = self.clock(), 0
        try:
            for number, count in enumerate(batches, start=1):
                images += count
                if number >= self.least and self.clock() - began >= self.seconds:
                    break
            self.finish()
            seconds = self.clock() - began
        finally:
            usage = self.meter.stop()
        if not images:
            raise ValueError(f"no batches behind the first {not_counted}")
        return Run(images, seconds, usage)


@dataclass(frozen=True)
class Turn(Generic[Name]):
    """One of those that take turns.

    Attributes:
        name: Who.
        open: Lends its batches.
        not_counted: Of these, before the clock starts.
        prepare: Is called before each run.
    """

    name: Name
    open: Callable[[], AbstractContextManager[Iterator[int]]]
    not_counted: int
    prepare: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Taken(Generic[Name]):
    """What became of those that took turns.

    Attributes:
        runs: Of who ran in every round, in the order of the rounds; at least one each.
        failed: Of who did not, and why; such as memory that was not enough.
        interrupted: Whether Ctrl-C ended it early: some may lack their run of the last round then.
    """

    runs: dict[Name, list[Run]]
    failed: dict[Name, str]
    interrupted: bool = False


def take_turns(
    groups: Sequence[Sequence[Turn[Name]]],
    rounds: int,
    watch: Stopwatch,
    done: Callable[[], None] = lambda: None,
    keep: Callable[[Taken[Name]], None] = lambda _: None,
    seed: int = 0,
) -> Taken[Name]:
    """Runs everyone once a round, in an order that is another one in each round: so drift hits all alike.

    Who fails takes no further turns, and the others go on. An interrupt (Ctrl-C) ends it early with what is
    known.

    Args:
        groups: Of a round, one after the other: those that would spoil each other's conditions otherwise.
        rounds: How often.
        watch: Times.
        done: Is called after each run, and for each that is not taken.
        keep: Takes all that is known, after each round.
        seed: Of the orders.
    """
    chance = random.Random(seed)  # noqa: S311 - no secret
    runs: dict[Name, list[Run]] = {turn.name: [] for group in groups for turn in group}
    failed: dict[Name, str] = {}
    try:
        for _ in range(rounds):
            for group in groups:
                for turn in chance.sample(group, len(group)):
                    if turn.name not in failed:
                        try:
                            runs[turn.name].append(_run(turn, watch))
                        except (RuntimeError, MemoryError, SystemError) as error:  # DALI's, Paddle's
                            failed[turn.name] = " ".join(str(error).split())[:_TOLD] or type(error).__name__
                    done()
            keep(_taken(runs, failed))
    except KeyboardInterrupt:
        return _taken(runs, failed, interrupted=True)
    return _taken(runs, failed)


def _taken(runs: dict[Name, list[Run]], failed: dict[Name, str], *, interrupted: bool = False) -> Taken[Name]:
    found = {name: list(each) for name, each in runs.items() if name not in failed and each}
    return Taken(found, dict(failed), interrupted)


def _run(turn: Turn[Name], watch: Stopwatch) -> Run:
    turn.prepare()
    with turn.open() as batches:
        return watch.time(batches, turn.not_counted)
