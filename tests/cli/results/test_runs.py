"""`ppcls runs` lists all runs below a folder, also damaged ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ppcls.cli.results.runs import runs
from ppcls.runtime.start import Runtime

STEP = {
    "kind": "train",
    "epoch": 2,
    "epochs": 3,
    "step": 4,
    "steps_per_epoch": 4,
    "update": 8,
    "loss": 0.5,
    "metrics": {"top1": 0.5},
    "learning_rate": 0.1,
    "images_per_second": 9.0,
    "data_wait": 0.1,
    "eta_seconds": 1.0,
}
EVALUATION = {
    "kind": "eval",
    "epoch": 2,
    "update": 8,
    "loss": 0.4,
    "metrics": {"top1": 0.75},
    "images": 4,
    "seconds": 1.0,
    "best": True,
}


def write_run(folder: Path, day: int) -> None:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(
        "Arch: {name: ResNet18}\n"
        "DataLoader: {Train: {dataset: {name: ImageFolderDataset, image_root: pics}}}\n"
    )
    (folder / "metrics.jsonl").write_text(f"{json.dumps(STEP)}\n{json.dumps(EVALUATION)}\n")
    times = (f"2026-01-{day:02} 10:00:00", f"2026-01-{day:02} 10:01:05")
    (folder / "train.log").write_text("".join(f"{time} x\n" for time in times))


def test_runs_are_listed_by_date(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "b" / "late", 9)
    write_run(tmp_path / "early", 2)
    (tmp_path / "empty").mkdir()
    page = tmp_path / "runs.html"
    assert runs([str(tmp_path), "--html", str(page)]) == 0
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split() == ["run", "model", "data", "best", "epochs", "duration", "date"]
    assert first.split() == [
        "early",
        "ResNet18",
        "pics",
        "top1",
        "0.7500",
        "2",
        "of",
        "3",
        "0:01:05",
        "2026-01-02",
        "10:01",
    ]
    assert second.startswith("b/late  ResNet18")
    assert "<td>top1 0.7500</td>" in page.read_text()


def test_runs_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "good", 2)
    write_run(tmp_path / "bad", 3)
    (tmp_path / "bad" / "config.yaml").write_text("{")
    (tmp_path / "bad" / "train.log").unlink()
    assert runs([str(tmp_path), "--json"]) == 0
    bad, good = json.loads(capsys.readouterr().out)
    assert good == {
        "run": "good",
        "model": "ResNet18",
        "data": "pics",
        "metric": "top1",
        "best": 0.75,
        "finished_epochs": 2,
        "epochs": 3,
        "seconds": 65.0,
        "date": "2026-01-02T10:01:05",
        "error": None,
    }
    assert bad["run"] == "bad"
    assert bad["best"] is None
    assert "config.yaml" in bad["error"]


def test_damaged_run_does_not_hide_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "good", 2)
    write_run(tmp_path / "bad", 3)
    (tmp_path / "bad" / "config.yaml").write_text("{")
    (tmp_path / "bad" / "train.log").unlink()
    assert runs([str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "top1 0.7500" in output
    assert "config.yaml" in output


def test_folder_without_runs_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runs([str(tmp_path)]) == 2
    assert "no runs in this folder" in capsys.readouterr().err
    assert runs([str(tmp_path / "gone")]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_pauses_are_not_part_of_the_duration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], cpu: Runtime
) -> None:
    write_run(tmp_path / "run", 2)
    start = cpu.describe()
    (tmp_path / "run" / "train.log").write_text(
        f"2026-01-02 10:00:00 {start}\n2026-01-02 10:01:00 [Train] epoch 1\n"
        "2026-01-02 23:00:00 resume: run/config.yaml has the settings\n"
        f"2026-01-02 23:00:01 {start}\na line without time\n"
        f"2026-01-05 10:00:00 {start}\n2026-01-05 10:00:07 done\n"
    )
    assert runs([str(tmp_path), "--json"]) == 0
    (summary,) = json.loads(capsys.readouterr().out)
    assert summary["seconds"] == 67
    assert summary["date"] == "2026-01-05T10:00:07"
