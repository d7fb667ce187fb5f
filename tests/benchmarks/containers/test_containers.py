"""A real run of the containers benchmark, and data that it rejects."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmark_images import PHOTOS, write_images

from benchmarks.run import main as benchmark
from ppcls.bench.results.schema import read_results
from ppcls.cli.dataset import main as dataset_main

OPS = "[DecodeImage, {RandCropImage: {size: 32}}, RandFlipImage, NormalizeImage]"


def run(*options: str) -> int:
    return benchmark(["containers", "-c", str(PHOTOS), "--rounds", "1", "--seconds", "0.01", *options])


def test_containers_measures_every_source_both_ways(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run("-o", *write_images(tmp_path), "--out", str(out)) == 0
    rows = read_results(out).rows
    assert [tuple(row.labels.values()) for row in rows] == [
        (source, work, reader)
        for source in ("files", "webdataset", "tfrecord", "recordio", "lmdb")
        for work in ("bytes", "whole chain")
        for reader in ("DALI's reader", "ppcls")
    ]
    assert all(row.metrics["images/s"].low > 0 for row in rows)
    assert {row.metrics["of DALI's reader"].values for row in rows[::2]} == {(1.0,)}


def test_containers_data_set_in_a_container_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides, root = write_images(tmp_path), tmp_path / "out"
    assert dataset_main(["convert", "tfrecord", str(tmp_path / "list.txt"), "--out", str(root)]) == 0
    shard = next(root.glob("*.tfrecord"))
    dataset = f"{{name: TFRecordDataset, paths: ['{shard}'], transform_ops: {OPS}}}"
    assert run("-o", f"DataLoader.Train.dataset={dataset}", overrides[2], "Global.device=cpu") == 2
    assert "the bare pipeline supports only image files" in capsys.readouterr().err
