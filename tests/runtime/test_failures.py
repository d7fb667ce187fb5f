"""The terminal shows which process failed first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ppcls.errors import MissedTargetError, SignalExit, TryAgainError, UserError
from ppcls.runtime import failures
from ppcls.runtime.failures import FailureReports
from ppcls.runtime.launch import Launch


def reports_of(folder: Path, rank: int, world_size: int = 2) -> FailureReports:
    terminal = folder / "workerlog.0"
    terminal.touch()
    return FailureReports(folder, Launch(rank, world_size, "host_1234", terminal if rank else None))


def fail(reports: FailureReports, error: BaseException) -> None:
    with reports.reporting():
        raise error


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "_CAUSE_TIMEOUT", 0.0)


def test_terminal_shows_the_first_failure_and_the_second_names_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^not an image$"):
        fail(reports_of(tmp_path, 1), UserError("not an image"))
    terminal = (tmp_path / "workerlog.0").read_text()
    first = r"^rank 1 \(process \d+ on .*\) failed first:\nerror: not an image$"
    assert re.search(first, terminal, re.MULTILINE)
    with pytest.raises(UserError) as caught:
        fail(reports_of(tmp_path, 0), RuntimeError("connection closed by peer"))
    second = r"rank 1 \(.*\) failed first: error: not an image\nRank 0 then failed too; see .*rank_0.txt"
    assert re.fullmatch(second, str(caught.value))
    assert (tmp_path / "workerlog.0").read_text() == terminal, "no traceback of the second failure"
    report = reports_of(tmp_path, 0).read(0)
    assert report is not None
    assert report.startswith("Traceback")
    assert report.endswith("RuntimeError: connection closed by peer")


def test_unexpected_first_failure_shows_its_traceback(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="out of memory"):
        fail(reports_of(tmp_path, 1), RuntimeError("out of memory"))
    terminal = (tmp_path / "workerlog.0").read_text()
    assert "failed first:\nTraceback" in terminal
    assert "RuntimeError: out of memory" in terminal


def test_failure_of_the_shown_process_is_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no space"):
        fail(reports_of(tmp_path, 0), UserError("no space"))
    assert (tmp_path / "workerlog.0").read_text() == ""


def test_failure_waits_for_the_report_of_its_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = reports_of(tmp_path, 1)
    monkeypatch.setattr(failures, "_CAUSE_TIMEOUT", 60.0)
    monkeypatch.setattr(failures.time, "sleep", lambda _: other.write("rank 1 was killed", "", 75))
    with pytest.raises(UserError, match=r"^rank 1 was killed\nRank 0 then failed too"):
        fail(reports_of(tmp_path, 0), RuntimeError("connection closed by peer"))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UserError("no image"), 2),
        (TryAgainError("no answer"), 75),
        (MissedTargetError("worse"), 4),
        (RuntimeError("CUDA error"), 1),
    ],
)
def test_all_ranks_end_with_the_exit_code_of_the_first_failure(
    error: Exception, code: int, tmp_path: Path
) -> None:
    with pytest.raises(type(error)):
        fail(reports_of(tmp_path, 1), error)
    with pytest.raises(UserError) as caught:
        fail(reports_of(tmp_path, 0), RuntimeError("connection closed by peer"))
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("world_size", "error"),
    [(1, RuntimeError("out of memory")), (2, KeyboardInterrupt()), (2, SignalExit(15))],
)
def test_single_process_and_signals_write_no_report(
    tmp_path: Path, world_size: int, error: BaseException
) -> None:
    with pytest.raises(type(error)):
        fail(reports_of(tmp_path, 0, world_size), error)
    assert not (tmp_path / "failures").exists()


def test_launch_of_the_same_name_removes_its_old_reports(tmp_path: Path) -> None:
    before = reports_of(tmp_path, 1)
    before.write("rank 1 failed first: before", "", 2)
    before.hang_marker.touch()
    with reports_of(tmp_path, 0).reporting(), reports_of(tmp_path, 1).reporting():
        pass
    assert not before.hang_marker.exists()
    with pytest.raises(UserError, match=r"^now$"):
        fail(reports_of(tmp_path, 0), UserError("now"))


def test_clear_keeps_the_report_of_another_rank(tmp_path: Path) -> None:
    reports_of(tmp_path, 1).write("rank 1 failed first: bad", "", 2)
    reports_of(tmp_path, 0).clear()
    assert reports_of(tmp_path, 0).first() == ("rank 1 failed first: bad", 2)


def test_failure_whose_report_cannot_be_written_is_shown(tmp_path: Path) -> None:
    reports = reports_of(tmp_path, 1)
    reports.folder = tmp_path / "workerlog.0" / "no folder"
    with pytest.raises(UserError, match="disk full"):
        fail(reports, UserError("disk full"))
    assert "disk full" in (tmp_path / "workerlog.0").read_text()
