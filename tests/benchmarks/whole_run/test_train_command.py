"""Real runs of the training command, and runs that fail."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from benchmark_images import PHOTOS, write_images
from finished_candidates import finished

from benchmarks.run import main as benchmark
from benchmarks.whole_run import train_command
from benchmarks.whole_run.train_command import PARTS, make_rows
from ppcls.bench.results.schema import read_results
from ppcls.engine.autotune.processes import MeasurementFailed


@pytest.mark.slow
def test_command_splits_the_time_of_a_real_run(tmp_path: Path) -> None:
    overrides = [each for each in write_images(tmp_path) if "batch_size" not in each]
    overrides += [each.replace("Train", "Eval") for each in overrides[:2]]
    overrides += [
        "DataLoader.Train.sampler.batch_size=6",
        "Arch.name=PPLCNet_x0_25",
        "Optimizer.lr.warmup_epoch=0",
    ]
    out = tmp_path / "out"
    options = ["-c", str(PHOTOS), "--epochs", "1", "--out", str(out), "-o", *overrides]
    assert benchmark(["run", *options, f"Global.output_dir={tmp_path / 'mine'}"]) == 0
    results = read_results(out)
    times = {row.labels["part"]: row.metrics["time"].median for row in results.rows}
    assert list(times) == [*PARTS, "whole run"]
    assert all(seconds > 0 for part, seconds in times.items() if part != "data wait")
    assert sum(times[part] for part in PARTS) == pytest.approx(times["whole run"])
    whole = results.rows[-1].metrics
    assert whole["images/s"].median == pytest.approx(36 / times["whole run"])
    assert [each.name for each in out.glob("*.png")] == ["01-time-of-a-run-by-part.png"]
    assert not (tmp_path / "mine").exists(), "the run writes to a temporary folder"


@pytest.mark.parametrize(
    ("code", "timeout", "reason"),
    [
        ("print('cause'); raise SystemExit(3)", 20.0, "exit code 3"),
        ("import time; time.sleep(60)", 1.0, "not finished after 1 s"),
    ],
)
def test_run_failure_has_a_reason_and_the_log(code: str, timeout: float, reason: str) -> None:
    with pytest.raises(MeasurementFailed) as raised:
        train_command._run([sys.executable, "-c", code], timeout)
    assert raised.value.reason == reason
    assert str(raised.value) == reason + ("\ncause" if "cause" in code else "")


def test_make_rows_of_a_failed_run_has_the_reason() -> None:
    (row,) = make_rows([finished("run", "run", [], "exit code 3", {"part": "whole run"})])
    assert (row.labels, row.metrics, row.note) == ({"part": "whole run"}, {}, "exit code 3")
