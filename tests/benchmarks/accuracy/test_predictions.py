"""Charts of calibration and confusion."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.run import main
from ppcls.report.confusion import confusion_csv
from ppcls.report.record import Outcomes
from ppcls.report.stored_evaluation import StoredEvaluation, store_evaluation


def write_run(folder: Path) -> None:
    """Writes the files of a run with 20 images of cats and 20 of dogs, of which one dog is a cat."""
    confusion = np.array([[20, 0], [1, 19]])
    confidences = np.zeros((2, 20), np.int64)
    confidences[:, 15] = 1, 39  # probabilities of 0.75 to 0.8
    folder.mkdir()
    store_evaluation(
        folder / "evaluation.npz", StoredEvaluation(3, 30, Outcomes(confusion, confidences, ()), ())
    )
    (folder / "confusion.csv").write_text(
        "\ufeff" + confusion_csv(confusion, ["cat", "dog"]), encoding="utf-8"
    )


def test_charts_and_table_are_those_of_the_best_evaluation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "pets")
    runs = [str(tmp_path / "pets"), f"again={tmp_path / 'pets'}"]
    assert main(["predictions", *runs, "--out", str(tmp_path / "charts")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "| pets | 3 | 40 | 0.9750 | 0.7750 | 0.2000 | dog as cat 5.0% |"
    assert lines[3].startswith("| again | 3 | 40 |")
    names = sorted(path.name for path in (tmp_path / "charts").iterdir())
    assert names == ["calibration.svg", "confusion-again.svg", "confusion-pets.svg"]
    picture = (tmp_path / "charts" / "confusion-pets.svg").read_text(encoding="utf-8")
    assert all(f">{text}<" in picture for text in ("cat", "dog", "5.0", "95.0", "pets: top1 0.9750"))


def test_a_folder_without_an_evaluation_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predictions", str(tmp_path)]) == 2
    assert "evaluation.npz: expected the evaluation of a run" in capsys.readouterr().err


def test_equal_names_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "pets")
    assert main(["predictions", str(tmp_path / "pets"), str(tmp_path / "pets")]) == 2
    assert "several runs have the name pets; name them with NAME=FOLDER" in capsys.readouterr().err
