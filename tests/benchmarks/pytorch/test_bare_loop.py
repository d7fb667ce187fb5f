"""Real steps of the loop of Paddle's documentation, measured in this process and by the command."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from small_config import images, make_config, make_yaml
from small_net import build_net

from benchmarks.pytorch.bare_loop import bare_workload
from benchmarks.run import main as benchmark
from ppcls.bench.results.schema import read_results
from ppcls.bench.train.tasks import TrainTask
from ppcls.bench.train.worker import measure_workload
from ppcls.errors import UserError
from ppcls.recipe.schema import Config
from ppcls.registry import ARCHITECTURES
from ppcls.runtime.start import Runtime

__all__ = ["images", "make_config", "make_yaml"]
CPU = Runtime(cores=1, threads=1)
MakeConfig = Callable[..., Config]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARCHITECTURES._entries, "Small", build_net)


def measure(config: Config) -> dict[str, Any]:
    task = TrainTask(config="", source="bare", warm_up=1, counted=3)
    return measure_workload(task, CPU, nullcontext, lambda: bare_workload(config, CPU))


def test_measure_bare_loop_returns_speed_without_phases(make_config: MakeConfig) -> None:
    found = measure(make_config(Arch__name="Small"))
    assert found["images_per_second"] > 0
    assert "phases" not in found


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"Global__update_freq": 2}, "the bare loop does not support gradient accumulation"),
        ({"AMP__dtype": "bfloat16"}, "the bare loop does not support AMP on a CPU"),
    ],
)
def test_measure_bare_loop_rejects_unsupported_configs(
    make_config: MakeConfig, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        measure(make_config(Arch__name="Small", **changes))


def test_measure_bare_loop_rejects_several_labels_per_image(make_config: MakeConfig, images: Path) -> None:
    dataset = {
        "name": "MultiLabelDataset",
        "image_root": str(images),
        "cls_label_path": "no list is read",
        "transform_ops": ["DecodeImage", {"RandCropImage": {"size": 16}}, "NormalizeImage"],
    }
    config = make_config(
        Arch__name="Small",
        DataLoader__Train__dataset=dataset,
        Loss={"Train": [{"MultiLabelLoss": {}}], "Eval": [{"CELoss": {}}]},
        Metric={"Eval": [{"TopkAcc": {"topk": 1}}]},
        DataLoader__Eval=None,
        Global__eval_during_train=False,
    )
    with pytest.raises(UserError, match="only images with one label"):
        measure(config)


@pytest.mark.slow
def test_command_measures_ppcls_beside_the_bare_loop(make_yaml: Callable[..., Path], tmp_path: Path) -> None:
    config = make_yaml(Arch__name="PPLCNet_x0_25")
    brief = [
        "--rounds",
        "1",
        "--steps",
        "2",
        "--warm-up",
        "1",
        "--phase-steps",
        "0",
        "--precision",
        "float32",
    ]
    options = ["--torch", "none", "--source", "synthetic", "bare", "--out", str(tmp_path / "out")]
    assert benchmark(["pytorch", "-c", str(config), *brief, *options]) == 0
    rows = read_results(tmp_path / "out").rows
    assert [row.labels["source"] for row in rows] == ["synthetic", "bare"]
    assert all(row.metrics["images/s"].median > 0 for row in rows)
    assert list((tmp_path / "out").glob("*.png")), "the results have charts"
