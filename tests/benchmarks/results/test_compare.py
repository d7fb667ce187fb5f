"""Comparisons: the noise rule, checked by simulation, and the table."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from example_results import RESULTS

from benchmarks.results.compare import MetricComparison, compare_results, find_ratio
from benchmarks.results.comparison_table import render_comparison
from ppcls.bench.results.schema import Better, Quantity, ResultRow, Results

NAMES = ("first", "second")


def lognormal(rng: np.random.Generator, middle: float, spread: float, rounds: int) -> list[float]:
    return (middle * np.exp(spread * rng.standard_normal(rounds))).tolist()


@pytest.mark.parametrize(
    ("rounds", "spreads"), [((3, 3), (0.05, 0.05)), ((3, 3), (0.01, 0.1)), ((5, 8), (0.2, 0.05))]
)
def test_find_ratio_without_change_is_noise_19_times_in_20(
    rounds: tuple[int, int], spreads: tuple[float, float]
) -> None:
    rng = np.random.default_rng(1)
    tries = 1500
    false = 0
    for _ in range(tries):
        sides = [lognormal(rng, 100, *each) for each in zip(spreads, rounds, strict=True)]
        found = find_ratio(*sides)
        assert found is not None
        false += not found.within_noise
    assert 0.02 < false / tries < 0.075


def test_find_ratio_change_beyond_spread_is_detected() -> None:
    rng = np.random.default_rng(2)
    found = [find_ratio(lognormal(rng, 100, 0.02, 3), lognormal(rng, 120, 0.02, 3)) for _ in range(200)]
    assert np.mean([not each.within_noise for each in found if each is not None]) > 0.99
    holds = [each.low <= 1.2 <= each.high for each in found if each is not None]
    assert 0.9 < np.mean(holds) < 0.99


def test_find_ratio_interval_equals_scipy() -> None:
    from scipy import stats

    first, second = [100.0, 104.0, 98.0], [120.0, 131.0, 125.0, 119.0]
    found = find_ratio(first, second)
    welch = stats.ttest_ind(np.log(second), np.log(first), equal_var=False).confidence_interval(0.95)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((math.exp(welch.low), math.exp(welch.high)))


def compare_values(
    first: tuple[float, ...], second: tuple[float, ...], better: Better = "more"
) -> MetricComparison:
    metrics = [Quantity(each, "ms", better) for each in (first, second)]
    return MetricComparison("step", metrics[0], metrics[1], find_ratio(first, second))


@pytest.mark.parametrize(
    ("first", "second", "better", "verdict"),
    [
        ((1.0, 1.1), (2.0, 2.1), "more", "better"),
        ((1.0, 1.1), (2.0, 2.1), "less", "worse"),
        ((2.0, 2.1), (1.0, 1.1), "less", "better"),
        ((1.0, 1.1), (2.0, 2.1), "neither", "more"),
        ((1.0, 1.1), (1.05, 1.12), "more", "within noise"),
        ((1.0, 4.0), (0.4, 0.8), "more", "too noisy"),
        ((0.4, 0.8), (1.0, 4.0), "less", "too noisy"),
        ((1.0,), (2.0,), "more", "unknown"),
        ((1.0,), (1.0,), "more", "within noise"),
        ((0.0, 1.0), (1.0, 2.0), "more", "unknown"),
        ((0.0, 0.0), (0.0, 0.0), "more", "within noise"),
        ((512.0, 512.0), (512.0, 512.0), "less", "within noise"),
        ((512.0, 512.0), (513.0, 513.0), "less", "worse"),
    ],
)
def test_verdict_of_two_sides(
    first: tuple[float, ...], second: tuple[float, ...], better: Better, verdict: str
) -> None:
    assert compare_values(first, second, better).verdict == verdict


def changed(**changes: object) -> Results:
    return replace(RESULTS, **changes)


def test_compare_results_with_itself_has_no_difference() -> None:
    comparison = compare_results(RESULTS, RESULTS)
    assert len(comparison.rows) == len(RESULTS.rows)
    assert comparison.only == ((), ())
    assert comparison.warnings == ()
    assert {each.verdict for _, metrics in comparison.rows for each in metrics} == {"within noise"}


def test_table_names_rows_of_one_side() -> None:
    other = ResultRow({"backend": "DALI", "threads": 4}, {"images/s": Quantity((1.0,), "images/s")})
    text = render_comparison(compare_results(RESULTS, changed(rows=(*RESULTS.rows[1:], other))), NAMES)
    assert "only in A: backend DALI, threads 1\n" in text
    assert "only in B: backend DALI, threads 4\n" in text


def test_compare_results_warns_of_different_runs() -> None:
    second = changed(
        benchmark="train",
        machine={"Processor": "a new one", "GPU": "H200"},
        versions={"ppcls": "2"},
        config="Global:\n  seed: 2\n",
    )
    assert compare_results(RESULTS, second).warnings == (
        "different benchmarks: loader and train",
        "different machines: Processor: an <old> one and a new one",
        "different machines: GPU: none and H200",
        "different versions: ppcls: 1 and 2",
        "different configs: -seed: 1 # </pre></script>; +seed: 2",
    )


def test_table_shows_ratio_interval_and_verdict() -> None:
    rows = [
        ResultRow({"threads": count, "by": "DALI"}, {"images/s": Quantity(values, "images/s")})
        for count, values in [(1, (500.0, 520.0, 510.0)), (2, (1000.0, 900.0, 1100.0))]
    ]
    faster = [
        replace(rows[0], metrics={"images/s": Quantity((1000.0, 1040.0, 1020.0), "images/s")}),
        rows[1],
    ]
    text = render_comparison(compare_results(changed(rows=tuple(rows)), changed(rows=tuple(faster))), NAMES)
    first, second = (" ".join(line.split()) for line in text.splitlines() if "threads" in line)
    assert first == "threads 1 images/s 510 1,020 2.00 1.91 to 2.09 better"
    assert second.endswith("within noise")
    assert (
        "1 of 2 ratios differ by more than noise. If nothing changed, about one in 20 would do so by chance."
        in text
    )


def test_table_without_common_rows() -> None:
    text = render_comparison(
        compare_results(changed(rows=RESULTS.rows[:1]), changed(rows=RESULTS.rows[1:2])), NAMES
    )
    assert text.endswith("Nothing to compare: no row is in both results.\n")


def test_table_of_single_rounds_has_no_verdict() -> None:
    row = ResultRow({"stage": "disk"}, {"images/s": Quantity((20000.0,), "images/s")})
    other = replace(row, metrics={"images/s": Quantity((10000.0,), "images/s")})
    text = render_comparison(compare_results(changed(rows=(row,)), changed(rows=(other,))), NAMES)
    assert "one round" in text
    assert text.endswith("The noise is unknown: measure at least two rounds on both sides.\n")
