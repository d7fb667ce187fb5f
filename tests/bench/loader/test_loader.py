"""One real run of the loader benchmark in short, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from paths import ROOT

from ppcls.bench.loader.quick import benchmark_loaders
from ppcls.config.load import load_config
from ppcls.errors import UserError
from ppcls.runtime.start import Runtime

PHOTOS = ROOT / "configs" / "ResNet50_photos.yaml"


def test_a_real_run_times_every_contender(small: list[str]) -> None:
    config = load_config(PHOTOS, small)
    speeds = benchmark_loaders(config, Runtime(cores=2, threads=2), [0], rounds=1, mixup=True).speeds
    assert [each.name for each in speeds] == [
        "bare DALI pipeline",
        "ppcls, DALI",
        "ppcls, DALI + Mixup",
        "ppcls, paddle.io, 0 workers",
    ]
    assert all(rate > 0 for each in speeds for rate in each.rates)


def test_a_bad_image_is_no_page_of_dalis(small: list[str], tmp_path: Path) -> None:
    (tmp_path / "7.jpg").write_bytes(b"no image")
    told = r"^bare DALI pipeline: DALI failed: .{,99}; if that is about an image, tools/dataset\.py check"
    with pytest.raises(UserError, match=told):
        benchmark_loaders(load_config(PHOTOS, small), Runtime(), [0], rounds=1)


def test_too_few_batches_are_refused(small: list[str]) -> None:
    config = load_config(PHOTOS, [*small, "DataLoader.Train.sampler.batch_size=8"])
    with pytest.raises(UserError, match=r"4 batches of 8 are too few to time; expected more than 16"):
        benchmark_loaders(config, Runtime(), [0], rounds=1)


def test_another_chain_is_refused(small: list[str]) -> None:
    chain = "DataLoader.Train.dataset.transform_ops=[DecodeImage, {ResizeImage: {size: 32}}, NormalizeImage]"
    with pytest.raises(UserError, match="another chain"):
        benchmark_loaders(load_config(PHOTOS, [*small[:3], chain]), Runtime(), [0], rounds=1)
