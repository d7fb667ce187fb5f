"""A run on a CPU is measured if that takes less time than it can save."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppcls.engine.autotune.worthwhile import estimate_update, saves_time

# Durations of updates with Paddle's kernels on two cores (docs/measurements/cpu.md).
MEASURED = [
    ("ResNet18", 32, 32, 0.390),
    ("ResNet18", 8, 224, 8 / 5.96),
    ("ResNet50", 8, 224, 8 / 2.63),
    ("MobileNetV3_small_x1_0", 8, 224, 8 / 32.8),
    ("EfficientNetB0", 8, 224, 8 / 6.15),
]


@pytest.mark.parametrize(("arch", "images", "side", "seconds"), MEASURED)
def test_estimate_is_near_what_was_measured(arch: str, images: int, side: int, seconds: float) -> None:
    estimate = estimate_update(arch, images, side, 2)
    assert estimate is not None
    assert 1 / 2.5 < estimate / seconds < 2.5


def test_duration_of_an_unknown_architecture_is_unknown() -> None:
    assert estimate_update("mine", 8, 224, 2) is None


@pytest.mark.parametrize(
    ("arch", "images", "side", "updates", "measured"),
    [
        ("MobileNetV3_small_x1_0", 16, 64, 30, False),  # 160 pictures, three epochs
        ("MobileNetV3_small_x1_0", 16, 32, 400, False),  # a few hundred tiny steps
        ("ResNet18", 32, 32, 90, False),  # two epochs of the quick start
        ("ResNet18", 32, 32, 360, True),  # all epochs of the quick start
        ("ResNet50", 16, 224, 200, True),  # 160 pictures, 20 epochs with the default config: 20 minutes
    ],
)
def test_only_runs_that_can_save_more_are_measured(
    arch: str, images: int, side: int, updates: int, measured: bool
) -> None:
    seconds = estimate_update(arch, images, side, 2)
    assert seconds is not None
    assert saves_time(updates, seconds) == measured


@given(st.integers(0, 10**7), st.floats(1e-4, 1e3))
def test_a_measured_run_saves_the_time_of_the_measurement(updates: int, seconds: float) -> None:
    run, measurement = updates * seconds, 12 + 9 * seconds
    if saves_time(updates, seconds):
        assert 0.4 * run > measurement
        assert saves_time(updates + 1, seconds)


def test_time_limit_makes_a_long_run_short() -> None:
    assert saves_time(100_000, 0.1)
    assert saves_time(100_000, 0.1, limit=10_000)
    assert not saves_time(100_000, 0.1, limit=30)
