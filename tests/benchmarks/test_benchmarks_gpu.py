"""The whole commands on GPUs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from small_classifier import config_tree, write_config, write_names, write_weights
from small_config import images, make_config, make_yaml

from benchmarks.run import main as benchmark
from ppcls.bench.results.schema import read_results
from ppcls.cli import export as export_cli

__all__ = ["images", "make_config", "make_yaml"]
pytestmark = pytest.mark.gpu


def test_bare_loop_measures_each_precision(make_yaml: Callable[..., Path], tmp_path: Path) -> None:
    config = make_yaml(Global__device="gpu", Arch__name="PPLCNet_x0_25")
    brief = ["--rounds", "1", "--steps", "4", "--warm-up", "4", "--out", str(tmp_path / "out")]
    options = ["--torch", "none", "--source", "bare", "--precision", "float32", "O1", "O2"]
    assert benchmark(["pytorch", "-c", str(config), *brief, *options]) == 0
    rows = read_results(tmp_path / "out").rows
    assert len(rows) == 3
    assert all(row.metrics["images/s"].median > 0 for row in rows)


def test_infer_measures_each_batch_size(tmp_path: Path) -> None:
    tree = config_tree(write_weights(tmp_path / "model.safetensors"), write_names(tmp_path / "names.txt"))
    model = tmp_path / "inference"
    where = ["-o", f"Global.save_inference_dir={model}"]
    assert export_cli.export(["-c", str(write_config(tmp_path / "config.yaml", tree)), *where]) == 0
    out = ["--requests", "20", "--rounds", "2", "-o", "Global.device=gpu", "--out", str(tmp_path / "out")]
    assert benchmark(["infer", "--model", str(model), "--batch-size", "1", "8", *out]) == 0
    rows = read_results(tmp_path / "out").rows
    assert [row.labels["device"] for row in rows] == ["gpu", "gpu"]
    assert all(row.metrics["p50"].median > 0 for row in rows)
