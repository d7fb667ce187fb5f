"""Two benchmarks' results, row by row: ratios, and which of them are more than noise. Pure.

The rule: values are taken to spread by factors, so their logarithms are compared, by Welch's t-test (Welch
1947), which asks for no equal spread. A ratio comes with the range that holds the true one in 95 of 100 such
comparisons; where 1 is in it, the difference is within noise. Both sides need two rounds or more: one value
has no spread. What changed between the two runs as a whole, such as the machine's clock, no rule can tell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

from ppcls.bench.results.results import Metric, Results, Row

CONFIDENCE = 0.95
Verdict = Literal["within noise", "better", "worse", "more", "less", "can't be told"]


@dataclass(frozen=True)
class Ratio:
    """One side over the other.

    Attributes:
        value: Of the geometric means.
        low: The true ratio is at least this; 0 where nothing is known.
        high: And at most this; infinity where nothing is known.
    """

    value: float
    low: float
    high: float

    @property
    def within_noise(self) -> bool:
        """Whether there may be no difference."""
        return self.low <= 1 <= self.high

    @property
    def known(self) -> bool:
        """Whether the spread of both sides is known."""
        return math.isfinite(self.high)


def ratio(first: Sequence[float], second: Sequence[float], confidence: float = CONFIDENCE) -> Ratio | None:
    """Returns ``second`` over ``first``; None where a value is not above 0, which has no ratio.

    Args:
        first: Values of one side.
        second: Values of the other.
        confidence: Share of such ranges that hold the true ratio, 0..1.
    """
    if min(*first, *second) <= 0:
        return None
    logs = [np.log(np.asarray(each, np.float64)) for each in (first, second)]
    difference = float(logs[1].mean() - logs[0].mean())
    half = math.inf
    if min(len(first), len(second)) > 1:
        errors = [float(each.var(ddof=1)) / len(each) for each in logs]
        half = _half_width(errors, [len(each) - 1 for each in logs], confidence)
    return Ratio(math.exp(difference), math.exp(difference - half), _exp(difference + half))


def _half_width(errors: Sequence[float], degrees: Sequence[int], confidence: float) -> float:
    """Returns half the range of a difference of means with these squared errors (Welch-Satterthwaite)."""
    total = sum(errors)
    if total == 0:
        return 0.0
    shares = sum((error / total) ** 2 / degree for error, degree in zip(errors, degrees, strict=True))
    return float(stats.t.ppf((1 + confidence) / 2, 1 / shares)) * math.sqrt(total)


def _exp(exponent: float) -> float:
    return math.exp(exponent) if exponent < 700 else math.inf


@dataclass(frozen=True)
class Compared:
    """One metric of one row that both sides have.

    Attributes:
        name: Of the metric.
        first: In the first results.
        second: In the second.
        ratio: Second over first; None where a value is 0 or less.
    """

    name: str
    first: Metric
    second: Metric
    ratio: Ratio | None

    @property
    def verdict(self) -> Verdict:
        """What the ratio says."""
        if self.first.values == self.second.values:
            return "within noise"
        if self.ratio is None or not self.ratio.known:
            return "can't be told"
        if self.ratio.within_noise:
            return "within noise"
        more = self.ratio.value > 1
        if self.first.better == "neither":
            return "more" if more else "less"
        return "better" if more == (self.first.better == "more") else "worse"


@dataclass(frozen=True)
class Comparison:
    """All of it.

    Attributes:
        rows: Of both sides, with the metrics that both have.
        only: Rows of one side alone: of the first, of the second.
        warnings: What makes the sides hard to compare.
    """

    rows: tuple[tuple[Row, tuple[Compared, ...]], ...]
    only: tuple[tuple[Row, ...], tuple[Row, ...]]
    warnings: tuple[str, ...]


def compare_results(first: Results, second: Results) -> Comparison:
    """Compares two results; rows belong together where all their labels are the same."""
    keys = [{_key(row): row for row in each.rows} for each in (first, second)]
    both = [(row, keys[1][key]) for key, row in keys[0].items() if key in keys[1]]
    only = [tuple(row for key, row in own.items() if key not in other) for own, other in (keys, keys[::-1])]
    return Comparison(
        rows=tuple((row, _compare_rows(row, other)) for row, other in both),
        only=(only[0], only[1]),
        warnings=tuple(_warnings(first, second)),
    )


def _key(row: Row) -> tuple[tuple[str, object], ...]:
    return tuple(sorted(row.labels.items()))


def _compare_rows(row: Row, other: Row) -> tuple[Compared, ...]:
    return tuple(
        Compared(name, metric, other.metrics[name], ratio(metric.values, other.metrics[name].values))
        for name, metric in row.metrics.items()
        if name in other.metrics
    )


def _warnings(first: Results, second: Results) -> list[str]:
    said = []
    if first.benchmark != second.benchmark:
        said.append(f"different benchmarks: {first.benchmark} and {second.benchmark}")
    for what in ("machine", "versions"):
        sides = [getattr(each, what) for each in (first, second)]
        for name in dict.fromkeys([*sides[0], *sides[1]]):
            one, other = (each.get(name, "nothing") for each in sides)
            if one != other:
                heading = "different machines" if what == "machine" else "different versions"
                said.append(f"{heading}: {name}: {one} and {other}")
    if first.config != second.config:
        said.append("different configs: " + _changed_lines(first.config, second.config))
    return said


def _changed_lines(first: str, second: str, most: int = 5) -> str:
    """Returns the lines of each side alone, a few of them."""
    sides = [[line.strip() for line in each.splitlines()] for each in (first, second)]
    lost = [f"-{line}" for line in sides[0] if line not in sides[1]]
    new = [f"+{line}" for line in sides[1] if line not in sides[0]]
    more = len(lost) + len(new) - 2 * most
    shown_ = [*lost[:most], *new[:most]] or ["the order of lines"]
    return "; ".join(shown_) + (f"; and {more} more" if more > 0 else "")
