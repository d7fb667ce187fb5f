"""tools/eval.py writes who was taken for whom, and says what to do about a bad image."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import models_run
import numpy as np
import paddle
import pytest

from ppcls.arch.build import build_model
from ppcls.cli.eval import evaluate
from ppcls.registry import ARCHITECTURES
from ppcls.weights.files import write_arrays


@pytest.fixture
def config(make_yaml: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A config with weights and metrics of each class."""
    monkeypatch.setitem(ARCHITECTURES._entries, "Layer", models_run.linear)
    paddle.seed(2)
    write_arrays(tmp_path / "fresh.safetensors", build_model("Layer", 4).state_dict())
    made = make_yaml(
        Arch__name="Layer",
        Global__use_dali=False,
        Global__pretrained_model=str(tmp_path / "fresh.safetensors"),
        Metric__Eval=[
            {"TopkAcc": {"topk": 1}},
            {"PerClassRecall": {"each": True}},
            {"ConfusionMatrix": None},
        ],
    )
    return str(made)


def test_confusion_file_agrees_with_the_metrics(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(["-c", config, "--confusion", str(tmp_path / "confusion.csv")]) == 0
    output = capsys.readouterr().out
    table = np.loadtxt(tmp_path / "confusion.csv", delimiter=",", skiprows=1, dtype=int)
    matrix = table[:, 1:]
    assert (tmp_path / "confusion.csv").read_text("utf-8-sig").startswith("label,0,1,2,3\n0,")
    assert matrix.sum(axis=1).tolist() == [3, 3, 3, 2]
    recalls = matrix.diagonal() / matrix.sum(axis=1)
    each = " ".join(f"recall_{k} {recall:.4f}" for k, recall in enumerate(recalls))
    shares = f"recall_mean {recalls.mean():.4f} recall_min {recalls.min():.4f} {each}"
    assert f"top1 {matrix.trace() / 11:.4f} {shares}" in output
    assert f"macro_recall {recalls.mean():.4f}" in output


def test_confusion_file_in_missing_folder_is_rejected_before_evaluation(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(["-c", config, "--confusion", str(tmp_path / "none" / "confusion.csv")]) == 2
    assert (
        f"--confusion {tmp_path}/none/confusion.csv: no such folder: {tmp_path}/none"
        in capsys.readouterr().err
    )
    assert evaluate(["-c", config, "--confusion", str(tmp_path)]) == 2
    assert "expected a file, found a folder" in capsys.readouterr().err


def test_eval_of_bad_image_suggests_skipping(
    config: str, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "spoilt.txt").write_text("eval.txt 0\n" + (images / "eval.txt").read_text())
    spoilt = f"DataLoader.Eval.dataset.cls_label_path={tmp_path}/spoilt.txt"
    assert evaluate(["-c", config, "-o", spoilt]) == 2
    skip = "DataLoader.Eval.dataset.on_error=skip"
    assert f"skip them with --on-error skip (-o {skip}); `ppcls dataset check " in capsys.readouterr().err
    assert evaluate(["-c", config, "-o", spoilt, skip]) == 0
    assert ", 11 images, " in capsys.readouterr().out
