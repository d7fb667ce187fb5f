"""Comparisons: the rule for noise, by simulation, and what is said of rows."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from made_results import RESULTS
from scipy import stats

from ppcls.bench.results.compare import Compared, compare_results, ratio
from ppcls.bench.results.comparison_table import render
from ppcls.bench.results.results import Better, Metric, Results, Row

NAMES = ("first", "second")


def lognormal(rng: np.random.Generator, middle: float, spread: float, rounds: int) -> list[float]:
    return (middle * np.exp(spread * rng.standard_normal(rounds))).tolist()


@pytest.mark.parametrize(
    ("rounds", "spreads"), [((3, 3), (0.05, 0.05)), ((3, 3), (0.01, 0.1)), ((5, 8), (0.2, 0.05))]
)
def test_what_did_not_change_is_noise_19_times_in_20(
    rounds: tuple[int, int], spreads: tuple[float, float]
) -> None:
    rng = np.random.default_rng(1)
    tries = 1500
    false = 0
    for _ in range(tries):
        sides = [lognormal(rng, 100, *each) for each in zip(spreads, rounds, strict=True)]
        found = ratio(*sides)
        assert found is not None
        false += not found.within_noise
    assert 0.02 < false / tries < 0.075


def test_what_changed_by_more_than_its_spread_is_seen() -> None:
    rng = np.random.default_rng(2)
    found = [ratio(lognormal(rng, 100, 0.02, 3), lognormal(rng, 120, 0.02, 3)) for _ in range(200)]
    assert np.mean([not each.within_noise for each in found if each is not None]) > 0.99
    holds = [each.low <= 1.2 <= each.high for each in found if each is not None]
    assert 0.9 < np.mean(holds) < 0.99


def test_the_range_is_scipys() -> None:
    first, second = [100.0, 104.0, 98.0], [120.0, 131.0, 125.0, 119.0]
    found = ratio(first, second)
    welch = stats.ttest_ind(np.log(second), np.log(first), equal_var=False).confidence_interval(0.95)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((math.exp(welch.low), math.exp(welch.high)))


def compared(first: tuple[float, ...], second: tuple[float, ...], better: Better = "more") -> Compared:
    metrics = [Metric(each, "ms", better) for each in (first, second)]
    return Compared("step", metrics[0], metrics[1], ratio(first, second))


@pytest.mark.parametrize(
    ("first", "second", "better", "verdict"),
    [
        ((1.0, 1.1), (2.0, 2.1), "more", "better"),
        ((1.0, 1.1), (2.0, 2.1), "less", "worse"),
        ((2.0, 2.1), (1.0, 1.1), "less", "better"),
        ((1.0, 1.1), (2.0, 2.1), "neither", "more"),
        ((1.0, 1.1), (1.05, 1.12), "more", "within noise"),
        ((1.0,), (2.0,), "more", "can't be told"),
        ((1.0,), (1.0,), "more", "within noise"),
        ((0.0, 1.0), (1.0, 2.0), "more", "can't be told"),
        ((0.0, 0.0), (0.0, 0.0), "more", "within noise"),
        ((512.0, 512.0), (512.0, 512.0), "less", "within noise"),
        ((512.0, 512.0), (513.0, 513.0), "less", "worse"),
    ],
)
def test_verdicts(first: tuple[float, ...], second: tuple[float, ...], better: Better, verdict: str) -> None:
    assert compared(first, second, better).verdict == verdict


def changed(**changes: object) -> Results:
    return replace(RESULTS, **changes)


def test_a_benchmark_against_itself() -> None:
    comparison = compare_results(RESULTS, RESULTS)
    assert len(comparison.rows) == len(RESULTS.rows)
    assert comparison.only == ((), ())
    assert comparison.warnings == ()
    assert {each.verdict for _, metrics in comparison.rows for each in metrics} == {"within noise"}


def test_rows_of_one_side_are_told() -> None:
    other = Row({"backend": "DALI", "threads": 4}, {"throughput": Metric((1.0,), "images/s")})
    text = render(compare_results(RESULTS, changed(rows=(*RESULTS.rows[1:], other))), NAMES)
    assert "only in A: backend DALI, threads 1\n" in text
    assert "only in B: backend DALI, threads 4\n" in text


def test_what_makes_sides_hard_to_compare_is_told() -> None:
    second = changed(
        benchmark="train",
        machine={"Processor": "a new one", "GPU": "H200"},
        versions={"ppcls": "2"},
        config="Global:\n  seed: 2\n",
    )
    assert compare_results(RESULTS, second).warnings == (
        "different benchmarks: loader and train",
        "different machines: Processor: an <old> one and a new one",
        "different machines: GPU: nothing and H200",
        "different versions: ppcls: 1 and 2",
        "different configs: -seed: 1 # </pre></script>; +seed: 2",
    )


def test_the_table() -> None:
    rows = [
        Row({"threads": count, "by": "DALI"}, {"throughput": Metric(values, "images/s")})
        for count, values in [(1, (500.0, 520.0, 510.0)), (2, (1000.0, 900.0, 1100.0))]
    ]
    faster = [replace(rows[0], metrics={"throughput": Metric((1000.0, 1040.0, 1020.0), "images/s")}), rows[1]]
    text = render(compare_results(changed(rows=tuple(rows)), changed(rows=tuple(faster))), NAMES)
    first, second = (" ".join(line.split()) for line in text.splitlines() if "throughput" in line)
    assert first == "threads 1 throughput, images/s 510 1,020 2.000 1.913 to 2.091 better"
    assert second.endswith("within noise")
    assert "1 of 2 differ by more; where nothing changed, about one in 20 would, by chance.\n" in text


def test_nothing_in_common() -> None:
    text = render(compare_results(changed(rows=RESULTS.rows[:1]), changed(rows=RESULTS.rows[1:2])), NAMES)
    assert text.endswith("No row is in both: nothing to compare.\n")


def test_one_round_has_no_spread() -> None:
    row = Row({"stage": "disk"}, {"throughput": Metric((20000.0,), "images/s")})
    other = replace(row, metrics={"throughput": Metric((10000.0,), "images/s")})
    text = render(compare_results(changed(rows=(row,)), changed(rows=(other,))), NAMES)
    assert "one round" in text
    assert text.endswith("No spread is known on both sides: measure two rounds or more.\n")
