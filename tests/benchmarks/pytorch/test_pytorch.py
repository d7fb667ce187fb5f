"""PyTorch's counterparts of our variants; real steps if PyTorch can be imported."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from paths import ROOT

from benchmarks.pytorch import candidates as pytorch
from benchmarks.pytorch.candidates import find_pytorch, pytorch_candidates, pytorch_variants
from ppcls.bench.train.tasks import TrainTask
from ppcls.bench.train.variants import Inspection, Variant
from ppcls.engine.autotune.processes import MeasurementFailed, MeasuringProcess
from ppcls.errors import UserError
from ppcls.recipe.load import load_config
from ppcls.zoo import ZOO

VARIANT = Variant(2, "O2", "NHWC", 256, "synthetic")
HAS_TORCH = (
    importlib.util.find_spec("torch") is not None and importlib.util.find_spec("torchvision") is not None
)


def test_pytorch_variants_match_ppcls_ones_with_autocast_for_o2() -> None:
    ours = [
        VARIANT,
        replace(VARIANT, source="loader"),
        replace(VARIANT, precision="O1"),
        replace(VARIANT, precision="O2-bfloat16"),
    ]
    both = list(pytorch_variants(ours, compiled=True))
    assert [(each.precision, each.framework) for each in both] == [
        ("O1", "PyTorch"),
        ("O1", "PyTorch, compiled"),
        ("O1-bfloat16", "PyTorch"),
        ("O1-bfloat16", "PyTorch, compiled"),
    ]
    assert {(each.processes, each.layout, each.batch_size, each.source) for each in both} == {
        (2, "NHWC", 256, "synthetic")
    }
    eager = list(pytorch_variants(ours, compiled=False))
    assert eager == both[::2]


@pytest.mark.parametrize(
    ("python", "message"),
    [
        ("/no/such/python", "cannot be started: No such file"),
        ("/bin/false", "exit code 1: no output; expected a Python interpreter with torch and torchvision"),
    ],
)
def test_find_pytorch_rejects_a_python_without_torch(python: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        find_pytorch(python)


@pytest.mark.skipif(not HAS_TORCH, reason="no torch and torchvision")
def test_find_pytorch_returns_the_versions() -> None:
    assert " and torchvision " in find_pytorch(sys.executable)


@pytest.mark.skipif(not HAS_TORCH, reason="no torch and torchvision")
@pytest.mark.parametrize(
    ("model", "parameters"), [("ResNet50", 23_516_228), ("ResNet18", 1), ("NoSuchNet", 1)]
)
def test_worker_measures_or_reports_a_reason(tmp_path: Path, model: str, parameters: int) -> None:
    task = {
        "model": model,
        "timm": None,
        "optimizer": "Momentum",
        "classes": 4,
        "parameters": parameters,
        "size": [32, 32],
        "batch_size": 2,
        "processes": 1,
        "device": "cpu",
        "threads": 1,
        "format": "bfloat16",
        "layout": "NHWC",
        "cudnn_search": False,
        "accumulate": 2,
        "compile": False,
        "warm_up": 1,
        "settle": 0.0,
        "steps": 2,
        "seconds": 1.0,
    }
    (tmp_path / "task.json").write_text(json.dumps(task))
    worker = Path(pytorch.__file__).with_name("torch_worker.py")
    subprocess.run([sys.executable, str(worker), str(tmp_path)], check=False)
    answer = json.loads((tmp_path / "rank_0.json").read_text())
    if model == "ResNet50":
        assert answer["found"]["images_per_second"] == pytest.approx(4 / answer["found"]["step"])
    else:
        assert "torchvision" in answer["reason"]


def test_candidates_run_the_worker_with_the_variants_task(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = list[MeasuringProcess]()

    def run(process: MeasuringProcess) -> dict[str, float]:
        processes.append(process)
        return {"images_per_second": 1.0}

    monkeypatch.setattr(MeasuringProcess, "run", run)
    config = load_config(ROOT / "configs" / "ResNet50.yaml")
    inspection = Inspection("gpu", 16, 12, 2, "NVIDIA H200", (9, 0), rgb_parameters=25_557_032)
    task = TrainTask(config="ResNet50.yaml", warm_up=3, counted=7, seconds=2.0, timeout=60.0)
    variants = list(pytorch_variants([VARIANT], compiled=True))
    variants.append(replace(VARIANT, processes=4, framework="PyTorch"))
    eager, compiled, impossible = pytorch_candidates("python3", variants, task, inspection, config)
    eager.measure()
    compiled.measure()
    with pytest.raises(MeasurementFailed, match="4 processes need 4 GPUs, but Paddle finds 2"):
        impossible.measure()
    first, second = processes
    assert first.command[:3] == ["python3", "-m", "torch.distributed.run"]
    assert first.environment == {}
    assert first.timeout == 60.0
    assert first.task == {
        "model": "ResNet50",
        "timm": None,
        "optimizer": "Momentum",
        "classes": 1000,
        "parameters": 25_557_032,
        "size": (224, 224),
        "batch_size": 256,
        "processes": 2,
        "device": "gpu",
        "threads": 8,
        "format": "float16",
        "layout": "NHWC",
        "cudnn_search": True,
        "accumulate": 1,
        "compile": False,
        "warm_up": 3,
        "settle": 2.0,
        "steps": 7,
        "seconds": 2.0,
    }
    assert second.task == {**first.task, "compile": True}
    eager, _, _ = pytorch_candidates("python3", variants, task, inspection, config, timm=True)
    eager.measure()
    assert processes[-1].task == {**first.task, "timm": "resnet50"}


def test_names_of_timm_belong_to_architectures() -> None:
    assert set(pytorch.TIMM_MODELS) <= set(ZOO)
