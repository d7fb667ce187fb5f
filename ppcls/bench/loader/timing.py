"""Contenders that take turns: how many images a second each makes, and its ratio to the first.

They take turns round by round, so that a machine that slows down slows all of them; what counts is the
ratio within a round. In each turn the clock starts after some batches: what was made ahead before the turn
is used up by then, workers are up, and what the one before still made ahead is done.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import paddle

from ppcls.data.bad_images.search import error_reason
from ppcls.data.loaders.batch import Loader
from ppcls.errors import UserError
from ppcls.runtime.start import Runtime

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


@dataclass(frozen=True)
class Compared:
    """What became of contenders that were compared.

    Attributes:
        speeds: One a contender, in their order; of whole rounds only.
        interrupt: What ended it early, for the caller to raise once this is told; None where nothing did.
    """

    speeds: tuple[Speed, ...]
    interrupt: KeyboardInterrupt | None = None


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
    contenders: dict[str, Epoch],
    rounds: int,
    clock: Callable[[], float],
    finish: Callable[[], None],
    keep: Callable[[Sequence[Speed]], None] = lambda _: None,
) -> Compared:
    """Runs an epoch of each contender in turn, ``rounds`` times, after one that is not counted.

    Args:
        contenders: By name; the first is what ratios refer to.
        rounds: Counted rounds.
        clock: Seconds.
        finish: Waits for work that is still under way.
        keep: Takes all that is known, after each counted round.

    Returns:
        What was found; an interrupt (Ctrl-C) ends the measuring early.

    Raises:
        UserError: DALI fails, such as on an image.
        KeyboardInterrupt: It came before a round was done.
    """
    found: list[dict[str, float]] = []  # of each round
    speeds: tuple[Speed, ...] = ()
    try:
        for counted in range(-1, rounds):
            found.append({})
            for name, epoch in contenders.items():
                with _explained(name):
                    found[-1][name] = rate(epoch, clock, finish)
            if counted >= 0:
                speeds = _speeds(found[1:])
                keep(speeds)
    except KeyboardInterrupt as interrupt:
        if not speeds:
            raise
        return Compared(speeds, interrupt)
    return Compared(speeds)


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Has DALI's error, which is a page long, say in a line what it is about."""
    try:
        yield
    except RuntimeError as error:
        if "nvidia.dali" not in str(error):
            raise
        raise UserError(
            f"{name}: DALI failed: {error_reason(str(error))}; if an image is the cause, "
            "tools/dataset.py check names it"
        ) from None


def _speeds(rounds: Sequence[dict[str, float]]) -> tuple[Speed, ...]:
    base = next(iter(rounds[0]))
    return tuple(
        Speed(name, tuple(each[name] for each in rounds), tuple(each[name] / each[base] for each in rounds))
        for name in rounds[0]
    )


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
