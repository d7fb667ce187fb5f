"""Contenders that take turns: how many images a second each makes, and its ratio to the first.

They take turns round by round, so that a machine that slows down slows all of them; what counts is the
ratio within a round. In each turn the clock starts after some batches: what was made ahead before the turn
is used up by then, workers are up, and what the one before still made ahead is done.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import paddle

from ppcls.data.batch import Loader
from ppcls.runtime import Runtime

Epoch = Callable[[], Iterator[int]]  # runs one epoch, yields the images of each batch
NOT_COUNTED = 8  # batches before the clock starts


@dataclass(frozen=True)
class Speed:
    """What one contender did.

    Attributes:
        name: Of the contender.
        rates: Images a second, one per round.
        ratios: Rate over the first contender's in the same round.
    """

    name: str
    rates: tuple[float, ...]
    ratios: tuple[float, ...]

    def describe(self) -> str:
        """Returns one line: median and range of the rates, median and range of the ratios."""
        low, high = min(self.ratios), max(self.ratios)
        return (
            f"{self.name:<28} {statistics.median(self.rates):7.0f} img/s "
            f"({min(self.rates):.0f} to {max(self.rates):.0f}), "
            f"ratio {statistics.median(self.ratios):.2f} ({low:.2f} to {high:.2f})"
        )


def rate(epoch: Epoch, clock: Callable[[], float], finish: Callable[[], None]) -> float:
    """Returns the images a second of one epoch, without its first batches.

    Args:
        epoch: What is timed; of more than eight batches.
        clock: Seconds.
        finish: Waits for work that is still under way.
    """
    images, began = 0, 0.0
    for number, count in enumerate(epoch(), start=1):
        if number > NOT_COUNTED:
            images += count
        elif number == NOT_COUNTED:
            finish()
            began = clock()
    finish()
    return images / (clock() - began)


def compare(
    contenders: dict[str, Epoch], rounds: int, clock: Callable[[], float], finish: Callable[[], None]
) -> list[Speed]:
    """Runs an epoch of each contender in turn, ``rounds`` times, after one that is not counted.

    Args:
        contenders: By name; the first is what ratios refer to.
        rounds: Counted rounds.
        clock: Seconds.
        finish: Waits for work that is still under way.
    """
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for counted in range(-1, rounds):
        for name, epoch in contenders.items():
            found = rate(epoch, clock, finish)
            if counted >= 0:
                rates[name].append(found)
    base = next(iter(rates.values()))
    return [
        Speed(name, tuple(each), tuple(rate / other for rate, other in zip(each, base, strict=True)))
        for name, each in rates.items()
    ]


def through(loader: Loader) -> Epoch:
    """Returns the epoch of a loader."""

    def epoch() -> Iterator[int]:
        for batch in loader:
            yield batch.valid

    return epoch


def finisher(runtime: Runtime) -> Callable[[], None]:
    """Returns what waits for the device."""
    return paddle.device.synchronize if runtime.device_id is not None else _nothing


def _nothing() -> None:
    """On a CPU a batch that arrived is done."""
