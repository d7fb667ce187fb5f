"""Contenders that are measured in turns, each in processes of its own, and may fail."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from ppcls.bench.measure.children import Outcome


class Contender(Protocol):
    """What is measured."""

    def describe(self) -> str:
        """Returns a line for people."""


C = TypeVar("C", bound=Contender)
Tell = Callable[[str], None]


@dataclass
class Measured(Generic[C]):
    """What became of one contender.

    Attributes:
        contender: Who.
        rounds: What was found, a round each; ``images_per_second`` among it.
        reason: Why there are no more rounds; empty where all went well.
    """

    contender: C
    rounds: list[dict[str, Any]] = field(default_factory=list)
    reason: str = ""

    @property
    def note(self) -> str:
        """What is to be said of a row: why there are no values, or not as many as there should be."""
        when = f"no more rounds after {len(self.rounds)}: " if self.rounds else ""
        return f"{when}{self.reason}" if self.reason else ""


@dataclass(frozen=True)
class Taken(Generic[C]):
    """What became of those that took turns.

    Attributes:
        measured: One entry a contender, in their order.
        interrupt: What ended it early, for the caller to raise once this is written; None where nothing did.
    """

    measured: list[Measured[C]]
    interrupt: KeyboardInterrupt | None = None


def take_turns(
    contenders: Sequence[C],
    rounds: int,
    run: Callable[[C], Outcome],
    tell: Tell,
    keep: Callable[[list[Measured[C]]], None],
) -> Taken[C]:
    """Measures each contender once before any is measured again: a machine that slows down slows all of them.

    One that fails is not tried again; what was found of it before stays.

    Args:
        contenders: Who.
        rounds: Turns.
        run: Measures one of them once.
        tell: Takes a line for people on each measurement.
        keep: Takes all that is known, after each round.

    Returns:
        What was found. An interrupt (Ctrl-C) ends the measuring early, and the rest's reason says so.

    Raises:
        KeyboardInterrupt: It came before anything was found.
    """
    found = [Measured(each) for each in contenders]
    began = time.monotonic()
    try:
        for number in range(1, rounds + 1):
            if number == 2:
                tell(f"the other rounds take about {_duration((time.monotonic() - began) * (rounds - 1))}")
            for each in found:
                if not each.reason:
                    tell(f"round {number} of {rounds}: {each.contender.describe()}: {_measure(each, run)}")
            keep(found)
    except KeyboardInterrupt as interrupt:
        if not any(each.rounds for each in found):
            raise
        for each in found:
            if len(each.rounds) < rounds and not each.reason:
                each.reason = "interrupted"
        return Taken(found, interrupt)
    return Taken(found)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _measure(measured: Measured[C], run: Callable[[C], Outcome]) -> str:
    outcome = run(measured.contender)
    if outcome.found is None:
        measured.reason = outcome.reason
        return outcome.reason + (f"\n{outcome.log.rstrip()}" if outcome.log else "")
    measured.rounds.append(outcome.found)
    return f"{outcome.found['images_per_second']:.4g} images/s"
