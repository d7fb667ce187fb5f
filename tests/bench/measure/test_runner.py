"""The benchmark runner: rounds, failures and interrupts."""

from __future__ import annotations

import pytest

from ppcls.bench.measure.runner import (
    Candidate,
    MeasurementFailed,
    Measurements,
    Rounds,
    powers_of_two,
    run_rounds,
)

Outcome = float | BaseException


def run_script(
    *outcomes: Outcome, names: str = "ab", rounds: int = 2
) -> tuple[Rounds[str], list[str], list[list[int]]]:
    """Measures candidates with scripted outcomes; returns the reported lines and kept counts too."""
    script, lines, kept = iter(outcomes), list[str](), list[list[int]]()

    def measure() -> dict[str, float]:
        outcome = next(script)
        if isinstance(outcome, BaseException):
            raise outcome
        return {"images_per_second": outcome}

    def keep(measured: list[Measurements[str]]) -> None:
        kept.append([len(found.samples) for found in measured])

    candidates = [Candidate(name, name, measure) for name in names]
    return run_rounds(candidates, rounds, lines.append, keep), lines, kept


def rates(found: Rounds[str]) -> dict[str, list[float]]:
    return {each.key: [sample["images_per_second"] for sample in each.samples] for each in found.measured}


def test_rounds_alternate_the_order_and_report_each_measurement() -> None:
    found, lines, kept = run_script(1, 20, 40.123, 3)
    assert rates(found) == {"a": [1, 3], "b": [20, 40.123]}
    assert lines == [
        "round 1 of 2: a: 1 images/s",
        "round 1 of 2: b: 20 images/s",
        "the other rounds take about 0 s",
        "round 2 of 2: b: 40.12 images/s",
        "round 2 of 2: a: 3 images/s",
    ]
    assert kept == [[1, 1], [2, 2]], "after each round"
    assert [each.note for each in found.measured] == ["", ""]
    assert found.interrupt is None


def test_failed_candidate_is_not_measured_again_and_others_continue() -> None:
    found, lines, _ = run_script(MeasurementFailed("no memory", "its log\n"), 2, 4, rounds=2)
    assert rates(found) == {"a": [], "b": [2, 4]}
    assert found.measured[0].note == "no memory"
    assert lines[0] == "round 1 of 2: a: no memory\nits log"


def test_samples_before_a_failure_are_kept() -> None:
    found, _, _ = run_script(1, 2, 4, MeasurementFailed("no"))
    assert rates(found) == {"a": [1], "b": [2, 4]}
    assert found.measured[0].note == "rounds measured: 1; no"


def test_interrupt_keeps_samples_and_is_returned() -> None:
    found, _, kept = run_script(1, 2, 3, KeyboardInterrupt())
    assert isinstance(found.interrupt, KeyboardInterrupt)
    assert [each.note for each in found.measured] == ["rounds measured: 1; interrupted", ""]
    assert kept == [[1, 1]]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError()])
def test_interrupt_before_any_sample_and_other_errors_are_raised(error: BaseException) -> None:
    with pytest.raises(type(error)):
        run_script(error)


def test_ratio_compares_the_same_rounds() -> None:
    fast, slow = (
        Measurements("x", "x", [{"images_per_second": each} for each in values])
        for values in ((10.0, 20.0), (5.0, 10.0, 99.0))
    )
    assert fast.ratio(slow).values == (2.0, 2.0)
    assert fast.rate().values == (10.0, 20.0)
    assert fast.quantity("images_per_second", "k", "less", 0.1).values == (1.0, 2.0)


def test_powers_of_two_end_with_the_maximum() -> None:
    counts = {0: [], 1: [1], 2: [1, 2], 6: [1, 2, 4, 6], 8: [1, 2, 4, 8], 16: [1, 2, 4, 8, 16]}
    assert {most: powers_of_two(most) for most in counts} == counts
