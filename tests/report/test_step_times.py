from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from ppcls.report.step_times import COLUMNS, StepTimes, as_json, as_text, summarize

# milliseconds:   data, forward, backward, all-reduce, optimizer, host
DURING = [1.0, 10.0, 25.0, 0.0, 3.0, 1.0]
AFTER = [1.0, 10.0, 20.0, 12.0, 3.0, 1.0]


def times(*steps: list[float], after: list[bool], ranks: int = 1, ordinary: float | None = None) -> StepTimes:
    seconds = np.array([steps] * ranks) / 1e3
    return StepTimes(seconds, np.array(after), 10, 64, on_gpu=False, ordinary=ordinary)


def test_summarize_one_rank_has_no_exchange() -> None:
    slow = [2.0, 10.0, 25.0, 0.0, 3.0, 2.0]
    table = summarize(times(DURING, DURING, slow, after=[False] * 3))
    assert list(table.rows) == ["data wait", "forward", "backward", "optimizer", "host"]
    wait = table.rows["data wait"]
    assert (wait.median_ms, wait.max_ms) == (pytest.approx(1.0), pytest.approx(2.0))
    assert wait.mean_ms == pytest.approx(4 / 3)
    assert wait.share == pytest.approx(4 / 122)
    assert table.step.median_ms == pytest.approx(40.0)
    assert table.step.share == pytest.approx(1.0)
    assert table.images_per_second == pytest.approx(64 / 0.040)
    assert table.own_ms == ()


def test_summarize_exchange_is_the_time_added_to_backward() -> None:
    given = times(DURING, AFTER, DURING, AFTER, after=[False, True] * 2, ranks=2)
    given.seconds[1, :, 1] += 5e-3
    table = summarize(given)
    assert table.rows["backward"].median_ms == pytest.approx(20.0)
    assert table.rows["all-reduce"].median_ms == pytest.approx(5.0)
    assert table.step.median_ms == pytest.approx(40.0)
    assert table.all_reduce_alone_ms == pytest.approx(12.0)
    assert table.own_ms == pytest.approx((35.0, 40.0))
    text = as_text(table)
    assert "slowest rank: 1, 40.000 ms per update without the exchange; rank 0 takes 35.000 ms" in text
    assert "a separate exchange takes 12.000 ms, including the wait" in text
    assert "2 of the 4 updates exchanged gradients after backward" in text


def test_summarize_hidden_exchange_costs_nothing() -> None:
    faster = [1.0, 10.0, 19.0, 0.0, 3.0, 1.0]
    table = summarize(times(faster, AFTER, after=[False, True], ranks=2))
    assert table.rows["all-reduce"].max_ms == 0
    assert table.step.median_ms == pytest.approx(34.0)


def test_summarize_one_update_cannot_separate_the_exchange() -> None:
    table = summarize(times(DURING, after=[False], ranks=2))
    assert "all-reduce" not in table.rows
    assert "backward includes all-reduce" in as_text(table)


@given(
    arrays(np.float64, (2, 5, 6), elements=st.floats(1e-6, 10.0)),
    arrays(np.bool_, 5).filter(lambda after: not after.all()),
)
def test_summarize_rows_add_up_to_the_update(seconds: NDArray[np.float64], after: NDArray[np.bool_]) -> None:
    seconds[:, ~after, COLUMNS.index("all-reduce")] = 0.0
    table = summarize(StepTimes(seconds, after, 0, 1, on_gpu=False, ordinary=None))
    assert sum(row.mean_ms for row in table.rows.values()) == pytest.approx(table.step.mean_ms)
    assert sum(row.share for row in table.rows.values()) == pytest.approx(1.0)


def test_as_text_returns_documented_lines() -> None:
    assert as_text(summarize(times(DURING, DURING, after=[False] * 2, ordinary=0.032))) == (
        "profile of updates 10 to 11 of this run, milliseconds per update:\n"
        "                mean    median       max  share\n"
        "data wait      1.000     1.000     1.000   2.5%\n"
        "forward       10.000    10.000    10.000  25.0%\n"
        "backward      25.000    25.000    25.000  62.5%\n"
        "optimizer      3.000     3.000     3.000   7.5%\n"
        "host           1.000     1.000     1.000   2.5%\n"
        "update        40.000    40.000    40.000 100.0%\n"
        "1600.0 img/s, computed from the median update\n"
        "earlier updates without profiling: 32.000 ms on average; "
        "a profiled update takes 1.3 times as long\n"
    )


def test_as_json_holds_the_whole_table() -> None:
    table = summarize(times(DURING, AFTER, after=[False, True], ranks=2, ordinary=0.03))
    read = json.loads(as_json(table))
    assert read["steps"] == [10, 12]
    assert read["rows"]["all-reduce"]["median_ms"] == pytest.approx(5.0)
    assert read["ordinary_ms"] == pytest.approx(30.0)
    assert read.keys() == vars(table).keys()
