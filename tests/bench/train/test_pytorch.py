"""PyTorch's counterparts of our variants; real steps if PyTorch can be imported."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ppcls.bench.train import pytorch
from ppcls.bench.train.pytorch import PyTorchPython, find_pytorch
from ppcls.bench.train.variants import Variant
from ppcls.errors import UserError

VARIANT = Variant(2, "O2", "NHWC", "on", 1, 256, "synthetic")
HAS_TORCH = (
    importlib.util.find_spec("torch") is not None and importlib.util.find_spec("torchvision") is not None
)


def test_variants_are_ours_on_synthetic_data_with_autocast_for_o2() -> None:
    ours = [
        VARIANT,
        replace(VARIANT, source="loader"),
        replace(VARIANT, precision="O1"),
        replace(VARIANT, precision="O2-bfloat16"),
    ]
    both = list(PyTorchPython("python", "2.0", compiled=True).variants(ours))
    assert [(each.precision, each.framework) for each in both] == [
        ("O1", "PyTorch"),
        ("O1", "PyTorch, compiled"),
        ("O1-bfloat16", "PyTorch"),
        ("O1-bfloat16", "PyTorch, compiled"),
    ]
    assert {(each.processes, each.layout, each.batch_size, each.source) for each in both} == {
        (2, "NHWC", 256, "synthetic")
    }
    eager = list(PyTorchPython("python", "2.0", compiled=False).variants(ours))
    assert eager == both[::2]


@pytest.mark.parametrize(
    ("python", "message"),
    [
        ("/no/such/python", "cannot be started: No such file"),
        ("/bin/false", "cannot import torch and torchvision: no output; name a Python that has both"),
    ],
)
def test_find_pytorch_rejects_a_python_without_torch(python: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        find_pytorch(python, compiled=False)


@pytest.mark.skipif(not HAS_TORCH, reason="no torch and torchvision")
@pytest.mark.parametrize(
    ("model", "parameters"), [("ResNet50", 23_516_228), ("ResNet18", 1), ("NoSuchNet", 1)]
)
def test_worker_measures_or_reports_a_reason(tmp_path: Path, model: str, parameters: int) -> None:
    task = {
        "model": model,
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
    worker = Path(pytorch.__file__).with_name("pytorch_worker.py")
    subprocess.run([sys.executable, str(worker), str(tmp_path)], check=False)
    answer = json.loads((tmp_path / "rank_0.json").read_text())
    if model == "ResNet50":
        assert answer["found"]["images_per_second"] == pytest.approx(4 / answer["found"]["step"])
    else:
        assert "torchvision" in answer["reason"]
