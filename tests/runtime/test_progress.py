"""What a process reports, and what a watchdog reads of it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppcls.runtime.progress import SIZE, Progress, ProgressSnapshot, read_progress


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = os.memfd_create("progress")
    os.ftruncate(descriptor, SIZE)
    yield descriptor
    os.close(descriptor)


def test_position_is_read_with_the_next_report(memory: int) -> None:
    progress = Progress(memory)
    assert str(read_progress(memory)) == "starting"
    progress.set_position(2, 17, 25)
    assert read_progress(memory).epoch == 0
    progress.report("forward")
    assert read_progress(memory) == ProgressSnapshot(2, 2, 17, 25, True, "forward")
    assert str(read_progress(memory)) == "epoch 2, batch 17, update 25: forward"


def test_only_slow_activities_are_slow_after_the_first_step(memory: int) -> None:
    progress = Progress(memory)
    progress.report("forward")
    assert read_progress(memory).slow
    progress.mark_first_step()
    progress.report("forward")
    assert not read_progress(memory).slow
    progress.report("saving", slow=True)
    assert read_progress(memory).slow


@given(activities=st.lists(st.text(), max_size=5))
def test_any_text_is_reported_cut_off_at_80_bytes(activities: list[str]) -> None:
    memory = os.memfd_create("progress")
    os.ftruncate(memory, SIZE)
    progress = Progress(memory)
    for activity in activities:
        progress.report(activity.replace("\0", ""))
    found = read_progress(memory)
    assert found.count == 1 + len(activities)
    last = activities[-1].replace("\0", "") if activities else "starting"
    assert found.activity == last.encode("utf-8", "replace")[:80].decode("utf-8", "replace")
    os.close(memory)


def test_report_needs_no_watchdog() -> None:
    Progress().report("anything")


@pytest.mark.parametrize("slow", [False, True])
def test_during_reports_the_previous_activity_again(memory: int, slow: bool) -> None:
    progress = Progress(memory)
    progress.mark_first_step()
    progress.report("evaluation: waiting for batch 2", slow=slow)
    with progress.during("waiting for all processes"):
        assert read_progress(memory).activity == "waiting for all processes"
        assert read_progress(memory).slow == slow
    found = read_progress(memory)
    assert (found.activity, found.slow) == ("evaluation: waiting for batch 2", slow)
