from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from ppcls.report.record import EvalRecord, Histogram, Outcomes, StepRecord
from ppcls.report.thumbnail import NoPictures, Picture
from ppcls.report.visualdl import VisualDL, pr_curve, scalars


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


class OnePicture(NoPictures):
    def augmented(self) -> list[Picture]:
        return [Picture(np.full((300, 200, 1), 77, np.uint8), "cat")]


def test_images_weights_and_pr_curves(
    tmp_path: Path, run: Callable[[int], list[StepRecord | EvalRecord]]
) -> None:
    from visualdl import LogReader

    confidences = np.zeros((2, 100), np.int64)
    confidences[1, 90], confidences[0, 90], confidences[0, 20] = 3, 1, 2
    weights = {"fc.weight": Histogram(np.array([1, 2]), np.array([0.0, 0.5, 1.0]))}
    writer = VisualDL(tmp_path / "visualdl", (), OnePicture(), lambda: weights)
    for record in run(2):
        if isinstance(record, StepRecord):
            writer.train(record)
        else:
            writer.evaluation(replace(record, outcomes=Outcomes(None, confidences, ())))
    writer.close()
    (path,) = (tmp_path / "visualdl").iterdir()
    reader = LogReader(file_path=str(path))
    assert [each.id for each in reader.get_data("image", "augmented/0")] == [1, 2], "each epoch"
    histograms = reader.get_data("histogram", "weights/fc.weight")
    assert [each.id for each in histograms] == [1, 2]
    assert list(histograms[0].histogram.hist) == [1, 2]
    curves = reader.get_data("pr_curve", "eval/confidence")
    assert [each.id for each in curves] == [1, 2]
    assert list(curves[0].pr_curve.TP)[::90] == [3, 3]


def test_a_pr_curve_counts_by_threshold() -> None:
    confidences = np.array([[2, 1, 0, 1], [0, 1, 0, 2]])
    assert pr_curve(confidences) == {
        "tp": [3, 3, 2, 2],
        "fp": [4, 2, 1, 1],
        "tn": [0, 2, 3, 3],
        "fn": [0, 0, 1, 1],
        "precision": [3 / 7, 3 / 5, 2 / 3, 2 / 3],
        "recall": [1.0, 1.0, 2 / 3, 2 / 3],
    }
    assert pr_curve(np.zeros((2, 3), np.int64))["precision"] == [0, 0, 0]
