"""What a process tells, and what its watcher reads of it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppcls.runtime.progress import SIZE, Progress, Seen, read


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = os.memfd_create("progress")
    os.ftruncate(descriptor, SIZE)
    yield descriptor
    os.close(descriptor)


def test_the_watcher_reads_what_is_told(memory: int) -> None:
    progress = Progress(memory)
    assert str(read(memory)) == "starting"
    progress.place(2, 17, 25)
    assert read(memory).epoch == 0, "a place is told with what goes on there"
    progress.tell("forward")
    assert read(memory) == Seen(2, 2, 17, 25, True, "forward")
    assert str(read(memory)) == "epoch 2, batch 17, update 25: forward"


def test_patience_ends_with_the_first_step(memory: int) -> None:
    progress = Progress(memory)
    progress.tell("forward")
    assert read(memory).patient
    progress.stepped()
    progress.tell("forward")
    assert not read(memory).patient
    progress.tell("saving", patient=True)
    assert read(memory).patient


@given(words=st.lists(st.text(), max_size=5))
def test_any_words_will_do_and_each_counts(words: list[str]) -> None:
    memory = os.memfd_create("progress")
    os.ftruncate(memory, SIZE)
    progress = Progress(memory)
    for each in words:
        progress.tell(each.replace("\0", ""))
    seen = read(memory)
    assert seen.count == 1 + len(words)
    told = words[-1].replace("\0", "") if words else "starting"
    assert seen.doing == told.encode("utf-8", "replace")[:80].decode("utf-8", "replace")
    os.close(memory)


def test_nobody_need_watch() -> None:
    Progress().tell("anything")


@pytest.mark.parametrize("patient", [False, True])
def test_what_was_interrupted_is_told_again(memory: int, patient: bool) -> None:
    progress = Progress(memory)
    progress.stepped()
    progress.tell("evaluation: waiting for batch 2", patient=patient)
    with progress.during("waiting for all processes"):
        assert read(memory).doing == "waiting for all processes"
        assert read(memory).patient == patient
    seen = read(memory)
    assert (seen.doing, seen.patient) == ("evaluation: waiting for batch 2", patient)
