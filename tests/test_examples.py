"""Examples that are programs run as they stand."""

from __future__ import annotations

import importlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
from few_digits import write_few_digits
from nbclient import NotebookClient
from paths import ROOT

from ppcls.cli.train import train
from ppcls.registry import SOURCES


@pytest.mark.parametrize("use_dali", [pytest.param(True, marks=pytest.mark.slow), False])
def test_python_source_example_trains(
    tmp_path: Path, use_dali: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = [
        f"Global.output_dir={tmp_path}",
        f"Global.use_dali={use_dali}",
        "Global.epochs=1",
        "Arch.name=ShuffleNetV2_x0_25",
        "DataLoader.Train.dataset.source=evaluation shapes",  # a quarter of the images
    ]
    monkeypatch.setattr(SOURCES, "_entries", {})  # the program registers its sources
    monkeypatch.setattr("sys.argv", ["python_source.py", "-o", *overrides])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "examples" / "python_source.py"), run_name="__main__")
    said = capsys.readouterr()
    assert ended.value.code == 0, said.err
    assert "done: 1 epoch, 8 updates" in said.out
    assert (tmp_path / "best_model").exists()


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 32 digits for training and 8 for evaluation."""
    folder = tmp_path_factory.mktemp("few") / "digits"
    write_few_digits(folder, train=32, evaluation=8)
    return folder


@pytest.fixture
def few_digits(digits: Path, tmp_path: Path) -> Path:
    """A folder to start in, as the repository's root, whose digits are few."""
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    shutil.copytree(digits, tmp_path / "dataset" / "digits")
    return tmp_path


def test_custom_parts_example_trains(few_digits: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, ROOT / "tools" / "train.py", "-c", ROOT / "examples" / "custom_parts.yaml"),
            *("-o", "Global.epochs=1", "DataLoader.Train.dataset.transform_ops.2.RandomInvert.prob=1.0"),
        ],
        cwd=few_digits,
        env={**os.environ, "PYTHONPATH": str(ROOT / "examples")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "TinyNet" in done.stdout
    assert re.search(r"\[Eval\] epoch 1 loss .* Matthews -?[\d.]+ 8 images", done.stdout)
    assert re.search(r"epoch 1: norm of the weights [\d.]{2,4}\n", done.stdout)
    assert "the run is complete" in done.stdout
    config = (few_digits / "output" / "custom_parts" / "config.yaml").read_text()
    for text in ("PolyLoss", "Adamax", "RandomInvert", "custom_parts:WeightNorm"):
        assert text in config


@pytest.mark.parametrize(
    ("name", "metrics", "trained"),
    [
        ("imbalanced", "macro_precision .* recall_mean .* ece .* top1 ", "tensorboard"),
        ("embeddings", "recall1 .* recall5 .* mAP ", "latest"),
    ],
)
def test_example_config_trains(
    few_digits: Path,
    name: str,
    metrics: str,
    trained: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(few_digits)
    digits = few_digits / "dataset" / "digits"
    (digits / "rare_list.txt").write_text((digits / "train_list.txt").read_text())
    backbone = "Arch.Backbone.name=ResNet18" if name == "embeddings" else "Arch.name=ShuffleNetV2_x0_25"
    config = str(ROOT / "examples" / f"{name}.yaml")
    assert train(["-c", config, "-o", "Global.epochs=1", backbone]) == 0
    assert re.search(rf"\[Eval\] epoch 1 loss .*{metrics}", capsys.readouterr().out)
    assert (few_digits / "output" / name / trained).exists()


@pytest.mark.slow
def test_train_example_predicts(few_digits: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "train.py"],
        cwd=few_digits,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "1 batch per epoch" in done.stdout
    assert "the best model on DataLoader.Eval: {'top1': " in done.stdout
    assert re.search(r"a seven: \d \w+ [\d.]+ %, ", done.stdout)
    assert (few_digits / "output" / "example" / "report.html").exists()


@pytest.mark.slow  # test_train_example_predicts makes the same calls outside a kernel
def test_notebook_runs_in_a_kernel_without_errors(few_digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(ROOT / "examples" / "train.ipynb", as_version=4)
    nbformat.validate(notebook)
    NotebookClient(notebook, resources={"metadata": {"path": few_digits}}).execute()
    outputs = [out for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs]
    assert {out.output_type for out in outputs} == {"stream"}
    assert [out.text for out in outputs if out.name == "stderr"] == []
    said = "".join(out.text for out in outputs)
    assert "done: 2 epochs, 2 updates; all files are in output/notebook" in said
    assert "the best model on DataLoader.Eval: {'top1': " in said
    assert re.search(r"a seven: \d \w+ [\d.]+ %, ", said)


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "examples")
    return importlib.import_module("finetune_study")


@pytest.mark.slow
def test_study_trains_each_setting_once(
    study: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "EPOCHS", 1)
    study.make_data(tmp_path)
    for _ in range(2):
        study.train(tmp_path, "digits", 1, 0.03, 1)
    results = (tmp_path / "results.jsonl").read_text().splitlines()
    expected = {"data": "digits", "setting": "weights, last layer only", "rate": 0.03, "seed": 1}
    assert [json.loads(line) | {"curve": None} for line in results] == [{**expected, "curve": None}]
    log = (tmp_path / "runs" / "digits-1-0.03-1" / "train.log").read_text()
    assert "60 training images, 120 validation images" in log
    assert "frozen:" in log


def test_study_reports_mean_and_spread(
    study: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = [
        {"data": "photos", "setting": "x", "rate": 0.1, "seed": seed, "curve": {"5": 0.1, "10": last}}
        for seed, last in enumerate((0.2, 0.3, 0.7))
    ]
    (tmp_path / "results.jsonl").write_text("\n".join(map(json.dumps, results)) + "\n")
    study.report(tmp_path)
    assert "| photos | x | 0.1 | 3 | 0.40 (0.20 to 0.70) |" in capsys.readouterr().out
    assert "top-1" in (tmp_path / "study.svg").read_text()
