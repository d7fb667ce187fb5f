"""One real run of the containers' benchmark, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from paths import ROOT

from ppcls.bench.loader.containers import benchmark_containers
from ppcls.cli import benchmark as benchmark_cli
from ppcls.config.load import load_config
from ppcls.errors import UserError
from ppcls.runtime.start import Runtime

PHOTOS = ROOT / "configs" / "ResNet50_photos.yaml"


def test_a_real_run_times_every_source_both_ways(small: list[str]) -> None:
    found = list(benchmark_containers(load_config(PHOTOS, small), Runtime(cores=2, threads=2), rounds=1))
    assert [(each.source, each.what) for each in found] == [
        (source, what)
        for source in ("files", "webdataset", "tfrecord", "recordio", "lmdb")
        for what in ("bytes", "whole chain")
    ]
    assert all(rate > 0 for each in found for speed in (each.dali, each.ours) for rate in speed.rates)
    heading, dali, ours = found[0].describe().split("\n")
    assert heading == "files, bytes"
    assert dali.startswith("  DALI's reader  ")
    assert ours.startswith("  ppcls  ")


def test_images_that_are_in_a_container_already_are_refused(
    small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "out"
    from ppcls.cli.dataset import main

    assert main(["convert", "tfrecord", str(tmp_path / "list.txt"), "--out", str(root)]) == 0
    shard = next(root.glob("*.tfrecord"))
    ops = "[DecodeImage, {RandCropImage: {size: 32}}, RandFlipImage, NormalizeImage]"
    dataset = f"{{name: TFRecordDataset, paths: ['{shard}'], transform_ops: {ops}}}"
    overrides = [f"DataLoader.Train.dataset={dataset}", small[2], "Global.device=cpu"]
    assert benchmark_cli.main(["containers", "-c", str(PHOTOS), "-o", *overrides]) == 1
    assert "the bare pipeline is written for image files" in capsys.readouterr().err


def test_too_few_batches_are_refused(small: list[str]) -> None:
    config = load_config(PHOTOS, [*small, "DataLoader.Train.sampler.batch_size=8"])
    with pytest.raises(UserError, match="too few to time"):
        next(benchmark_containers(config, Runtime(), rounds=1))
