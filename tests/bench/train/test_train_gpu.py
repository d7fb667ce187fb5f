"""The whole commands on GPUs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import paddle
import pytest
from small_config import images, make_config, make_yaml

from ppcls.bench.results.schema import ResultRow, read_results
from ppcls.cli import benchmark

__all__ = ["images", "make_config", "make_yaml"]
pytestmark = pytest.mark.gpu
BRIEF = ("--rounds", "1", "--steps", "4", "--warm-up", "4", "--phase-steps", "4")


def measured(config: Path, folder: Path, *arguments: str) -> list[ResultRow]:
    out = folder / "out"
    assert benchmark.main(["train", "-c", str(config), *BRIEF, *arguments, "--out", str(out)]) == 0
    return list(read_results(out).rows)


@pytest.mark.parametrize("source", ["synthetic", "loader"])
def test_train_measures_each_precision_and_its_memory(
    make_yaml: Callable[..., Path], tmp_path: Path, source: str
) -> None:
    config = make_yaml(Global__device="gpu", Arch__name="PPLCNet_x0_25")
    rows = measured(config, tmp_path, *("--precision", "float32", "TF32", "O1", "O2"), *("--source", source))
    whole = [row for row in rows if "of" not in row.labels]
    lost = {row.note for row in whole if not row.metrics}
    if paddle.device.cuda.get_device_capability()[0] >= 8:
        assert lost == set()
        assert len(whole) == 4
    for row in whole:
        if row.metrics:
            assert row.metrics["GPU memory"].median >= row.metrics["GPU memory in tensors"].median > 0
            assert 0 <= row.metrics["data wait"].median <= 100
            mfu = row.metrics.get("MFU")
            assert mfu is None or 0 < mfu.median < 100
    split = [row for row in rows if "of" in row.labels]
    assert split
    assert all(row.metrics["forward"].median > 0 for row in split)


def test_train_out_of_memory_is_a_row_with_a_reason(make_yaml: Callable[..., Path], tmp_path: Path) -> None:
    # The workspaces of cuDNN and of a CUDA graph need up to 2 GB for a batch of 8. A batch of 60,000 needs
    # 3 GB for the images, and 6 GB for each of the first activations. Kernels reject more than 65,535 images.
    share = (12 << 30) / paddle.device.cuda.get_device_properties().total_memory
    config = make_yaml(
        Global__device="gpu", Global__image_shape=[3, 64, 64], Global__gpu_memory_fraction=min(share, 0.9)
    )
    rows = measured(config, tmp_path, "--batch-size", "8", "60000", "--source", "synthetic")
    small, large = (next(row for row in rows if row.labels["batch size"] == size) for size in (8, 60000))
    assert small.metrics["images/s"].median > 0
    assert large.metrics == {}
    assert "out of GPU memory" in large.note


def test_train_two_gpus_exchange_gradients(make_yaml: Callable[..., Path], tmp_path: Path) -> None:
    if paddle.device.cuda.device_count() < 2:
        pytest.skip("one GPU")
    config = make_yaml(Global__device="gpu", Arch__name="PPLCNet_x0_25")
    rows = measured(config, tmp_path, "--processes", "1", "2", "3000", "--source", "synthetic", "loader")
    for row in rows:
        if row.labels["processes"] == 2 and "of" not in row.labels:
            assert 0 < row.metrics["efficiency"].median < 300
        if row.labels["processes"] == 2 and "of" in row.labels:
            assert row.metrics["all-reduce hidden"].median >= 0
        if row.labels["processes"] == 3000:
            assert row.note.startswith("3000 processes need 3000 GPUs, but Paddle finds ")
