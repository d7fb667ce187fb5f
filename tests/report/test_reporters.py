from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ppcls.report.build import Reporters, build_reporters
from ppcls.report.jsonlines import read_records
from ppcls.report.record import EvalRecord, Reporter, StepRecord

Run = Callable[[int], list[StepRecord | EvalRecord]]


def tell(reporter: Reporter, records: list[StepRecord | EvalRecord]) -> None:
    for record in records:
        if isinstance(record, StepRecord):
            reporter.train(record)
        else:
            reporter.evaluation(record)


def test_a_run_leaves_its_files(tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "deep" / "output"
    reporters = build_reporters(out, use_visualdl=True, resumed_from=None)
    reporters.message("hello")
    tell(reporters, run(2))
    reporters.close()
    reporters.close()
    assert sorted(each.name for each in out.iterdir()) == [
        "curves.png",
        "events.jsonl",
        "metrics.jsonl",
        "report.html",
        "train.log",
        "visualdl",
    ]
    assert read_records(out / "metrics.jsonl") == run(2)
    assert len((out / "train.log").read_text().splitlines()) == 1 + len(run(2))
    assert capsys.readouterr().out.startswith("hello\n[Train] epoch 1/20 step 45/90")


def test_a_resumed_run_goes_on_from_its_update(tmp_path: Path, run: Run) -> None:
    reporters = build_reporters(tmp_path, use_visualdl=False, resumed_from=None)
    tell(reporters, run(2))
    reporters.close()
    reporters = build_reporters(tmp_path, use_visualdl=False, resumed_from=90)
    assert read_records(tmp_path / "metrics.jsonl") == run(1)
    tell(reporters, run(3)[3:])
    reporters.close()
    assert read_records(tmp_path / "metrics.jsonl") == run(3)
    assert not (tmp_path / "visualdl").exists()


def test_a_run_from_the_start_begins_its_records_anew(tmp_path: Path, run: Run) -> None:
    for epochs in (2, 1):
        reporters = build_reporters(tmp_path, use_visualdl=False, resumed_from=None)
        tell(reporters, run(epochs))
        reporters.close()
    assert read_records(tmp_path / "metrics.jsonl") == run(1)
    assert len((tmp_path / "train.log").read_text().splitlines()) == 9, "the log keeps both"


def test_without_reporters_it_is_silent(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    silent = Reporters()
    silent.message("hello")
    tell(silent, run(1))
    silent.close()
    assert capsys.readouterr() == ("", "")


def test_all_are_closed_also_when_one_fails() -> None:
    class Closing(Reporters):
        closed = False

        def close(self) -> None:
            self.closed = True
            raise OSError("disk full")

    members = [Closing(), Closing()]
    with pytest.raises(OSError, match="disk full"):
        Reporters(members).close()
    assert all(each.closed for each in members)


class Full(Reporters):
    """Can't write."""

    def train(self, record: StepRecord) -> None:
        raise OSError(28, "No space left on device")

    def close(self) -> None:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("forgiving", [True, False])
def test_one_that_cannot_write_ends_the_run_unless_it_is_to_go_on(
    tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str], forgiving: bool
) -> None:
    good = build_reporters(tmp_path, use_visualdl=False, resumed_from=None)
    reporters = Reporters([Full(), good], forgiving)
    if not forgiving:
        with pytest.raises(OSError, match="No space"):
            tell(reporters, run(1))
        return
    tell(reporters, run(1))
    reporters.close()
    assert read_records(tmp_path / "metrics.jsonl") == run(1)
    assert capsys.readouterr().err == "Full: No space left on device; the run goes on without\n"
