"""Speed of inference, measured in this process and by the command."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from finished_candidates import finished
from small_classifier import NAME, config_tree, export_model, write_config, write_weights

from benchmarks.infer.predictions import measure
from benchmarks.infer.random_models import write_random_models
from benchmarks.infer.requests import find_latencies, find_models, make_candidates, pytorch_requests
from benchmarks.run import main as benchmark
from ppcls.bench.measure.runner import Candidate, Effort
from ppcls.bench.results.schema import read_results
from ppcls.cli import export as export_cli
from ppcls.deploy.models.source import find_source
from ppcls.deploy.predictor import Predictor
from ppcls.engine.autotune.processes import MeasuringProcess
from ppcls.errors import UserError


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One model, for Paddle Inference and as ONNX."""
    folder = tmp_path_factory.mktemp("model")
    return {kind: export_model(folder, kind) for kind in ("paddle", "onnx")}


@pytest.mark.parametrize("kind", ["paddle", "onnx"])
@pytest.mark.parametrize("requests", [5, None])
def test_measure_real_requests(exported: dict[str, Path], kind: str, requests: int | None) -> None:
    task = {
        "model": str(exported[kind]),
        "overrides": ["Global.device=cpu", "Global.cpu_threads=1"],
        "trust": False,
    }
    found = measure({**task, "batch_size": 2, "warm_up": 1, "requests": requests, "seconds": 0.05})
    assert found["requests"] == 5 if requests else found["requests"] > 0
    assert 0 < found["p50"] <= found["p90"] <= found["p99"]
    assert found["images_per_second"] <= 2 / (found["p50"] / 2)
    assert found["host_memory"] > 50


def test_measure_model_of_pixels(exported: dict[str, Path]) -> None:
    pixels = exported["onnx"].parent / "pixels"
    config = str(exported["onnx"].parent / "config.yaml")
    options = ["--format", "onnx", "--preprocess", "normalize", "-o", f"Global.save_inference_dir={pixels}"]
    assert export_cli.export(["-c", config, *options]) == 0
    models = find_models([pixels, exported["onnx"]], [])
    candidates = make_candidates(models, "cpu", ([1], [2]), [], Effort())
    assert [each.labels["image"] for each in candidates] == ["32x32x3 uint8", "3x32x32"]
    assert candidates[0].name.endswith(", 1 thread, 8-bit images, batch 2")
    task = {"model": str(pixels), "overrides": ["Global.device=cpu", "Global.cpu_threads=1"], "trust": False}
    found = measure({**task, "batch_size": 2, "warm_up": 1, "requests": 2, "seconds": 0.05})
    assert found["requests"] == 2


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The config of a ResNet18 with random weights."""
    folder = tmp_path_factory.mktemp("resnet")
    tree = config_tree(write_weights(folder / "model.safetensors", "ResNet18"), None, name="ResNet18")
    return write_config(folder / "config.yaml", tree)


def test_pytorch_requests_are_eager_and_compiled(resnet: Path) -> None:
    models = find_models([resnet], [])
    on_gpu = pytorch_requests("python3", models, "gpu", ([12], [1, 128]), Effort())
    assert [(each.labels["run by"], each.labels["batch size"]) for each in on_gpu] == [
        ("PyTorch, float16", 1),
        ("PyTorch, compiled, float16", 1),
        ("PyTorch, float16", 128),
        ("PyTorch, compiled, float16", 128),
    ]
    assert {each.labels["image"] for each in on_gpu} == {"32x32x3 uint8"}
    (eager, _) = pytorch_requests("python3", models, "cpu", ([2], [4]), Effort())
    assert eager.name == "ResNet18 by PyTorch, float32, cpu, 2 threads, batch 4"
    assert eager.labels["image"] == "3x32x32"


def test_pytorch_requests_of_unknown_networks_are_an_error(exported: dict[str, Path]) -> None:
    models = find_models([exported["onnx"]], [])
    with pytest.raises(UserError, match=f"--torch: expected a model among .*, got {NAME}; remove --torch"):
        pytorch_requests("python3", models, "cpu", ([1], [1]), Effort())


@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None or importlib.util.find_spec("timm") is None,
    reason="no torch and timm",
)
def test_pytorch_measures_real_requests(resnet: Path) -> None:
    models = find_models([resnet], [])
    effort = Effort(rounds=1, warm_up=1, counted=3)
    (eager, _) = pytorch_requests(sys.executable, models, "cpu", ([1], [2]), effort)
    found = eager.measure()
    assert found["requests"] == 3
    assert 0 < found["p50"] <= found["p90"] <= found["p99"]
    assert found["images_per_second"] == pytest.approx(2 / found["p50"], rel=1)


def test_networks_with_random_weights_have_finite_scores(tmp_path: Path) -> None:
    name = "MobileNetV3_small_x0_35"
    (config,) = write_random_models([name], ["Global.device=cpu"], tmp_path)
    predictor = Predictor(find_source(config))
    images = predictor.description.random_images(2, np.random.default_rng(0))
    scores = predictor.model.run(images)
    assert scores.shape == (2, 1000)
    assert np.isfinite(scores).all()
    assert not np.allclose(*scores), "the network depends on its images"


def test_random_networks_need_a_known_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--random: there is no architecture ResNet49; `ppcls models list`"):
        write_random_models(["ResNet18", "ResNet49"], [], tmp_path)


def test_make_candidates_combines_models_threads_and_batches(exported: dict[str, Path]) -> None:
    models = find_models(list(exported.values()), [])
    candidates = make_candidates(models, "cpu", ([1, 2, 1], [1, 4]), [], Effort())
    assert len(candidates) == 2 * 2 * 2
    assert [each.labels["run by"] for each in candidates[::4]] == ["Paddle Inference", "onnxruntime"]
    assert candidates[0].name == f"{NAME} by Paddle Inference, cpu, 1 thread, batch 1"
    assert candidates[3].labels == {
        "model": NAME,
        "image": "3x32x32",
        "run by": "Paddle Inference",
        "device": "cpu",
        "threads": 2,
        "batch size": 4,
    }
    with pytest.raises(UserError, match=f"two models have the name {NAME} and the engine onnxruntime"):
        find_models([exported["onnx"], exported["onnx"] / "inference.onnx"], [])


def one(batch_size: int, *rounds: float, **more: Any) -> Candidate[str]:
    found = {"p90": 0.02, "p99": 0.03, "cpu_cores": 1.0, "host_memory": 300, "requests": 500, **more}
    samples = [{**found, "p50": each, "images_per_second": batch_size / each} for each in rounds]
    return finished("m", f"batch {batch_size}", samples, labels={"batch size": batch_size})


def test_row_and_conclusions_have_latencies() -> None:
    lost = finished("m", "", [], "out of memory")
    measured = [one(1, 0.010, 0.012), one(8, 0.040, 0.041), lost]
    row = measured[0].row()
    assert row.metrics["p50"].values == (10.0, 12.0)
    assert list(row.metrics) == ["p50", "p90", "p99", "images/s", "CPU load", "host memory"]
    assert list(find_latencies(measured)) == ["Lowest latency: batch 1: 11 ms."]
    assert "Some rounds had only 7 requests" in list(find_latencies([one(1, 0.01, requests=7)]))[-1]
    assert list(find_latencies([lost])) == []


def test_command_results_can_be_compared(
    exported: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--batch-size", "2", "--threads", "1", "--rounds", "1", "--requests", "3", "--warm-up", "1"]
    where = ["-o", "Global.device=cpu", "--out", str(tmp_path / "out")]
    assert benchmark(["infer", "--model", str(exported["onnx"]), *arguments, *where]) == 0
    (row,) = read_results(tmp_path / "out").rows
    assert row.labels == {
        "model": NAME,
        "image": "3x32x32",
        "run by": "onnxruntime",
        "device": "cpu",
        "threads": 1,
        "batch size": 2,
    }
    assert row.metrics["p99"].median > 0
    capsys.readouterr()
    assert benchmark(["compare", str(tmp_path / "out"), str(tmp_path / "out" / "results.json")]) == 0
    output = capsys.readouterr().out
    assert "within noise" in output
    assert "warning" not in output


def test_command_interrupted_writes_results(
    exported: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inspected = {"device": "cpu", "cores": 1, "machine": {"Device": "CPU"}, "versions": {}}
    sample = one(2, 0.01).samples[0]
    answers = iter([inspected, sample])

    def interrupted(_: MeasuringProcess) -> dict[str, Any]:
        if (answer := next(answers, None)) is None:
            raise KeyboardInterrupt
        return answer

    monkeypatch.setattr(MeasuringProcess, "run", interrupted)
    arguments = ["--batch-size", "2", "--threads", "1", "--requests", "3", "--warm-up", "1"]
    where = ["-o", "Global.device=cpu", "--out", str(tmp_path / "out")]
    assert benchmark(["infer", "--model", str(exported["onnx"]), *arguments, *where]) == 130
    (row,) = read_results(tmp_path / "out").rows
    assert row.note == "rounds measured: 1; interrupted"


def test_command_that_measures_nothing_fails_with_the_reason(
    exported: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--batch-size", "2", "--threads", "1", "--rounds", "1", "--timeout", "0.001"]
    where = ["-o", "Global.device=cpu", "--out", str(tmp_path / "out")]
    assert benchmark(["infer", "--model", str(exported["onnx"]), *arguments, *where]) == 2
    printed = capsys.readouterr()
    assert "not finished after 0.001 s" in printed.out
    assert printed.err == "error: there are no measurements; the table above gives the reason for each row\n"
    (row,) = read_results(tmp_path / "out").rows
    assert row.note == "not finished after 0.001 s"


def test_command_missing_model_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark(["infer", "--model", str(tmp_path / "none")]) == 2
    assert "none: no such file or folder" in capsys.readouterr().err
