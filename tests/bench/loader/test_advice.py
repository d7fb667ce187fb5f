"""Conclusions from measured loaders: bottleneck and setting."""

from __future__ import annotations

import pytest
from benchmark_images import PHOTOS

from ppcls.bench.loader.advice import (
    advise,
    cheapest_good,
    config_values,
    exceeds_noise,
    find_bottleneck,
    present_setting,
)
from ppcls.bench.loader.settings import STAGES, LoaderSetting, Stage
from ppcls.bench.loader.workload import LoaderWorkload
from ppcls.bench.results.schema import Quantity
from ppcls.recipe.load import load_config
from ppcls.runtime.start import Runtime

GPU, CPU = LoaderSetting("DALI GPU", 4), LoaderSetting("DALI CPU", 4)


def rates(slow: Stage) -> dict[Stage, float]:
    """Returns images per second up to each stage: each takes 0.1 ms per image, the slow one 0.7 ms."""
    seconds, found = 0.0, dict[Stage, float]()
    for stage in STAGES:
        seconds += 0.0007 if stage == slow else 0.0001
        found[stage] = 1 / seconds
    return found


@pytest.mark.parametrize("slow", STAGES)
def test_find_bottleneck_is_the_stage_that_adds_most_time(slow: Stage) -> None:
    text = find_bottleneck(rates(slow), CPU)
    assert text.startswith(
        f"The bottleneck is {slow}: 70% of the time per image (images/s up to each stage: "
    )
    assert "hand-over 1,000). To speed up loading, " in text


@pytest.mark.parametrize(
    ("slow", "load", "bottleneck", "remedy"),
    [
        ("decode", 0.97, "the GPU, which is busy 97% of the time with decode", "decode on the CPU"),
        ("transform", 0.9, "the GPU, which is busy 90% of the time with transform", "decode on the CPU"),
        ("decode", 0.5, "decode on the GPU", "use smaller images"),
        ("decode", None, "decode on the GPU", "use smaller images"),
        ("disk", 0.97, "disk", "use a faster or nearer drive"),
        ("hand-over", 0.97, "hand-over", "use a float16 NormalizeImage"),
    ],
)
def test_find_bottleneck_is_the_gpu_only_if_busy_with_the_slowest_stage(
    slow: Stage, load: float | None, bottleneck: str, remedy: str
) -> None:
    text = find_bottleneck(rates(slow), GPU, load)
    assert text.startswith(f"The bottleneck is {bottleneck}: ")
    assert f"To speed up loading, {remedy}" in text


def test_find_bottleneck_ignores_a_gpu_that_only_trains() -> None:
    assert find_bottleneck(rates("decode"), CPU, gpu_load=1.0).startswith("The bottleneck is decode: ")


def test_find_bottleneck_noise_adds_no_time() -> None:
    noisy: dict[Stage, float] = {"disk": 100.0, "decode": 110.0, "transform": 90.0, "hand-over": 95.0}
    assert find_bottleneck(noisy, CPU).startswith("The bottleneck is disk: ")


def test_cheapest_good_prefers_cheap_among_the_fastest() -> None:
    speeds = {1: 50.0, 2: 98.0, 4: 100.0, 8: 99.0}
    assert cheapest_good(speeds, [1, 2, 4, 8]) == 2
    assert cheapest_good(speeds, [8, 4, 2, 1]) == 8
    assert cheapest_good({1: speeds[1]}, [1]) == 1


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ((1.2, 1.25, 1.22), True),
        ((1.2, 0.99, 1.4), False),
        ((1.01, 1.3, 1.05), False),
        ((1.0, 1.0, 1.0), False),
        ((0.8, 0.7, 0.75), False),
        ((1.1,), True),
    ],
)
def test_exceeds_noise_needs_a_gain_in_every_round(ratios: tuple[float, ...], expected: bool) -> None:
    assert exceeds_noise(Quantity(ratios, "")) == expected


PRESENT = LoaderSetting("DALI CPU", 4, 4)
BEST = LoaderSetting("DALI CPU", 2, 2, "whole", {"decode": "whole"})


def present_of(*overrides: str) -> LoaderSetting:
    config = load_config(PHOTOS, overrides)
    split = config.DataLoader.Train
    assert split is not None
    workload = LoaderWorkload(split, config.Arch, config.Global, Runtime(cores=6), None, 0)  # type: ignore[arg-type]
    return present_setting(workload)


def test_present_setting_resolves_auto() -> None:
    assert present_of() == LoaderSetting("DALI CPU", 6, 12)
    assert present_of("Global.use_dali=False") == LoaderSetting("paddle.io", 4)


def test_config_values_are_keys_of_a_config() -> None:
    paddle = LoaderSetting("paddle.io", 3)
    assert config_values(BEST) == {
        "Global.use_dali": True,
        "DataLoader.Train.loader.dali.num_threads": 2,
        "DataLoader.Train.loader.dali.prefetch_queue_depth": 2,
        "DataLoader.Train.loader.dali.decode": "whole",
    }
    assert config_values(paddle) == {
        "Global.use_dali": False,
        "DataLoader.Train.loader.num_workers": 3,
    }
    for setting in (BEST, paddle):
        load_config(PHOTOS, [f"{name}={value}" for name, value in config_values(setting).items()])


@pytest.mark.parametrize(
    ("ratios", "setting", "text"),
    [
        (None, PRESENT, "Keep the present setting (DALI CPU, 4 threads, prefetch 4): no other"),
        ((0.27,), PRESENT, "is slower: 0.27 times its images/s."),
        ((0.25, 0.3), PRESENT, "is slower: 0.28 times (0.25 to 0.30) its images/s."),
        ((0.9, 1.1), PRESENT, "has 1.0 times (0.9 to 1.1) its images/s; it is not faster."),
        ((0.2, 0.27, 1.1), PRESENT, "has 0.3 times (0.2 to 1.1) its images/s; it is not faster."),
        (
            (0.9, 1.2, 1.4),
            PRESENT,
            "has 1.2 times (0.9 to 1.4) its images/s; the rounds do not ",
        ),
        (
            (1.5, 1.6),
            BEST,
            "Use DALI CPU, 2 threads, prefetch 2, decoder whole: 1.55 times (1.50 to 1.60) the ",
        ),
    ],
)
def test_advise_changes_the_setting_only_beyond_noise(
    ratios: tuple[float, ...] | None, setting: LoaderSetting, text: str
) -> None:
    chosen, sentence = advise(BEST, PRESENT, None if ratios is None else Quantity(ratios, ""))
    assert chosen == setting
    assert text in sentence
    overrides = "-o Global.use_dali=True DataLoader.Train.loader.dali.num_threads=2"
    assert (overrides in sentence) == (setting == BEST)


@pytest.mark.parametrize("setting", [CPU, GPU, LoaderSetting("paddle.io", 2)])
def test_dali_is_recommended_only_to_paddle_io(setting: LoaderSetting) -> None:
    text = find_bottleneck(rates("hand-over"), setting)
    assert "a float16 NormalizeImage" in text
    assert ("use DALI" in text) == (setting.backend == "paddle.io")
