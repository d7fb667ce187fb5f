"""The arithmetic of the loader benchmark, and one real run of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ppcls.bench.loader import Speed, benchmark_loaders, compare, rate
from ppcls.config.load import load_config
from ppcls.errors import UserError
from ppcls.runtime import Runtime

PHOTOS = Path(__file__).parents[2] / "configs" / "ResNet50_photos.yaml"


class Clock:
    """Time that passes only where a contender says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def epoch(
        self, first: float, later: float, batches: int = 24, size: int = 10
    ) -> Callable[[], Iterator[int]]:
        """Returns an epoch whose first eight batches take ``first`` seconds each, the others ``later``."""

        def run() -> Iterator[int]:
            for number in range(batches):
                self.now += first if number < 8 else later
                yield size

        return run


def test_the_first_batches_do_not_count() -> None:
    clock = Clock()
    assert rate(clock.epoch(100.0, 0.5), clock, lambda: None) == pytest.approx(20.0)


def test_what_is_still_under_way_counts() -> None:
    clock = Clock()

    def finish() -> None:
        clock.now += 2.0

    # 16 batches of 10 in 16 * 0.5 seconds, and 2 more until the device is done
    assert rate(clock.epoch(0.0, 0.5), clock, finish) == pytest.approx(16.0)


def test_ratios_are_taken_within_a_round() -> None:
    """On a machine that slows down from round to round, what is twice as fast stays so."""
    clock, rounds = Clock(), iter([1.0, 1.0, 2.0, 4.0])
    pace = [0.0]

    def one() -> Iterator[int]:
        pace[0] = next(rounds)
        yield from clock.epoch(0.0, pace[0])()

    def two() -> Iterator[int]:
        yield from clock.epoch(0.0, pace[0] / 2)()

    first, second = compare({"one": one, "two": two}, 3, clock, lambda: None)
    assert first.rates == pytest.approx((10.0, 5.0, 2.5))
    assert first.ratios == pytest.approx((1.0, 1.0, 1.0))
    assert second.ratios == pytest.approx((2.0, 2.0, 2.0))


def test_a_line_shows_medians_and_ranges() -> None:
    speed = Speed("ppcls, DALI", (100.0, 300.0, 200.0), (0.5, 1.5, 1.0))
    assert speed.describe() == f"{'ppcls, DALI':<28}     200 img/s (100 to 300), ratio 1.00 (0.50 to 1.50)"


def test_a_real_run_times_every_contender(small: list[str]) -> None:
    config = load_config(PHOTOS, small)
    speeds = benchmark_loaders(config, Runtime(cores=2, threads=2), [0], rounds=1, mixup=True)
    assert [each.name for each in speeds] == [
        "bare DALI pipeline",
        "ppcls, DALI",
        "ppcls, DALI + Mixup",
        "ppcls, paddle.io, 0 workers",
    ]
    assert all(rate > 0 for each in speeds for rate in each.rates)


def test_too_few_batches_are_refused(small: list[str]) -> None:
    config = load_config(PHOTOS, [*small, "DataLoader.Train.sampler.batch_size=8"])
    with pytest.raises(UserError, match=r"4 batches of 8 are too few to time; expected more than 16"):
        benchmark_loaders(config, Runtime(), [0], rounds=1)


def test_another_chain_is_refused(small: list[str]) -> None:
    chain = "DataLoader.Train.dataset.transform_ops=[DecodeImage, {ResizeImage: {size: 32}}, NormalizeImage]"
    with pytest.raises(UserError, match="another chain"):
        benchmark_loaders(load_config(PHOTOS, [*small[:3], chain]), Runtime(), [0], rounds=1)
