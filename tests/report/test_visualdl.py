from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
from report_records import EVALUATION, STEP, make_records

from ppcls.report.record import EvalRecord, Histogram, Outcomes
from ppcls.report.thumbnail import Picture, PictureSource
from ppcls.report.visualdl import VisualDLWriter, pr_curve, scalars


def test_scalars_have_tags_and_omit_nonfinite_values() -> None:
    assert scalars(STEP) == {
        "train/loss": 0.1234,
        "train/top1": 0.9876,
        "train/lr": 0.00123,
        "train/images_per_second": 1234.4,
        "train/data_wait": 0.03,
    }
    assert scalars(EVALUATION) == {"eval/loss": 0.12, "eval/top1": 0.9861, "eval/top5": 1.0}
    assert "train/loss" not in scalars(replace(STEP, loss=math.nan))


class OnePicture(PictureSource):
    def augmented(self) -> list[Picture]:
        return [Picture(np.full((300, 200, 1), 77, np.uint8), "cat")]


def test_visualdl_reads_the_whole_run_back(tmp_path: Path) -> None:
    from visualdl import LogReader

    confidences = np.zeros((2, 100), np.int64)
    confidences[1, 90], confidences[0, 90], confidences[0, 20] = 3, 1, 2
    weights = {"fc.weight": Histogram(np.array([1, 2]), np.array([0.0, 0.5, 1.0]))}
    records = make_records(2)
    writer = VisualDLWriter(tmp_path / "visualdl", records[:3], OnePicture(), lambda: weights)
    writer.message("not a scalar")
    for record in records[3:]:
        if isinstance(record, EvalRecord):
            record = replace(record, outcomes=Outcomes(None, confidences, ()))
        writer.record(record)
    writer.close()
    writer.close()
    (path,) = (tmp_path / "visualdl").iterdir()
    reader = LogReader(file_path=str(path))
    assert [item.id for item in reader.get_data("scalar", "train/loss")] == [45, 90, 135, 180]
    assert [item.id for item in reader.get_data("scalar", "eval/top5")] == [90, 180]
    assert [item.id for item in reader.get_data("image", "augmented/0")] == [2], "at the end of the epoch"
    (histogram,) = reader.get_data("histogram", "weights/fc.weight")
    assert histogram.id == 2
    assert list(histogram.histogram.hist) == [1, 2]
    (curve,) = reader.get_data("pr_curve", "eval/confidence")
    assert curve.id == 2
    assert list(curve.pr_curve.TP)[::90] == [3, 3]


def test_pr_curve_counts_by_threshold() -> None:
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
