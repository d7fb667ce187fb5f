"""The arithmetic of contenders that take turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from ppcls.bench.loader.timing import Compared, Speed, compare, rate


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

    first, second = compare({"one": one, "two": two}, 3, clock, lambda: None).speeds
    assert first.rates == pytest.approx((10.0, 5.0, 2.5))
    assert first.ratios == pytest.approx((1.0, 1.0, 1.0))
    assert second.ratios == pytest.approx((2.0, 2.0, 2.0))


@pytest.mark.parametrize("known", [0, 2])
def test_an_interrupt_leaves_the_whole_rounds(known: int) -> None:
    """One round is not counted; in the last one only the first contender comes to its end."""
    clock, turns, kept = Clock(), iter(range(2 * known + 3)), list[Sequence[Speed]]()

    def epoch() -> Iterator[int]:
        if next(turns, None) is None:
            raise KeyboardInterrupt
        yield from clock.epoch(0.0, 1.0)()

    def run() -> Compared:
        return compare({"one": epoch, "two": epoch}, 9, clock, lambda: None, kept.append)

    if not known:
        with pytest.raises(KeyboardInterrupt):
            run()
        return
    compared = run()
    assert isinstance(compared.interrupt, KeyboardInterrupt)
    assert [len(each.rates) for each in compared.speeds] == [known, known]
    assert len(kept) == known
    assert kept[-1] == compared.speeds


def test_a_line_shows_medians_and_ranges() -> None:
    speed = Speed("ppcls, DALI", (100.0, 300.0, 200.0), (0.5, 1.5, 1.0))
    assert speed.describe() == f"{'ppcls, DALI':<28}     200 img/s (100 to 300), ratio 1.00 (0.50 to 1.50)"
