"""Measuring a model's answers: in this process, and by the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_classifier import config_tree, write_config, write_names, write_weights

from ppcls.bench.infer import infer
from ppcls.bench.infer.infer import Request, charts_of, find_models, findings_of, requests_of, rows_of
from ppcls.bench.infer.worker import measure
from ppcls.bench.measure.children import Outcome, measure_apart
from ppcls.bench.measure.turns import Measured
from ppcls.bench.results.results import read_results
from ppcls.cli import benchmark as benchmark_cli
from ppcls.cli import deploy as deploy_cli
from ppcls.errors import UserError


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One model, for Paddle Inference and as ONNX."""
    folder = tmp_path_factory.mktemp("model")
    tree = config_tree(write_weights(folder / "model.safetensors"), write_names(folder / "names.txt"))
    config = str(write_config(folder / "config.yaml", tree))
    for name in ("paddle", "onnx"):
        out = f"Global.save_inference_dir={folder / name}"
        assert deploy_cli.export(["-c", config, "--format", name, "-o", out]) == 0
    return {name: folder / name for name in ("paddle", "onnx")}


@pytest.mark.parametrize("kind", ["paddle", "onnx"])
@pytest.mark.parametrize("requests", [5, None])
def test_real_requests(exported: dict[str, Path], kind: str, requests: int | None) -> None:
    task = {"model": str(exported[kind]), "overrides": ["Global.device=cpu", "Global.cpu_threads=1"]}
    found = measure({**task, "batch_size": 2, "warm_up": 1, "requests": requests, "seconds": 0.05})
    assert found["requests"] == 5 if requests else found["requests"] > 0
    assert 0 < found["p50"] <= found["p90"] <= found["p99"]
    assert found["images_per_second"] <= 2 / (found["p50"] / 2)
    assert found["host_memory"] > 50


def test_models(exported: dict[str, Path]) -> None:
    models = find_models(list(exported.values()), [])
    requests = requests_of(models, "cpu", [1, 2, 1], [1, 4])
    assert len(requests) == 2 * 2 * 2
    assert [request.by for request in requests[::4]] == ["Paddle Inference", "onnxruntime"]
    assert requests[0].describe() == "ResNet18 by Paddle Inference, cpu, 1 thread, batch 1"
    with pytest.raises(UserError, match="two models are called ResNet18 and run by onnxruntime"):
        find_models([exported["onnx"], exported["onnx"] / "inference.onnx"], [])


def one(batch_size: int, *rounds: float, **more: Any) -> Measured[Request]:
    found = {"p90": 0.02, "p99": 0.03, "cpu_cores": 1.0, "host_memory": 300, "requests": 500, **more}
    request = Request(Path("m"), "ResNet18", "3x32x32", "onnxruntime", "cpu", 1, batch_size)
    return Measured(
        request, [{**found, "p50": each, "images_per_second": batch_size / each} for each in rounds]
    )


def test_rows_and_findings() -> None:
    lost = Measured(one(64).contender, [], "out of memory")
    measured = [one(1, 0.010, 0.012), one(8, 0.040, 0.041), lost]
    rows = rows_of(measured)
    assert rows[0].metrics["p50"].values == (10.0, 12.0)
    assert rows[1].metrics["images/s"].values == (200.0, pytest.approx(195.1, abs=0.1))
    assert (rows[2].metrics, rows[2].note) == ({}, "out of memory")
    assert list(findings_of(measured)) == [
        "Quickest answer: ResNet18 by onnxruntime, cpu, 1 thread, batch 1: 11 ms.",
        "Most images: ResNet18 by onnxruntime, cpu, 1 thread, batch 8: 197.6 images/s.",
    ]
    assert "Some rounds had 7 requests" in list(findings_of([one(1, 0.01, requests=7)]))[-1]
    assert list(findings_of([lost])) == ["Nothing could be measured; each row says why."]
    assert [chart.series for chart in charts_of(measured)] == [(), (), ()]


def test_the_command(exported: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--batch-size", "2", "--threads", "1", "--rounds", "1", "--requests", "3", "--warm-up", "1"]
    where = ["-o", "Global.device=cpu", "--out", str(tmp_path / "out")]
    assert benchmark_cli.main(["infer", "--model", str(exported["onnx"]), *arguments, *where]) == 0
    (row,) = read_results(tmp_path / "out").rows
    assert row.labels == {
        "model": "ResNet18",
        "image": "3x32x32",
        "run by": "onnxruntime",
        "device": "cpu",
        "threads": 1,
        "batch size": 2,
    }
    assert row.metrics["p99"].median > 0
    capsys.readouterr()
    assert benchmark_cli.main(["compare", str(tmp_path / "out"), str(tmp_path / "out" / "results.json")]) == 0
    said = capsys.readouterr().out
    assert "within noise" in said
    assert "warning" not in said


def test_an_interrupted_command_writes_and_says_so(
    exported: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def interrupted(*arguments: Any) -> Outcome:
        calls.append(arguments)
        if len(calls) == 3:  # a look, a round, another
            raise KeyboardInterrupt
        return measure_apart(*arguments)

    monkeypatch.setattr(infer, "measure_apart", interrupted)
    arguments = ["--batch-size", "2", "--threads", "1", "--requests", "3", "--warm-up", "1"]
    where = ["-o", "Global.device=cpu", "--out", str(tmp_path / "out")]
    assert benchmark_cli.main(["infer", "--model", str(exported["onnx"]), *arguments, *where]) == 130
    (row,) = read_results(tmp_path / "out").rows
    assert row.note == "no more rounds after 1: interrupted"


def test_no_such_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark_cli.main(["infer", "--model", str(tmp_path / "none")]) == 1
    assert "none: no such file or folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["infer", "--model", "m", "--batch-size", "0"], "expected an integer > 0, got '0'"),
        (["infer", "--model", "m", "--seconds", "nan"], "expected a number > 0, got 'nan'"),
        (["train", "-c", "c", "--processes", "two"], "expected an integer > 0, got 'two'"),
        (["train", "-c", "c", "--precision", "fp16"], "invalid choice: 'fp16'"),
        (["train", "-c", "c", "--phase-steps", "-1"], "expected an integer >= 0, got '-1'"),
    ],
)
def test_wrong_command_lines(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        benchmark_cli.main(arguments)
    assert said in capsys.readouterr().err
