from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ppcls.report.record import EvalRecord, StepRecord
from ppcls.report.visualdl import VisualDL, scalars


def test_tags(step: StepRecord, evaluation: EvalRecord) -> None:
    assert scalars(step) == {
        "train/loss": 0.1234,
        "train/top1": 0.9876,
        "train/lr": 0.00123,
        "train/images_per_second": 1234.4,
        "train/data_wait": 0.03,
    }
    assert scalars(evaluation) == {"eval/loss": 0.12, "eval/top1": 0.9861, "eval/top5": 1.0}


def test_what_is_not_finite_has_no_point(step: StepRecord) -> None:
    assert "train/loss" not in scalars(replace(step, loss=math.nan))


def test_visualdl_reads_the_whole_run_back(
    tmp_path: Path, run: Callable[[int], list[StepRecord | EvalRecord]]
) -> None:
    from visualdl import LogReader

    *earlier, step, evaluation = run(2)
    assert isinstance(step, StepRecord)
    assert isinstance(evaluation, EvalRecord)
    writer = VisualDL(tmp_path / "visualdl", earlier)
    writer.message("no scalar")
    writer.train(step)
    writer.evaluation(evaluation)
    writer.close()
    writer.close()
    (path,) = (tmp_path / "visualdl").iterdir()
    reader = LogReader(file_path=str(path))
    assert [each.id for each in reader.get_data("scalar", "train/loss")] == [45, 90, 135, 180]
    assert [each.id for each in reader.get_data("scalar", "eval/top5")] == [90, 180]
