"""Contenders that take turns, and fail."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from ppcls.bench.measure.children import Outcome
from ppcls.bench.measure.turns import Measured, Taken, take_turns


@dataclass(frozen=True)
class Named:
    name: str

    def describe(self) -> str:
        return self.name


ONE, TWO = Named("one"), Named("two")


def measured(
    *outcomes: Outcome | type[BaseException], rounds: int = 2
) -> tuple[list[Measured[Named]], list[str]]:
    """Measures two contenders, which these outcomes meet; returns the lines for people, too."""
    taken, told = turns(*outcomes, rounds=rounds)
    assert taken.interrupt is None
    return taken.measured, told


def turns(*outcomes: Outcome | type[BaseException], rounds: int = 2) -> tuple[Taken[Named], list[str]]:
    script, told, kept = iter(outcomes), [], []

    def run(_: Named) -> Outcome:
        outcome = next(script)
        if not isinstance(outcome, Outcome):
            raise outcome
        return outcome

    taken = take_turns([ONE, TWO], rounds, run, told.append, lambda known: kept.append(len(known)))
    told.append(f"kept {len(kept)}")
    return taken, told


def rate(value: float) -> Outcome:
    return Outcome({"images_per_second": value})


def test_all_are_measured_before_any_is_again() -> None:
    found, told = measured(rate(1), rate(20), rate(3), rate(40.123))
    assert [[one["images_per_second"] for one in each.rounds] for each in found] == [[1, 3], [20, 40.123]]
    assert [each.note for each in found] == ["", ""]
    assert told == [
        "round 1 of 2: one: 1 images/s",
        "round 1 of 2: two: 20 images/s",
        "the other rounds take about 0 s",
        "round 2 of 2: one: 3 images/s",
        "round 2 of 2: two: 40.12 images/s",
        "kept 2",
    ]


def test_one_that_fails_is_not_tried_again() -> None:
    found, told = measured(Outcome(None, "no", "its log\n"), rate(2), rate(4))
    assert found[0] == Measured(ONE, [], "no")
    assert found[0].note == "no"
    assert len(found[1].rounds) == 2
    assert told[0] == "round 1 of 2: one: no\nits log"


def test_what_was_found_before_a_failure_stays() -> None:
    found, _ = measured(rate(1), rate(2), Outcome(None, "no"), rate(4))
    assert len(found[0].rounds) == 1
    assert found[0].note == "no more rounds after 1: no"


def test_an_interrupt_keeps_what_there_is() -> None:
    taken, told = turns(rate(1), rate(2), rate(3), KeyboardInterrupt)
    assert isinstance(taken.interrupt, KeyboardInterrupt), "for who ends the process"
    assert [each.note for each in taken.measured] == ["", "no more rounds after 1: interrupted"]
    assert told[-1] == "kept 1"


def test_an_interrupt_with_nothing_to_keep() -> None:
    with pytest.raises(KeyboardInterrupt):
        measured(KeyboardInterrupt)
