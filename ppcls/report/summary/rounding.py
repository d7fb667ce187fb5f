"""Rounds measured values to the digits that their range over the rounds supports.

The last printed digit is the first one that differs between rounds: a ratio of 2.3437 that was between 2.1
and 2.6 is printed as 2.3, and as 2 if it was between 1.2 and 4.9. A value of one round has no range, so it
gets two digits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal
from statistics import median

_MOST_DIGITS = 3  # even if the rounds agree better, because other runs differ by more
_DIGITS_OF_ONE_ROUND = 2


def format_rounded(value: float, low: float, high: float) -> str:
    """Returns a value with the digits that its range supports: one to three significant digits.

    Args:
        value: Finite value, such as a median.
        low: Lower end of its range or interval.
        high: Upper end, which may be infinite if it is unknown.
    """
    return _rounded(value, _last_place(value, low, high))


def format_range(value: float, low: float, high: float) -> str:
    """Returns the range of a value, such as ``2.1 to 2.6``, with the digits that `format_rounded` prints.

    An end that would be rounded to 0 keeps one significant digit.
    """
    place = _last_place(value, low, high)
    ends = (_rounded(end, min(place, _leading_place(end))) for end in (low, high))
    return " to ".join(ends)


def format_ratio(ratios: Sequence[float]) -> str:
    """Returns the median of a ratio over the rounds, such as ``2.3``; two digits if there is one round."""
    return format_rounded(median(ratios), *_ends(ratios))


def format_ratio_with_range(ratios: Sequence[float], unit: str = "") -> str:
    """Returns the median of a ratio and its range, such as ``2.3 (2.1 to 2.6)``; no range for equal rounds.

    Args:
        ratios: One ratio per round.
        unit: Word after the median, such as ``times``.
    """
    text = f"{format_ratio(ratios)} {unit}".rstrip()
    if min(ratios) == max(ratios):
        return text
    return f"{text} ({format_range(median(ratios), min(ratios), max(ratios))})"


def _ends(ratios: Sequence[float]) -> tuple[float, float]:
    return (min(ratios), max(ratios)) if len(ratios) > 1 else (-math.inf, math.inf)


def _last_place(value: float, low: float, high: float) -> int:
    """Returns the power of ten of the last digit to print."""
    leading = _leading_place(value)
    half = (high - low) / 2
    if not math.isfinite(half):
        return leading - _DIGITS_OF_ONE_ROUND + 1
    finest = leading - _MOST_DIGITS + 1
    # A rounding error must not add a digit: (2.2 - 2.0) / 2 is slightly more than 0.1.
    uncertain = finest if half == 0 else math.floor(math.log10(half) + 1e-9)
    return min(max(finest, uncertain), leading)


def _leading_place(value: float) -> int:
    """Returns the power of ten of a value's first significant digit; 0 for the value 0."""
    return math.floor(math.log10(abs(value))) if value and math.isfinite(value) else 0


def _rounded(value: float, place: int) -> str:
    exact = Decimal(repr(value)).quantize(Decimal(1).scaleb(place), ROUND_HALF_EVEN)
    return f"{exact + 0:,f}"
