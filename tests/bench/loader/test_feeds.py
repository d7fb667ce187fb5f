"""Each contender and each stage at work, on a few tiny images."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from paths import ROOT

from ppcls.bench.loader.bare import bare_chains
from ppcls.bench.loader.bottleneck import STAGES, Stage
from ppcls.bench.loader.contender import BACKENDS, VARIED, Contender, Wanted, line_up
from ppcls.bench.loader.feeds import opened
from ppcls.bench.loader.rounds import Stopwatch
from ppcls.bench.loader.stages import opened_stage
from ppcls.bench.loader.subject import CHAINS, Again, Subject, read_subject
from ppcls.bench.measure.usage import Meter
from ppcls.config.load import load_config
from ppcls.data.index.files import FileIndex
from ppcls.errors import UserError
from ppcls.runtime.start import Runtime, start

PHOTOS = ROOT / "configs" / "ResNet50_photos.yaml"
WANTED = Wanted(BACKENDS, CHAINS, VARIED, threads=(2,), workers=(0,), prefetch=(3,))
BY_WORKERS = Contender("paddle.io", "config", 2)


def subject_of(small: list[str], *more: str, images: int = 100) -> Subject:
    return read_subject(load_config(PHOTOS, [*small, *more]), Runtime(cores=2, threads=2), images)


def test_every_contender_gives_batches_without_end(small: list[str]) -> None:
    subject = subject_of(small)
    tried = line_up(WANTED, on_gpu=False, windowed=True, bare=bare_chains(subject))
    assert {each.backend for each in tried} == set(BACKENDS) - {"DALI GPU"}
    for contender in tried:
        with opened(contender, subject) as batches:
            assert list(itertools.islice(batches, 20)) == [2] * 20, contender


@pytest.mark.parametrize("chain", ["read", "config"])
def test_workers_give_batches(small: list[str], chain: str) -> None:
    with opened(replace(BY_WORKERS, chain=chain), subject_of(small)) as batches:
        assert list(itertools.islice(batches, 3)) == [2] * 3


def test_what_is_cold_ends_where_the_images_do(small: list[str]) -> None:
    subject = subject_of(small, images=10)
    tried = line_up(WANTED, on_gpu=False, windowed=False, bare=bare_chains(subject))
    for contender in tried:
        with opened(replace(contender, cold=True), subject) as batches:
            assert list(batches) == [2] * 5, contender


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_gives_batches_without_end(small: list[str], stage: Stage) -> None:
    contenders = [
        Contender("DALI CPU", "config", 2),
        Contender("DALI CPU", "config", 2, dali={"decode": "whole"}),
        Contender("paddle.io", "config", 0),
    ]
    for contender in contenders:
        with opened_stage(stage, contender, subject_of(small)) as batches:
            assert list(itertools.islice(batches, 8)) == [2] * 8, contender


def test_a_chain_without_anything_random(small: list[str]) -> None:
    ops = "[DecodeImage, {ResizeImage: {size: 32}}, NormalizeImage]"
    subject = subject_of(small[:3], f"DataLoader.Train.dataset.transform_ops={ops}")
    assert bare_chains(subject) == ("read", "decode", "crop")
    for stage in STAGES:
        with opened_stage(stage, Contender("DALI CPU", "config", 1), subject) as batches:
            assert next(batches) == 2
    with opened_stage("transform", BY_WORKERS, subject) as batches:
        assert next(batches) == 2


def test_some_images_each_as_often_as_the_others() -> None:
    again = Again(size=50, images=7, times=3)
    chosen = set(again.chosen(1).tolist())
    assert len(chosen) == 7
    assert chosen <= set(range(50))
    epoch = again.epoch(1, 0)
    assert len(epoch) == len(again) == 21
    assert sorted(epoch.tolist()) == sorted(3 * list(chosen))
    assert not np.array_equal(epoch, again.epoch(1, 1))


def test_what_is_measured(small: list[str]) -> None:
    subject = subject_of(small, images=10)
    assert (subject.images, subject.batch_size, len(subject.files)) == (10, 2, 10)
    sizes = [path.stat().st_size for path in subject.files]
    assert subject.image_bytes == pytest.approx(np.mean(sizes))
    resize, crop = subject.cut()
    assert (resize.resize_short, crop.size) == (37, (32, 32))


def test_too_few_images(small: list[str]) -> None:
    with pytest.raises(UserError, match="1 images are fewer than one batch of 2"):
        subject_of(small, images=1)


def test_a_broken_image_is_named(small: list[str], tmp_path: Path) -> None:
    (tmp_path / "7.jpg").write_bytes(b"no image")
    for contender in (Contender("DALI CPU", "config", 1), Contender("paddle.io", "config", 0)):
        with pytest.raises(UserError, match=r"7\.jpg"), opened(contender, subject_of(small)) as batches:
            list(itertools.islice(batches, 20))


def test_images_of_several_labels(small: list[str]) -> None:
    subject = subject_of(small)
    assert isinstance(subject.index, FileIndex)
    labels = np.zeros([36, 8], np.float32)
    several = replace(subject, index=replace(subject.index, labels=labels))
    for contender in (Contender("bare DALI", "config", 1), Contender("DALI CPU", "config", 1)):
        with opened(contender, several) as batches:
            assert next(batches) == 2


@pytest.mark.gpu
def test_everything_on_a_gpu(small: list[str]) -> None:
    config = load_config(PHOTOS, [*small, "Global.device=gpu"])
    subject = read_subject(config, start(config.Global), 100)
    tried = line_up(WANTED, on_gpu=True, windowed=True, bare=bare_chains(subject))
    assert {each.backend for each in tried} == set(BACKENDS)
    watch = Stopwatch(0.1, 4, Meter(subject.card), subject.runtime.synchronize)
    for contender in tried:
        with opened(contender, subject) as batches:
            found = watch.time(batches, 2)
        assert found.images >= 8, contender
        assert found.usage.gpu_memory is not None
    for stage, dali in itertools.product(STAGES, ({}, {"decode": "whole"}, {"decode_on": "cpu"})):
        with opened_stage(stage, Contender("DALI GPU", "config", 2, dali=dali), subject) as batches:
            assert list(itertools.islice(batches, 8)) == [2] * 8
