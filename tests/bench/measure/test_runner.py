"""The benchmark runner: rounds, failures and interrupts."""

from __future__ import annotations

import pytest

from ppcls.bench.measure.runner import (
    Candidate,
    MeasurementFailed,
    Measurements,
    Rounds,
    find_conclusions,
    powers_of_two,
    run_rounds,
)
from ppcls.bench.results.schema import ResultRow

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


def notes(found: Rounds[str]) -> list[str]:
    return [each.row().note for each in found.measured]


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
    assert notes(found) == ["", ""]
    assert found.interrupt is None


def test_failed_candidate_is_not_measured_again_and_others_continue() -> None:
    found, lines, _ = run_script(MeasurementFailed("no memory", "its log\n"), 2, 4, rounds=2)
    assert rates(found) == {"a": [], "b": [2, 4]}
    assert notes(found)[0] == "no memory"
    assert lines[0] == "round 1 of 2: a: no memory\nits log"


def test_samples_before_a_failure_are_kept() -> None:
    found, _, _ = run_script(1, 2, 4, MeasurementFailed("no"))
    assert rates(found) == {"a": [1], "b": [2, 4]}
    assert notes(found)[0] == "rounds measured: 1; no"


def test_interrupt_keeps_samples_and_is_returned() -> None:
    found, _, kept = run_script(1, 2, 3, KeyboardInterrupt())
    assert isinstance(found.interrupt, KeyboardInterrupt)
    assert notes(found) == ["rounds measured: 1; interrupted", ""]
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
    assert fast.rate.values == (10.0, 20.0)


def test_row_has_the_metrics_of_all_samples_in_their_units() -> None:
    samples = [{"images_per_second": 5.0, "step": 0.2, "fact": "x", "p50": 1.0}, {"images_per_second": 4.0}]
    first, both = Measurements("x", "x", samples[:1], labels={"threads": 2}), Measurements("x", "x", samples)
    row = first.row()
    assert row.labels == {"threads": 2}
    assert {name: (each.values, each.unit, each.better) for name, each in row.metrics.items()} == {
        "p50": ((1000.0,), "ms", "less"),
        "images/s": ((5.0,), "images/s", "more"),
        "step": ((200.0,), "ms", "less"),
    }
    assert list(both.row().metrics) == ["images/s"]
    assert both.row(first, "of x").metrics["of x"].values == (1.0,)
    lost = Measurements("y", "y", [], "no memory")
    assert lost.row(first, "of x") == ResultRow({}, {}, "no memory")
    assert "of y" not in first.row(lost, "of y").metrics


def candidate(name: str, *rates: float) -> Measurements[str]:
    return Measurements(name, name, [{"images_per_second": rate} for rate in rates])


def test_find_conclusions_names_the_fastest_and_missing_rows() -> None:
    found = find_conclusions([candidate("slow", 100, 104), candidate("fast", 200, 198), candidate("none")])
    assert found == [
        "Fastest: fast: 199 images/s.",
        "1 of 3 could not be measured; each row has the reason.",
    ]
    assert find_conclusions([candidate("alone", 100)]) == []
    assert find_conclusions([candidate("none")]) == ["Nothing could be measured; each row has the reason."]


def test_find_conclusions_noisy_rounds_are_reported() -> None:
    quiet, noisy = candidate("quiet", 100, 104, 98), candidate("noisy", 100, 160, 80)
    (sentence,) = find_conclusions([noisy])
    assert sentence.startswith("Runs of the same candidate differ by ±40% here: other work")
    assert len(find_conclusions([quiet, quiet, noisy])) == 1, "only the fastest is named"


def test_powers_of_two_end_with_the_maximum() -> None:
    counts = {0: [], 1: [1], 2: [1, 2], 6: [1, 2, 4, 6], 8: [1, 2, 4, 8], 16: [1, 2, 4, 8, 16]}
    assert {most: powers_of_two(most) for most in counts} == counts
