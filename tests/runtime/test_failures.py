"""Which of several processes failed first, and where the user reads it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ppcls.errors import SignalExit, UserError
from ppcls.runtime import failures
from ppcls.runtime.failures import Failures, Launch


def rank(folder: Path, number: int, world: int = 2, name: str = "host_1234") -> Failures:
    shown = folder / "workerlog.0"
    shown.touch()
    return Failures(folder, Launch(number, world, name, shown if number else None))


def fail(failed: Failures, error: Exception) -> None:
    with failed.shown():
        raise error


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "_ECHO", 0.0)


def test_the_first_failure_is_shown_and_the_echo_names_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^not an image$"):
        fail(rank(tmp_path, 1), UserError("not an image"))
    terminal = (tmp_path / "workerlog.0").read_text()
    assert re.search(
        r"^rank 1 \(process \d+ on .*\) failed first:\nerror: not an image$", terminal, re.MULTILINE
    )
    with pytest.raises(UserError) as caught:
        fail(rank(tmp_path, 0), RuntimeError("connection closed by peer"))
    assert re.match(
        r"rank 1 \(.*\) failed first: error: not an image\nThat took rank 0 with it: ", str(caught.value)
    )
    assert (tmp_path / "workerlog.0").read_text() == terminal, "no traceback of the echo"
    echo = rank(tmp_path, 0).file(0).read_text()
    assert "Traceback" in echo
    assert "RuntimeError: connection closed by peer" in echo


def test_an_error_of_nobody_else_keeps_its_traceback(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="out of memory"):
        fail(rank(tmp_path, 1), RuntimeError("out of memory"))
    terminal = (tmp_path / "workerlog.0").read_text()
    assert "failed first:\nTraceback" in terminal
    assert "RuntimeError: out of memory" in terminal


def test_the_process_that_the_launcher_shows_says_it_once(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no space"):
        fail(rank(tmp_path, 0), UserError("no space"))
    assert (tmp_path / "workerlog.0").read_text() == ""


def test_an_error_waits_for_the_one_that_caused_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = rank(tmp_path, 1)
    monkeypatch.setattr(failures, "_ECHO", 60.0)
    monkeypatch.setattr(failures.time, "sleep", lambda _: other.claim("rank 1 was killed", ""))
    with pytest.raises(UserError, match=r"^rank 1 was killed\nThat took rank 0 with it"):
        fail(rank(tmp_path, 0), RuntimeError("connection closed by peer"))


def test_one_process_needs_no_folder(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="out of memory"):
        fail(rank(tmp_path, 0, world=1), RuntimeError("out of memory"))
    assert not (tmp_path / "failures").exists()


def test_an_interrupt_is_no_failure(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), rank(tmp_path, 1).shown():
        raise KeyboardInterrupt
    assert not (tmp_path / "failures").exists()


def test_a_launch_of_the_same_name_begins_anew(tmp_path: Path) -> None:
    before = rank(tmp_path, 1)
    before.claim("rank 1 failed first: before", "")
    before.hang.touch()
    with rank(tmp_path, 0).shown(), rank(tmp_path, 1).shown():
        pass
    assert not before.hang.exists()
    with pytest.raises(UserError, match=r"^now$"):
        fail(rank(tmp_path, 0), UserError("now"))


def test_what_another_rank_left_stays(tmp_path: Path) -> None:
    rank(tmp_path, 1).claim("rank 1 failed first: bad", "")
    rank(tmp_path, 0).forget()
    assert rank(tmp_path, 0).first() == "rank 1 failed first: bad"


def test_words_that_cannot_be_kept_are_shown(tmp_path: Path) -> None:
    failed = rank(tmp_path, 1)
    failed.folder = tmp_path / "workerlog.0" / "no folder"
    with pytest.raises(UserError, match="disk full"):
        fail(failed, UserError("disk full"))
    assert "disk full" in (tmp_path / "workerlog.0").read_text()


def test_what_was_asked_for_is_no_failure(tmp_path: Path) -> None:
    with pytest.raises(SignalExit), rank(tmp_path, 1).shown():
        raise SignalExit(15)
    assert not (tmp_path / "failures").exists()
