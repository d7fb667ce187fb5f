from __future__ import annotations

import time

import pytest

from ppcls.report.record import TimeBudget


def test_time_budget_counts_failures_and_grows_with_elapsed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    budget = TimeBudget()
    assert budget.left

    def fail() -> None:
        with budget.spending():
            now[0] += 5
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert not budget.left
    now[0] += 390
    assert not budget.left
    now[0] += 10
    assert budget.left
