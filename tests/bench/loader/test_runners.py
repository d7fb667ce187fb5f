"""Each backend and each stage on a few tiny images, and the timer of batches."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmark_images import PHOTOS, write_images

from ppcls.bench.loader.bare import check_bare
from ppcls.bench.loader.runners import BatchTimer, Counts, load_batches, loader_candidate, make_timer
from ppcls.bench.loader.settings import STAGES, LoaderSetting, Stage, list_backends, list_variants
from ppcls.bench.loader.workload import LoaderWorkload, read_workload
from ppcls.bench.measure.usage import UsageMeter
from ppcls.data.index.files import FileIndex
from ppcls.engine.autotune.processes import MeasurementFailed
from ppcls.errors import UserError
from ppcls.recipe.load import load_config
from ppcls.runtime.start import Runtime, start

WITH_WORKERS = LoaderSetting("paddle.io", 2)
DALI = LoaderSetting("DALI CPU", 2)


@pytest.fixture(scope="module")
def overrides(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_images(tmp_path_factory.mktemp("images"))


def workload_of(overrides: list[str], *more: str, images: int = 100) -> LoaderWorkload:
    config = load_config(PHOTOS, [*overrides, *more])
    split = config.DataLoader.need_train()
    return read_workload(split, config.Arch, config.Global, Runtime(cores=2, threads=2), images)


def first(batches: Counts, count: int) -> list[int]:
    with closing(batches):
        return list(itertools.islice(batches, count))


def test_load_batches_every_backend_is_endless(overrides: list[str]) -> None:
    workload = workload_of(overrides)
    settings = [
        *list_backends((2,), (0,), on_gpu=False),
        *list_variants(DALI, random_crop=True),
        replace(DALI, mixup=True),
    ]
    for setting in settings:
        assert first(load_batches(setting, workload), 20) == [2] * 20, setting


@pytest.mark.parametrize("stage", ["disk", "hand-over"])
def test_load_batches_with_worker_processes_returns_full_batches(overrides: list[str], stage: Stage) -> None:
    setting = replace(WITH_WORKERS, stage=stage)
    assert first(load_batches(setting, workload_of(overrides)), 3) == [2] * 3


@pytest.mark.parametrize("stage", STAGES)
def test_load_batches_up_to_a_stage_is_endless(overrides: list[str], stage: Stage) -> None:
    for setting in (DALI, replace(DALI, dali={"decode": "whole"}), LoaderSetting("paddle.io", 0)):
        counts = first(load_batches(replace(setting, stage=stage), workload_of(overrides)), 8)
        assert counts == [2] * 8, setting


def test_load_batches_of_a_chain_without_randomness(overrides: list[str]) -> None:
    ops = "[DecodeImage, {ResizeImage: {size: 32}}, NormalizeImage]"
    workload = workload_of([*overrides[:3], overrides[4]], f"DataLoader.Train.dataset.transform_ops={ops}")
    with pytest.raises(UserError, match="the bare pipeline supports only the transforms"):
        check_bare(workload)
    for stage in STAGES:
        assert first(load_batches(replace(DALI, workers=1, stage=stage), workload), 1) == [2]
    assert first(load_batches(replace(WITH_WORKERS, stage="transform"), workload), 1) == [2]


def test_order_repeats_each_image_equally_often(overrides: list[str]) -> None:
    workload = workload_of(overrides, images=7)
    counts = Counter(workload.order().sampler.epoch(0, 0).tolist())
    assert counts.keys() == set(workload.positions.tolist()) <= set(range(36))
    assert len(counts) == 7
    assert len(set(counts.values())) == 1
    assert counts.total() >= 1 << 16


def test_workload_has_the_requested_images_and_their_mean_size(overrides: list[str]) -> None:
    workload = workload_of(overrides, images=10)
    sizes = [len(workload.index.read(position)) for position in workload.positions.tolist()]
    assert (workload.images, workload.batch_size, len(sizes)) == (10, 2, 10)
    assert workload.image_bytes == pytest.approx(np.mean(sizes))


def test_read_workload_too_few_images_is_rejected(overrides: list[str]) -> None:
    with pytest.raises(UserError, match="expected at least one batch of 2 images, got 1"):
        workload_of(overrides, images=1)


def test_load_batches_broken_image_is_named(tmp_path: Path) -> None:
    overrides = write_images(tmp_path)
    (tmp_path / "7.jpg").write_bytes(b"no image")
    workload = workload_of(overrides)
    for setting in (DALI, LoaderSetting("paddle.io", 0)):
        with pytest.raises(UserError, match=r"7\.jpg"):
            first(load_batches(setting, workload), 20)
    bare = LoaderSetting("bare DALI", 1)
    timer = make_timer(workload, 9.0)
    with pytest.raises(MeasurementFailed) as raised:
        loader_candidate(bare, workload, timer).measure()
    assert "\n" not in raised.value.reason
    assert len(raised.value.reason) <= 300, "a DALI error is a page long"


def test_load_batches_multi_label_images(overrides: list[str]) -> None:
    workload = workload_of(overrides)
    assert isinstance(workload.index, FileIndex)
    labels = np.zeros([36, 8], np.float32)
    multi_label = replace(workload, index=replace(workload.index, labels=labels))
    for setting in (LoaderSetting("bare DALI", 1), DALI):
        assert first(load_batches(setting, multi_label), 1) == [2]


class SimulatedClock(UsageMeter):
    """A clock and a meter of CPU time that only advance with batches."""

    def __init__(self) -> None:
        self.now = self.started = 0.0

    def start(self) -> None:
        self.started = self.now

    def stop(self) -> dict[str, float]:
        return {"cpu_seconds": self.now - self.started}

    def timer(self, seconds: float, finish: float = 0.0) -> BatchTimer:
        def wait() -> None:
            self.now += finish

        return BatchTimer(seconds, self, wait, lambda: self.now)

    def batches(self, *seconds: float) -> Iterator[int]:
        for each in seconds:
            self.now += each
            yield 10


def test_timer_skips_the_first_batches() -> None:
    clock = SimulatedClock()
    sample = clock.timer(2.0).time(clock.batches(100.0, 100.0, *[0.5] * 100), skipped=2)
    assert sample == {"images_per_second": 20.0, "cpu_per_image": 2.0 / 40}


def test_timer_counts_a_minimum_of_batches() -> None:
    clock = SimulatedClock()
    sample = clock.timer(1.0).time(clock.batches(*[5.0] * 9), skipped=1)
    assert sample == {"images_per_second": 2.0, "cpu_per_image": 20.0 / 40}


def test_timer_waits_for_the_device_before_and_after() -> None:
    clock = SimulatedClock()
    sample = clock.timer(1.0, finish=1.0).time(clock.batches(*[1.0] * 9), skipped=1)
    assert sample["images_per_second"] == 40 / 5.0


def test_timer_stops_where_the_batches_end() -> None:
    clock = SimulatedClock()
    assert clock.timer(100.0).time(clock.batches(1.0, 1.0, 1.0), skipped=1)["images_per_second"] == 10.0
    with pytest.raises(ValueError, match="no batches after the first 3"):
        clock.timer(1.0).time(clock.batches(1.0, 1.0, 1.0), skipped=3)


@pytest.mark.gpu
def test_every_backend_and_stage_runs_on_a_gpu(overrides: list[str]) -> None:
    config = load_config(PHOTOS, [*overrides, "Global.device=gpu"])
    split = config.DataLoader.need_train()
    workload = read_workload(split, config.Arch, config.Global, start(config.Global), 100)
    gpu = LoaderSetting("DALI GPU", 2)
    settings = [*list_backends((2,), (0,), on_gpu=True), *list_variants(gpu, random_crop=True)]
    timer = make_timer(workload, 0.1)
    for setting in settings:
        sample = loader_candidate(setting, workload, timer).measure()
        assert sample["images_per_second"] > 0, setting
        assert sample["gpu_memory"] > 0
    for stage, dali in itertools.product(STAGES, ({}, {"decode": "whole"}, {"decode_on": "cpu"})):
        assert first(load_batches(replace(gpu, dali=dali, stage=stage), workload), 8) == [2] * 8
