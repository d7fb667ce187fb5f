"""The benchmark runner: measures candidates in alternating rounds.

Every candidate is measured once before any is measured again, in an order that is reversed from round to
round. A machine that slows down then slows all candidates alike, and ratios within a round stay comparable.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ppcls.bench.results.schema import Better, Quantity
from ppcls.errors import UserError

Key = TypeVar("Key")
Sample = dict[str, Any]  # one measurement; every sample has `RATE`
RATE = "images_per_second"


class MeasurementFailed(UserError):  # noqa: N818 - an expected outcome
    """One candidate cannot be measured; the others can.

    Args:
        reason: Cause, in one line.
        log: Last lines of the log of a process that crashed.
    """

    def __init__(self, reason: str, log: str = "") -> None:
        super().__init__(f"{reason}\n{log}".rstrip())
        self.reason = reason


@dataclass(frozen=True)
class Candidate(Generic[Key]):
    """One thing to measure.

    Attributes:
        key: Identity for the benchmark, such as a way of training.
        name: Name for people.
        measure: Measures once, in this process or in another one; returns a sample. It raises
            `MeasurementFailed` if only this candidate is affected.
    """

    key: Key
    name: str
    measure: Callable[[], Sample]


@dataclass
class Measurements(Generic[Key]):
    """Measurements of one candidate.

    Attributes:
        key: Identity of the candidate.
        name: Name for people.
        samples: One sample per round.
        reason: Cause of missing rounds; empty if there are none.
    """

    key: Key
    name: str
    samples: list[Sample] = field(default_factory=list)
    reason: str = ""

    @property
    def note(self) -> str:
        """Remark for the result row: why there are no values, or fewer than expected."""
        count = f"rounds measured: {len(self.samples)}; " if self.samples and self.reason else ""
        return f"{count}{self.reason}"

    def quantity(self, name: str, unit: str, better: Better = "more", factor: float = 1) -> Quantity:
        """Returns one value of all samples, multiplied by ``factor``."""
        return Quantity(tuple(factor * sample[name] for sample in self.samples), unit, better)

    def rate(self) -> Quantity:
        """Returns the images per second."""
        return self.quantity(RATE, "images/s")

    def ratio(self, base: Measurements[Any]) -> Quantity:
        """Returns the rate over another candidate's rate in the same rounds."""
        pairs = zip(self.samples, base.samples, strict=False)  # an interrupt may have cost one side a round
        return Quantity(tuple(sample[RATE] / other[RATE] for sample, other in pairs), "")


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    Attributes:
        rounds: Number of times that each candidate is measured.
        warm_up: Number of steps or requests that are not counted.
        counted: Number of steps or requests that are counted; None for as many as ``seconds`` take.
        seconds: Seconds that are counted.
        timeout: Seconds after which a measurement is aborted, start-up included.
    """

    rounds: int = 3
    warm_up: int = 5
    counted: int | None = None
    seconds: float = 5.0
    timeout: float = 900.0


@dataclass(frozen=True)
class Rounds(Generic[Key]):
    """Outcome of all rounds.

    Attributes:
        measured: One entry per candidate, in their order.
        interrupt: Interrupt that ended the rounds early, to be raised once results are written; None if there
            was none.
    """

    measured: list[Measurements[Key]]
    interrupt: KeyboardInterrupt | None = None


def run_rounds(
    candidates: Sequence[Candidate[Key]],
    rounds: int,
    report: Callable[[str], None],
    keep: Callable[[list[Measurements[Key]]], None] = lambda _: None,
) -> Rounds[Key]:
    """Measures all candidates in alternating rounds.

    A candidate that fails is not tried again; its earlier samples stay.

    Args:
        candidates: Candidates.
        rounds: Number of rounds.
        report: Receives one line for people per measurement.
        keep: Receives everything that is known, after each round.

    Returns:
        What was measured. An interrupt (Ctrl-C) ends the rounds early.

    Raises:
        KeyboardInterrupt: The interrupt came before anything was measured.
    """
    measured = [Measurements(candidate.key, candidate.name) for candidate in candidates]
    pairs = list(zip(candidates, measured, strict=True))
    began = time.monotonic()
    try:
        for number in range(1, rounds + 1):
            if number == 2:
                report(f"the other rounds take about {_duration((time.monotonic() - began) * (rounds - 1))}")
            for candidate, measurement in pairs if number % 2 else pairs[::-1]:
                if not measurement.reason:
                    report(
                        f"round {number} of {rounds}: {candidate.name}: {_measure(candidate, measurement)}"
                    )
            keep(measured)
    except KeyboardInterrupt as interrupt:
        if not any(measurement.samples for measurement in measured):
            raise
        for measurement in measured:
            if len(measurement.samples) < rounds and not measurement.reason:
                measurement.reason = "interrupted"
        return Rounds(measured, interrupt)
    return Rounds(measured)


def powers_of_two(most: int) -> list[int]:
    """Returns 1, 2, 4 and so on below ``most``, and ``most``; nothing for 0."""
    return sorted({*(1 << power for power in range(most.bit_length())), most}) if most else []


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _measure(candidate: Candidate[Key], measurement: Measurements[Key]) -> str:
    try:
        sample = candidate.measure()
    except MeasurementFailed as failure:
        measurement.reason = failure.reason
        return str(failure)
    measurement.samples.append(sample)
    return f"{sample[RATE]:.4g} images/s"
