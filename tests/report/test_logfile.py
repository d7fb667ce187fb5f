from __future__ import annotations

import re
from pathlib import Path

from ppcls.report.logfile import LogFile
from ppcls.report.record import EvalRecord, StepRecord
from ppcls.report.text import describe

STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (.*)")


def lines(path: Path) -> list[str]:
    matches = [STAMP.fullmatch(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert all(matches)
    return [match[1] for match in matches if match]


def test_every_line_has_its_time_and_is_there_at_once(
    tmp_path: Path, step: StepRecord, evaluation: EvalRecord
) -> None:
    path = tmp_path / "train.log"
    log = LogFile(path)
    log.message("two\nlines")
    log.train(step)
    log.evaluation(evaluation)
    expected = ["two", "lines", describe(step), describe(evaluation)]
    assert lines(path) == expected
    log.close()

    log = LogFile(path)
    log.message("appended: 5 µs")
    log.close()
    log.close()
    assert lines(path) == [*expected, "appended: 5 µs"]
