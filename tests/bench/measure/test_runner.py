"""The benchmark runner: rounds, failures and interrupts."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from finished_candidates import finished, with_rates

from ppcls.bench.measure.runner import (
    METRICS,
    Candidate,
    find_conclusions,
    powers_of_two,
    run_rounds,
)
from ppcls.bench.results.schema import ResultRow
from ppcls.engine.autotune.processes import MeasurementFailed

Outcome = float | BaseException


@dataclass
class Run:
    """Candidates after scripted rounds."""

    candidates: list[Candidate[str]]
    lines: list[str] = field(default_factory=list)
    kept: list[list[int]] = field(default_factory=list)
    interrupt: KeyboardInterrupt | None = None

    @property
    def rates(self) -> dict[str, list[float]]:
        return {
            each.key: [sample["images_per_second"] for sample in each.samples] for each in self.candidates
        }

    @property
    def notes(self) -> list[str]:
        return [each.row().note for each in self.candidates]


def run_script(*outcomes: Outcome, names: str = "ab", rounds: int = 2) -> Run:
    """Measures candidates with scripted outcomes."""
    script = iter(outcomes)

    def measure() -> dict[str, float]:
        outcome = next(script)
        if isinstance(outcome, BaseException):
            raise outcome
        return {"images_per_second": outcome}

    run = Run([Candidate(name, name, measure, {}) for name in names])

    def keep() -> None:
        run.kept.append([len(each.samples) for each in run.candidates])

    run.interrupt = run_rounds(run.candidates, rounds, run.lines.append, keep)
    return run


def test_rounds_alternate_the_order_and_report_each_measurement() -> None:
    found = run_script(1, 20, 40.123, 3)
    assert found.rates == {"a": [1, 3], "b": [20, 40.123]}
    assert found.lines == [
        "round 1 of 2: a: 1 images/s",
        "round 1 of 2: b: 20 images/s",
        "the other rounds take about 0 s",
        "round 2 of 2: b: 40.12 images/s",
        "round 2 of 2: a: 3 images/s",
    ]
    assert found.kept == [[1, 1], [2, 2]], "after each round"
    assert found.notes == ["", ""]
    assert found.interrupt is None


def test_failed_candidate_is_not_measured_again_and_others_continue() -> None:
    found = run_script(MeasurementFailed("no memory", "its log\n"), 2, 4, rounds=2)
    assert found.rates == {"a": [], "b": [2, 4]}
    assert found.notes[0] == "no memory"
    assert found.lines[0] == "round 1 of 2: a: no memory\nits log"


def test_samples_before_a_failure_are_kept() -> None:
    found = run_script(1, 2, 4, MeasurementFailed("no"))
    assert found.rates == {"a": [1], "b": [2, 4]}
    assert found.notes[0] == "rounds measured: 1; no"


def test_interrupt_keeps_samples_and_is_returned() -> None:
    found = run_script(1, 2, 3, KeyboardInterrupt())
    assert isinstance(found.interrupt, KeyboardInterrupt)
    assert found.notes == ["rounds measured: 1; interrupted", ""]
    assert found.kept == [[1, 1]]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError()])
def test_interrupt_before_any_sample_and_other_errors_are_raised(error: BaseException) -> None:
    with pytest.raises(type(error)):
        run_script(error)


def test_ratio_compares_the_same_rounds() -> None:
    fast, slow = with_rates("fast", 10.0, 20.0), with_rates("slow", 5.0, 10.0, 99.0)
    assert fast.ratio(slow).values == (2.0, 2.0)
    assert fast.rate.values == (10.0, 20.0)


def test_row_has_the_metrics_of_all_samples_in_their_units() -> None:
    samples = [{"images_per_second": 5.0, "step": 0.2, "fact": "x", "p50": 1.0}, {"images_per_second": 4.0}]
    first, both = finished("x", "x", samples[:1], labels={"threads": 2}), finished("x", "x", samples)
    row = first.row()
    assert row.labels == {"threads": 2}
    assert {name: (each.values, each.unit, each.better) for name, each in row.metrics.items()} == {
        "p50": ((1000.0,), "ms", "less"),
        "images/s": ((5.0,), "images/s", "more"),
        "step": ((200.0,), "ms", "less"),
    }
    assert list(both.row().metrics) == ["images/s"]
    both.base = ("of x", first)
    assert both.row().metrics["of x"].values == (1.0,)
    lost = finished("y", "y", [], "no memory")
    lost.base, first.base = ("of x", first), ("of y", lost)
    assert lost.row() == ResultRow({}, {}, "no memory")
    assert "of y" not in first.row().metrics


def test_find_conclusions_names_the_fastest_and_missing_rows() -> None:
    found = find_conclusions([with_rates("slow", 100, 104), with_rates("fast", 200, 198), with_rates("none")])
    assert found == [
        "Fastest: fast: 199 images/s.",
        "1 of 3 could not be measured; their rows give the reasons.",
    ]
    assert find_conclusions([with_rates("alone", 100)]) == []
    assert find_conclusions([with_rates("none")]) == ["Nothing could be measured; each row gives the reason."]


def test_find_conclusions_noisy_rounds_are_reported() -> None:
    quiet, noisy = with_rates("quiet", 100, 104, 98), with_rates("noisy", 100, 160, 80)
    (sentence,) = find_conclusions([noisy])
    assert sentence.startswith("Measurements of the same candidate differ by ±40%: ")
    assert len(find_conclusions([quiet, quiet, noisy])) == 1, "only the fastest is named"


def test_powers_of_two_end_with_the_maximum() -> None:
    counts = {0: [], 1: [1], 2: [1, 2], 6: [1, 2, 4, 6], 8: [1, 2, 4, 8], 16: [1, 2, 4, 8, 16]}
    assert {most: powers_of_two(most) for most in counts} == counts


def test_factors_of_units_fit_the_units() -> None:
    factors = {"%": 100, "ms": 1e3, "s/1,000 images": 1e3}
    for name, metric in METRICS.items():
        assert metric.factor == factors.get(metric.unit, 1), name
