from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ppcls.report.logfile import LogFile
from ppcls.report.memory import MemoryUse
from ppcls.report.record import EvalRecord, StepRecord


@pytest.mark.parametrize(("evaluates", "told_at"), [(True, 3), (False, 2)])
def test_use_is_told_once_when_all_pipelines_have_run(
    tmp_path: Path,
    run: Callable[[int], list[StepRecord | EvalRecord]],
    evaluates: bool,
    told_at: int,
) -> None:
    log = LogFile(tmp_path / "train.log")
    done, measured = 0, []

    def measure() -> str:
        measured.append(done)
        return "so much"

    reporter = MemoryUse(measure, evaluates, log)
    records = [each for each in run(2) if evaluates or isinstance(each, StepRecord)]
    reporter.message("not told twice")
    for record in records:
        done += 1
        if isinstance(record, StepRecord):
            reporter.train(record)
        else:
            reporter.evaluation(record)
    reporter.close()
    log.close()
    assert measured == [told_at]
    assert [line[20:] for line in (tmp_path / "train.log").read_text().splitlines()] == ["so much"]
