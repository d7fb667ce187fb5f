"""Which stage limits, and what is worth taking: rules on numbers."""

from __future__ import annotations

import pytest

from ppcls.bench.loader.bottleneck import Bottleneck, Stage, beyond_noise, find_bottleneck, frugal
from ppcls.bench.results.results import Metric

FAST: dict[Stage, float] = {"disk": 9000.0, "decode": 9000.0, "transform": 9000.0, "hand-over": 9000.0}


@pytest.mark.parametrize("slow", ["disk", "decode", "transform", "hand-over"])
def test_the_slowest_stage_is_the_bottleneck(slow: Stage) -> None:
    verdict = find_bottleneck({**FAST, slow: 1000.0}, 900.0)
    assert verdict.bottleneck == slow
    assert verdict.text.startswith(f"The bottleneck is {slow}: alone it makes 1,000 images/s (")
    assert "all together, sharing the cores, make 900. To go faster, " in verdict.text


@pytest.mark.parametrize(
    ("slow", "load", "bottleneck", "text"),
    [
        ("decode", 0.97, "GPU", "the GPU, busy 97% of the time, by decode"),
        ("transform", 0.9, "GPU", "the GPU, busy 90% of the time, by transform"),
        ("decode", 0.5, "decode", "decode, which the GPU does"),
        ("decode", None, "decode", "decode, which the GPU does"),
        ("disk", 0.97, "disk", "disk"),
        ("hand-over", 0.97, "hand-over", "hand-over"),
    ],
)
def test_a_gpu_is_the_bottleneck_where_it_is_busy_with_the_slowest_stage(
    slow: Stage, load: float | None, bottleneck: Bottleneck, text: str
) -> None:
    verdict = find_bottleneck({**FAST, slow: 1000.0}, 900.0, on_gpu=True, gpu_load=load)
    assert verdict.bottleneck == bottleneck
    assert verdict.text.startswith(f"The bottleneck is {text}: alone")


def test_a_gpu_that_only_trains_is_no_bottleneck_of_a_loader() -> None:
    assert find_bottleneck({**FAST, "decode": 1.0}, 1.0, on_gpu=False, gpu_load=1.0).bottleneck == "decode"


def test_the_cheapest_of_those_that_are_about_as_fast() -> None:
    speeds = {each: Metric((value,), "") for each, value in {1: 50.0, 2: 98.0, 4: 100.0, 8: 99.0}.items()}
    assert frugal(speeds, [1, 2, 4, 8]) == 2
    assert frugal(speeds, [8, 4, 2, 1]) == 8
    assert frugal({1: speeds[1]}, [1]) == 1


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
def test_a_gain_is_one_in_every_round(ratios: tuple[float, ...], expected: bool) -> None:
    assert beyond_noise(Metric(ratios, "")) == expected
