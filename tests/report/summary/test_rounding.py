"""Rounding of ratios: never more digits than their range supports."""

from __future__ import annotations

import statistics
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppcls.report.summary.rounding import format_ratio, format_ratio_with_range

RATIOS = st.lists(st.floats(1e-3, 1e4), min_size=2, max_size=5)


@pytest.mark.parametrize(
    ("ratios", "text"),
    [
        ((2.1, 2.3437, 2.6), "2.3 (2.1 to 2.6)"),
        ((1.2, 2.3437, 4.9), "2 (1 to 5)"),
        ((0.02, 2.3437, 4.9), "2 (0.02 to 5)"),
        ((2.0, 2.1, 2.2), "2.1 (2.0 to 2.2)"),
        ((2.34371, 2.34372, 2.34373), "2.34 (2.34 to 2.34)"),
        ((0.2, 0.27, 1.1), "0.3 (0.2 to 1.1)"),
        ((0.996, 0.997, 0.999), "0.997 (0.996 to 0.999)"),
        ((5.0, 12.0, 40.0), "10 (5 to 40)"),
        ((1150.0, 1234.0, 1300.0), "1,230 (1,150 to 1,300)"),
        ((2.3437,), "2.3"),
        ((1.0, 1.0, 1.0), "1.00"),
        ((0.0,), "0.0"),
    ],
)
def test_ratio_examples(ratios: tuple[float, ...], text: str) -> None:
    assert format_ratio_with_range(ratios) == text


@given(RATIOS)
def test_digits_follow_the_range(ratios: list[float]) -> None:
    median = statistics.median(ratios)
    half = (max(ratios) - min(ratios)) / 2
    printed = Decimal(format_ratio(ratios).replace(",", ""))
    assert abs(float(printed) - median) <= max(half, 0.005 * median) * (1 + 1e-9), "no digit is missing"
    decimals = -int(printed.as_tuple().exponent)
    significant = len(printed.as_tuple().digits)
    assert decimals == 0 or significant <= 4, "three digits; 9.999 is rounded up to 10.00"
    assert decimals == 0 or significant == 1 or 10.0**-decimals > half / 10 * (1 - 1e-6), "no digit is noise"


@given(RATIOS.filter(lambda ratios: min(ratios) < max(ratios)))
def test_range_contains_the_ratio(ratios: list[float]) -> None:
    ratio, _, rest = format_ratio_with_range(ratios).replace(",", "").partition(" (")
    low, high = map(float, rest.rstrip(")").split(" to "))
    assert low <= float(ratio) <= high
    assert low > 0
