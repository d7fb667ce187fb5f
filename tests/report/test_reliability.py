from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from report_records import EVALUATION, STEP

from ppcls.report.confusion import ReliabilityBin, expected_calibration_error, reliability_bins
from ppcls.report.html import HtmlReport, RunInfo
from ppcls.report.record import Outcomes


def make_confidences() -> np.ndarray:
    confidences = np.zeros((2, 100), np.int64)
    confidences[1, 95], confidences[0, 95], confidences[0, 20] = 3, 1, 2
    return confidences


def test_bins_compare_accuracy_and_confidence() -> None:
    bins = reliability_bins(make_confidences())
    assert bins == [
        ReliabilityBin(pytest.approx(0.205), 0.0, 2),
        ReliabilityBin(pytest.approx(0.955), 0.75, 4),
    ]
    assert expected_calibration_error(bins) == pytest.approx((2 * 0.205 + 4 * 0.205) / 6)


def test_report_draws_the_reliability_diagram(tmp_path: Path) -> None:
    report = HtmlReport(tmp_path / "report.html", tmp_path / "events.jsonl", RunInfo())
    report.record(STEP)
    assert "Reliability diagram" not in report.render()
    report.record(replace(EVALUATION, outcomes=Outcomes(None, make_confidences(), ())))
    page = report.render()
    assert page.count("<rect") == 2
    assert "about 0.205." in page
    assert "confidence 95.5%, accuracy 75.0%, 4 images" in page
