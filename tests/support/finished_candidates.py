"""Builds candidates of a benchmark that already have measurements."""

from __future__ import annotations

from collections.abc import Sequence

from ppcls.bench.measure.runner import Candidate, Key
from ppcls.bench.results.schema import Label
from ppcls.engine.autotune.processes import Sample


def finished(
    key: Key,
    name: str = "",
    samples: Sequence[Sample] = (),
    reason: str = "",
    labels: dict[str, Label] | None = None,
) -> Candidate[Key]:
    return Candidate(key, name, dict, labels or {}, None, list(samples), reason)


def with_rates(name: str, *rates: float) -> Candidate[str]:
    return finished(name, name, [{"images_per_second": rate} for rate in rates])
