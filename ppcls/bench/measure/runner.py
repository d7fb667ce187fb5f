"""The benchmark runner: measures candidates in alternating rounds, and makes their result rows.

Every candidate is measured once before any is measured again, in an order that is reversed from round to
round. A machine that slows down then slows all candidates alike, and ratios within a round stay comparable.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from ppcls.bench.results.schema import Better, Label, Quantity, ResultRow
from ppcls.errors import UserError

Key = TypeVar("Key")
Sample = dict[str, Any]  # one measurement: `RATE`, further keys of `METRICS`, and facts
RATE = "images_per_second"
_NOISY = 0.1  # half the range, as a share of the median


class MetricUnit(NamedTuple):
    """Metric of the result rows: its name, unit, meaning, and the factor from a sample to its unit."""

    name: str
    unit: str
    better: Better = "more"
    factor: float = 1


METRICS = {  # key of a sample: metric, in the order of the tables' columns
    "seconds": MetricUnit("time", "s", "less"),
    "share": MetricUnit("share", "%", "neither", 100),
    "p50": MetricUnit("p50", "ms", "less", 1e3),
    "p90": MetricUnit("p90", "ms", "less", 1e3),
    "p95": MetricUnit("p95", "ms", "less", 1e3),
    "p99": MetricUnit("p99", "ms", "less", 1e3),
    RATE: MetricUnit("images/s", "images/s"),
    "megabytes_per_second": MetricUnit("data", "MB/s"),
    "cpu_per_image": MetricUnit("CPU", "s/1,000 images", "less", 1e3),
    "step": MetricUnit("step", "ms", "less", 1e3),
    "data_wait": MetricUnit("data wait", "%", "less", 100),
    "cpu_cores": MetricUnit("CPU load", "cores", "neither"),
    "host_memory": MetricUnit("host memory", "MiB", "less"),
    "gpu_load": MetricUnit("GPU load", "%", "neither", 100),
    "jpeg_load": MetricUnit("JPEG engine", "%", "neither", 100),
    "gpu_memory": MetricUnit("GPU memory", "MiB", "less"),
    "gpu_reserved": MetricUnit("GPU memory", "MiB", "less"),
    "gpu_allocated": MetricUnit("GPU memory in tensors", "MiB", "less"),
}


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
        labels: Labels of the result row.
    """

    key: Key
    name: str
    measure: Callable[[], Sample]
    labels: dict[str, Label] = field(default_factory=dict)


@dataclass
class Measurements(Generic[Key]):
    """Measurements of one candidate.

    Attributes:
        key: Identity of the candidate.
        name: Name for people.
        samples: One sample per round.
        reason: Cause of missing rounds; empty if there are none.
        labels: Labels of the result row.
    """

    key: Key
    name: str
    samples: list[Sample] = field(default_factory=list)
    reason: str = ""
    labels: dict[str, Label] = field(default_factory=dict)

    @property
    def rate(self) -> Quantity:
        """Returns the images per second."""
        return self.metrics()[METRICS[RATE].name]

    def metrics(self) -> dict[str, Quantity]:
        """Returns the metrics that all samples have."""
        return {
            metric.name: Quantity(
                tuple(metric.factor * sample[key] for sample in self.samples), metric.unit, metric.better
            )
            for key, metric in METRICS.items()
            if self.samples and all(key in sample for sample in self.samples)
        }

    def ratio(self, base: Measurements[Any]) -> Quantity:
        """Returns the rate over another candidate's rate in the same rounds."""
        pairs = zip(self.samples, base.samples, strict=False)  # an interrupt may have cost one side a round
        return Quantity(tuple(sample[RATE] / other[RATE] for sample, other in pairs), "")

    def row(self, base: Measurements[Any] | None = None, versus: str = "") -> ResultRow:
        """Returns the result row: metrics, and why there are none, or fewer rounds than expected.

        Args:
            base: Candidate to compare with; None for none. It may not have been measured.
            versus: Name of the ratio's metric.
        """
        metrics = self.metrics()
        if metrics and base is not None and base.samples:
            metrics[versus] = self.ratio(base)
        count = f"rounds measured: {len(self.samples)}; " if self.samples and self.reason else ""
        return ResultRow(self.labels, metrics, f"{count}{self.reason}")


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
    measured = [Measurements(each.key, each.name, labels=each.labels) for each in candidates]
    pairs = list(zip(candidates, measured, strict=True))
    began = time.monotonic()
    try:
        for number in range(1, rounds + 1):
            if number == 2:
                report(f"the other rounds take about {_duration((time.monotonic() - began) * (rounds - 1))}")
            for candidate, measurement in pairs if number % 2 else pairs[::-1]:
                if not measurement.reason:
                    outcome = _measure(candidate, measurement)
                    report(f"round {number} of {rounds}: {candidate.name}: {outcome}")
            keep(measured)
    except KeyboardInterrupt as interrupt:
        if not any(measurement.samples for measurement in measured):
            raise
        for measurement in measured:
            if len(measurement.samples) < rounds and not measurement.reason:
                measurement.reason = "interrupted"
        return Rounds(measured, interrupt)
    return Rounds(measured)


def find_conclusions(measured: Sequence[Measurements[Any]]) -> list[str]:
    """Returns sentences about any candidates: the fastest, too much noise, and missing rows."""
    done = [each for each in measured if each.samples]
    if not done:
        return ["Nothing could be measured; each row has the reason."]
    fastest = max(done, key=lambda each: each.rate.median)
    sentences = [f"Fastest: {fastest.name}: {fastest.rate.median:.4g} images/s."] if len(measured) > 1 else []
    spreads = [each.rate.spread for each in done if len(each.samples) > 1]
    noise = statistics.median(spreads) / 2 if spreads else 0.0
    if noise > _NOISY:
        sentences.append(
            f"Runs of the same candidate differ by ±{noise:.0%} here: other work shares the machine, or "
            "--seconds is too short. Smaller differences between candidates mean nothing."
        )
    if lost := len(measured) - len(done):
        sentences.append(f"{lost} of {len(measured)} could not be measured; each row has the reason.")
    return sentences


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
