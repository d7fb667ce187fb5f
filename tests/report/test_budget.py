from __future__ import annotations

import time

import pytest

from ppcls.report.budget import Budget


def test_a_budget_grows_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    budget = Budget()
    assert budget.left

    def fail() -> None:
        with budget.spending():
            now[0] += 5
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert not budget.left, "a failure costs time as well"
    now[0] += 290
    assert not budget.left
    now[0] += 10
    assert budget.left
