"""Compares two results row by row: computes ratios, and tests which of them exceed the noise.

Noise is assumed to be multiplicative, so the logarithms of the values are compared with Welch's t-test (Welch
1947), which does not assume equal variances. Each ratio has a 95 % confidence interval. If the interval
contains 1, the difference is within noise. Both sides need at least two rounds, because the spread of a
single value is unknown. The test cannot detect a change that affects a whole run, such as a different clock
rate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from scipy import stats

from ppcls.bench.results.schema import Quantity, ResultRow, Results

CONFIDENCE = 0.95
_CHANGED_LINES = 5  # maximum number of lines per config that a warning shows
# A ratio outside 1 / _LARGE to _LARGE whose interval contains 1 was measured too badly to be called equal.
_LARGE = 1.5
Verdict = Literal["within noise", "too noisy", "better", "worse", "more", "less", "unknown"]


class Ratio(NamedTuple):
    """Geometric mean of the second side divided by that of the first, and its confidence interval.

    An unknown interval is stored as 0 to infinity.
    """

    value: float
    low: float
    high: float

    @property
    def within_noise(self) -> bool:
        """Whether the confidence interval contains 1, so that the two sides may be equal."""
        return self.low <= 1 <= self.high

    @property
    def known(self) -> bool:
        """Whether the confidence interval is known."""
        return math.isfinite(self.high)


def find_ratio(first: Sequence[float], second: Sequence[float]) -> Ratio | None:
    """Returns the ratio of ``second`` to ``first``, or None if a value is 0 or less."""
    if min(*first, *second) <= 0:
        return None
    one = np.log(first)
    other = np.log(second)
    ratio = math.exp(other.mean() - one.mean())
    if min(len(one), len(other)) < 2:
        return Ratio(ratio, 0.0, math.inf)
    if one.var() == other.var() == 0:
        return Ratio(ratio, ratio, ratio)
    with np.errstate(over="ignore"):
        interval = stats.ttest_ind(other, one, equal_var=False).confidence_interval(CONFIDENCE)
        return Ratio(ratio, float(np.exp(interval.low)), float(np.exp(interval.high)))


class MetricComparison(NamedTuple):
    """Comparison of one metric of a row.

    Attributes:
        name: Name of the metric.
        first: Quantity of the first side.
        second: Quantity of the second side.
        ratio: Ratio of the second side to the first; None if a value is 0 or less.
    """

    name: str
    first: Quantity
    second: Quantity
    ratio: Ratio | None

    @property
    def verdict(self) -> Verdict:
        """Whether the second side is better, worse, or within noise of the first; or too noisy to say."""
        if self.first.values == self.second.values:
            return "within noise"
        if self.ratio is None or not self.ratio.known:
            return "unknown"
        if self.ratio.within_noise:
            return "within noise" if 1 / _LARGE < self.ratio.value < _LARGE else "too noisy"
        more = self.ratio.value > 1
        if self.first.better == "neither":
            return "more" if more else "less"
        return "better" if more == (self.first.better == "more") else "worse"


class ResultsComparison(NamedTuple):
    """Comparison of two results.

    Attributes:
        rows: Rows that are in both results, each with the metrics that are in both.
        only: Rows that are only in the first result, and rows that are only in the second.
        warnings: Differences between the two runs that make the results hard to compare.
    """

    rows: tuple[tuple[ResultRow, tuple[MetricComparison, ...]], ...]
    only: tuple[tuple[ResultRow, ...], tuple[ResultRow, ...]]
    warnings: tuple[str, ...]


def compare_results(first: Results, second: Results) -> ResultsComparison:
    """Returns the comparison of two results. Rows with equal labels are compared."""
    one, other = ({tuple(sorted(row.labels.items())): row for row in side.rows} for side in (first, second))
    rows = tuple((row, _compare_rows(row, other[key])) for key, row in one.items() if key in other)
    only = (
        tuple(row for key, row in one.items() if key not in other),
        tuple(row for key, row in other.items() if key not in one),
    )
    return ResultsComparison(rows, only, tuple(_warnings(first, second)))


def _compare_rows(row: ResultRow, other: ResultRow) -> tuple[MetricComparison, ...]:
    return tuple(
        MetricComparison(name, metric, match, find_ratio(metric.values, match.values))
        for name, metric in row.metrics.items()
        if (match := other.metrics.get(name)) is not None
    )


def _warnings(first: Results, second: Results) -> list[str]:
    warnings = []
    if first.benchmark != second.benchmark:
        warnings.append(f"different benchmarks: {first.benchmark} and {second.benchmark}")
    facts = (("machines", first.machine, second.machine), ("versions", first.versions, second.versions))
    for kind, *sides in facts:
        for name in dict.fromkeys([*sides[0], *sides[1]]):
            one, other = (side.get(name, "none") for side in sides)
            if one != other:
                warnings.append(f"different {kind}: {name}: {one} and {other}")
    if first.config != second.config:
        texts = [[line.strip() for line in side.config.splitlines()] for side in (first, second)]
        lost = [f"-{line}" for line in texts[0] if line not in texts[1]][:_CHANGED_LINES]
        new = [f"+{line}" for line in texts[1] if line not in texts[0]][:_CHANGED_LINES]
        changes = "; ".join(lost + new) or "only the order of the lines differs"
        warnings.append(f"different configs: {changes}")
    return warnings
