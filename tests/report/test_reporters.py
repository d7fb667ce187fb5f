from __future__ import annotations

import os
from pathlib import Path

import pytest
from report_records import make_records

from ppcls.errors import UserError
from ppcls.report.jsonlines import read_events, read_records, to_line
from ppcls.report.record import Record, Reporter
from ppcls.report.reporters import Reporters, build_reporters, log_failure


def report(reporter: Reporter, records: list[Record]) -> None:
    for record in records:
        reporter.record(record)


@pytest.mark.usefixtures("drawn_curves")
def test_run_leaves_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "deep" / "output"
    reporters = build_reporters(out, use_visualdl=True, resumed_from=None)
    reporters.message("hello")
    report(reporters, make_records(2))
    reporters.close()
    reporters.close()
    files = ["curves.png", "events.jsonl", "metrics.jsonl", "report.html", "train.log", "visualdl"]
    assert sorted(file.name for file in out.iterdir()) == files
    assert read_records(out / "metrics.jsonl") == make_records(2)
    assert len((out / "train.log").read_text().splitlines()) == 1 + len(make_records(2))
    assert capsys.readouterr().out.startswith("hello\n[Train] epoch 1/20 step 45/90")


def test_resumed_run_continues_its_records(tmp_path: Path) -> None:
    reporters = build_reporters(tmp_path, use_visualdl=False, resumed_from=None)
    report(reporters, make_records(2))
    reporters.close()
    reporters = build_reporters(tmp_path, use_visualdl=False, resumed_from=90)
    assert read_records(tmp_path / "metrics.jsonl") == make_records(1)
    report(reporters, make_records(3)[3:])
    reporters.close()
    assert read_records(tmp_path / "metrics.jsonl") == make_records(3)
    assert not (tmp_path / "visualdl").exists()


@pytest.mark.parametrize("resumed", [None, 90])
@pytest.mark.parametrize("name", ["train.log", "metrics.jsonl", "events.jsonl", "report.html", "curves.png"])
@pytest.mark.parametrize("kind", ["folder", "pipe", "link", "loop"])
def test_file_of_another_kind_is_rejected_and_kept(
    tmp_path: Path, kind: str, name: str, resumed: int | None
) -> None:
    place = tmp_path / name
    match kind:
        case "folder":
            place.mkdir()
        case "pipe":
            os.mkfifo(place)
        case "link":
            (tmp_path / "precious").write_text("mine")
            place.symlink_to("precious")
        case _:
            place.symlink_to(name)
    before = place.lstat()
    with pytest.raises(UserError, match=f"{name}: expected a regular file or nothing, found a"):
        build_reporters(tmp_path, use_visualdl=False, resumed_from=resumed)
    assert os.path.samestat(place.lstat(), before)
    if kind == "link":
        assert place.read_text() == "mine"


def test_resumed_run_keeps_intact_records_and_moves_damaged_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [to_line(record) for record in make_records(2)]
    typed = lines[0].replace('"update": ', '"update": "x", "was": ')
    mistyped = lines[0].replace('"step": 45', '"step": "45"')
    assert mistyped != lines[0]
    path.write_text("".join([lines[0], "{damaged\n", mistyped, typed, *lines[1:]]))
    reporters = build_reporters(tmp_path, use_visualdl=False, resumed_from=180)
    reporters.close()
    assert read_records(path) == make_records(2)
    assert (tmp_path / "metrics.jsonl.damaged").read_text() == "".join(["{damaged\n", mistyped, typed])
    log = (tmp_path / "train.log").read_text()
    assert "metrics.jsonl:2: invalid record" in log
    assert "metrics.jsonl:3: invalid record: step: expected int, found '45'" in log
    assert "3 damaged lines are moved to metrics.jsonl.damaged" in log


def test_run_from_scratch_removes_earlier_records(tmp_path: Path) -> None:
    for epochs in (2, 1):
        reporters = build_reporters(tmp_path, use_visualdl=False, resumed_from=None)
        report(reporters, make_records(epochs))
        reporters.close()
    assert read_records(tmp_path / "metrics.jsonl") == make_records(1)
    assert len((tmp_path / "train.log").read_text().splitlines()) == 9, "the log keeps both"


def test_reporters_without_members_are_silent(capsys: pytest.CaptureFixture[str]) -> None:
    silent = Reporters()
    silent.message("hello")
    report(silent, make_records(1))
    silent.close()
    assert capsys.readouterr() == ("", "")


class FullDisk(Reporter):
    """Cannot write."""

    closed = 0

    def record(self, record: Record) -> None:
        raise OSError(28, "No space left on device")

    def close(self) -> None:
        self.closed += 1
        raise OSError(28, "No space left on device")


def test_close_reaches_all_reporters_if_one_fails() -> None:
    members = [FullDisk(), FullDisk()]
    with pytest.raises(OSError, match="No space"):
        Reporters(members).close()
    assert [member.closed for member in members] == [1, 1]


@pytest.mark.parametrize("forgiving", [True, False])
def test_failing_reporter_ends_the_run_unless_forgiven(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], forgiving: bool
) -> None:
    good = build_reporters(tmp_path, use_visualdl=False, resumed_from=None)
    reporters = Reporters([FullDisk(), good], lambda: forgiving)
    if not forgiving:
        with pytest.raises(OSError, match="No space"):
            report(reporters, make_records(1))
        return
    report(reporters, make_records(1))
    reporters.close()
    assert read_records(tmp_path / "metrics.jsonl") == make_records(1)
    error = capsys.readouterr().err
    assert error == "FullDisk: No space left on device; the run continues without this report\n"


def test_log_failure_writes_log_and_events(tmp_path: Path) -> None:
    log_failure(tmp_path, 4, ValueError("bad data"))
    log_failure(tmp_path, 4, KeyboardInterrupt())
    log_failure(tmp_path / "missing", 4, ValueError())
    texts = ["ended by an error: bad data", "ended by an error: interrupted"]
    assert [(event.update, event.text) for event in read_events(tmp_path / "events.jsonl", 9)] == [
        (4, text) for text in texts
    ]
    assert [line[20:] for line in (tmp_path / "train.log").read_text().splitlines()] == texts
