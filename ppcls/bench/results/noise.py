"""Whether rounds of one and the same thing differ too much to be told from others."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from ppcls.bench.results.results import Metric

_NOISY = 0.1  # half a range, as a share of the median


def warn_of_spread(rates: Iterable[Metric]) -> list[str]:
    """Returns a sentence where rounds differ much; else nothing.

    Args:
        rates: Of each setting, a value a round; one of a single round says nothing.
    """
    spreads = [each.spread for each in rates if len(each.values) > 1]
    noise = statistics.median(spreads) / 2 if spreads else 0.0
    if noise <= _NOISY:
        return []
    return [
        f"Runs of one and the same setting differ by ±{noise:.0%} here: other work shares the machine, or "
        "--seconds is too short. Smaller differences than that say nothing."
    ]
