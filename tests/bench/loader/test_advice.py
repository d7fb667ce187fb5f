"""Conclusions from measured loaders: bottleneck and setting."""

from __future__ import annotations

import pytest
from benchmark_images import PHOTOS

from ppcls.bench.loader.advice import (
    Bottleneck,
    Choice,
    advise,
    cheapest_good,
    choose,
    config_values,
    exceeds_noise,
    find_bottleneck,
    present_setting,
)
from ppcls.bench.loader.settings import STAGES, LoaderSetting, Stage
from ppcls.bench.loader.workload import LoaderWorkload
from ppcls.bench.measure.runner import Measurements
from ppcls.bench.results.schema import Quantity
from ppcls.config.load import load_config
from ppcls.runtime.start import Runtime

FAST: dict[Stage, float] = dict.fromkeys(STAGES, 9000.0)


@pytest.mark.parametrize("slow", STAGES)
def test_find_bottleneck_is_the_slowest_stage(slow: Stage) -> None:
    limit = find_bottleneck({**FAST, slow: 1000.0}, 900.0)
    assert limit.bottleneck == slow
    assert limit.text.startswith(f"The bottleneck is {slow}: 1,000 images/s alone (")
    assert "all stages together, sharing the cores: 900. To speed up, " in limit.text


@pytest.mark.parametrize(
    ("slow", "load", "bottleneck", "text"),
    [
        ("decode", 0.97, "GPU", "the GPU, busy 97% of the time, with decode"),
        ("transform", 0.9, "GPU", "the GPU, busy 90% of the time, with transform"),
        ("decode", 0.5, "decode", "decode on the GPU"),
        ("decode", None, "decode", "decode on the GPU"),
        ("disk", 0.97, "disk", "disk"),
        ("hand-over", 0.97, "hand-over", "hand-over"),
    ],
)
def test_find_bottleneck_is_the_gpu_only_if_busy_with_the_slowest_stage(
    slow: Stage, load: float | None, bottleneck: Bottleneck, text: str
) -> None:
    limit = find_bottleneck({**FAST, slow: 1000.0}, 900.0, on_gpu=True, gpu_load=load)
    assert limit.bottleneck == bottleneck
    assert limit.text.startswith(f"The bottleneck is {text}: ")


def test_find_bottleneck_ignores_a_gpu_that_only_trains() -> None:
    assert find_bottleneck({**FAST, "decode": 1.0}, 1.0, on_gpu=False, gpu_load=1.0).bottleneck == "decode"


def test_cheapest_good_prefers_cheap_among_the_fastest() -> None:
    speeds = {each: Quantity((value,), "") for each, value in {1: 50.0, 2: 98.0, 4: 100.0, 8: 99.0}.items()}
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


PRESENT = LoaderSetting("DALI CPU", "config", 4, 4)
WHOLE = {"decode": "whole"}
BEST = LoaderSetting("DALI CPU", "config", 2, 2, "whole", WHOLE)


def measured(setting: LoaderSetting, *rates: int, reason: str = "") -> Measurements[LoaderSetting]:
    return Measurements(setting, "", [{"images_per_second": rate} for rate in rates], reason)


SWEEP = [
    measured(LoaderSetting("read only", "read", 4), 9000),
    measured(LoaderSetting("bare DALI", "config", 4), 9000),
    measured(LoaderSetting("DALI CPU", "read", 1), 9000),
    measured(LoaderSetting("DALI CPU", "config", 1), 300),
    measured(LoaderSetting("DALI CPU", "config", 2), 590, 600, 610),
    measured(LoaderSetting("DALI CPU", "config", 4), 605),
    measured(LoaderSetting("DALI CPU", "config", 8), 9000, reason="out of memory"),
    measured(LoaderSetting("DALI CPU", "config", 4, 1, varied="prefetch"), 400),
    measured(LoaderSetting("DALI CPU", "config", 4, 2, varied="prefetch"), 606),
    measured(LoaderSetting("DALI CPU", "config", 4, 8, varied="prefetch"), 608),
    measured(LoaderSetting("DALI CPU", "config", 4, varied="decoder"), 605),
    measured(LoaderSetting("DALI CPU", "config", 4, decoder="whole", dali=WHOLE, varied="decoder"), 700),
    measured(LoaderSetting("paddle.io", "config", 0), 200),
    measured(LoaderSetting("paddle.io", "config", 2), 500),
    measured(LoaderSetting("paddle.io", "config", 4), 400),
]


def test_choose_combines_the_best_value_of_each_axis() -> None:
    choice = choose(SWEEP, PRESENT, "DALI CPU")
    assert choice is not None
    assert choice.best.describe() == BEST.describe()
    assert choice.best.dali == WHOLE
    assert (choice.present, choice.same) == (PRESENT, False)


def test_choose_paddle_io_if_it_is_faster() -> None:
    slow = [measured(each.key, 100) if each.key.backend == "DALI CPU" else each for each in SWEEP]
    choice = choose(slow, PRESENT, "DALI CPU")
    assert choice is not None
    assert choice.best == LoaderSetting("paddle.io", "config", 2)


def test_choose_ignores_settings_that_a_config_cannot_express() -> None:
    choice = choose(SWEEP, PRESENT, "DALI GPU")
    assert choice is not None
    assert choice.best.backend == "paddle.io"
    assert choose(SWEEP[:3], PRESENT, "DALI CPU") is None


def test_choose_without_varied_threads_keeps_them() -> None:
    choice = choose([each for each in SWEEP if each.key.varied == "prefetch"], PRESENT, "DALI CPU")
    assert choice is not None
    assert choice.best.describe() == "DALI CPU, 4 threads, prefetch 2"


def present_of(*overrides: str) -> LoaderSetting:
    config = load_config(PHOTOS, overrides)
    split = config.DataLoader.Train
    assert split is not None
    workload = LoaderWorkload(config, split, Runtime(cores=6), None, 0)  # type: ignore[arg-type]
    return present_setting(workload)


def test_present_setting_resolves_auto() -> None:
    assert present_of() == LoaderSetting("DALI CPU", "config", 6, 8)
    assert present_of("Global.use_dali=False") == LoaderSetting("paddle.io", "config", 4)


def test_config_values_are_keys_of_a_config() -> None:
    paddle = LoaderSetting("paddle.io", "config", 3)
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
        ((0.9, 1.1), PRESENT, "reaches 1.00 times its images/s (0.90 to 1.10), which is within noise."),
        ((1.5, 1.6), BEST, "Use DALI CPU, 2 threads, prefetch 2, decoder whole: 1.55 times the images/s of"),
    ],
)
def test_advise_changes_the_setting_only_beyond_noise(
    ratios: tuple[float, ...] | None, setting: LoaderSetting, text: str
) -> None:
    chosen, sentence = advise(Choice(BEST, PRESENT), None if ratios is None else Quantity(ratios, ""))
    assert chosen == setting
    assert text in sentence
    overrides = "-o Global.use_dali=True DataLoader.Train.loader.dali.num_threads=2"
    assert (overrides in sentence) == (setting == BEST)
