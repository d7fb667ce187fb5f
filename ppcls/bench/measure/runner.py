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

import numpy as np

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
    **{name: MetricUnit(name, "ms", "less", 1e3) for name in ("p50", "p90", "p95", "p99")},
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


@dataclass
class Candidate(Generic[Key]):
    """One thing to measure, and its measurements so far.

    Attributes:
        key: Identity for the benchmark, such as a way of training.
        name: Name that is printed.
        measure: Measures once, in this process or in another one; returns a sample. It raises
            `MeasurementFailed` if only this candidate is affected.
        labels: Labels of the result row.
        base: Name of a ratio in the result row, and the candidate to compare with; None for no ratio.
        samples: One sample per round.
        reason: Cause of missing rounds; empty if there are none.
    """

    key: Key
    name: str
    measure: Callable[[], Sample]
    labels: dict[str, Label]
    base: tuple[str, Candidate[Any]] | None = None
    samples: list[Sample] = field(default_factory=list)
    reason: str = ""

    @property
    def rate(self) -> Quantity:
        """Returns the images per second."""
        return self.metrics()[METRICS[RATE].name]

    def metrics(self) -> dict[str, Quantity]:
        """Returns the metrics that all samples have."""
        return {
            name: Quantity(tuple(factor * sample[key] for sample in self.samples), unit, better)
            for key, (name, unit, better, factor) in METRICS.items()
            if self.samples and all(key in sample for sample in self.samples)
        }

    def ratio(self, base: Candidate[Any]) -> Quantity:
        """Returns the rate over another candidate's rate in the same rounds."""
        pairs = zip(self.samples, base.samples, strict=False)  # an interrupt may have cost one side a round
        return Quantity(tuple(sample[RATE] / other[RATE] for sample, other in pairs), "")

    def row(self) -> ResultRow:
        """Returns the result row: metrics, and why there are none, or fewer rounds than expected."""
        metrics = self.metrics()
        if metrics and self.base is not None and self.base[1].samples:
            metrics[self.base[0]] = self.ratio(self.base[1])
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


def run_rounds(
    candidates: Sequence[Candidate[Any]],
    rounds: int,
    report: Callable[[str], None],
    keep: Callable[[], None] = lambda: None,
) -> KeyboardInterrupt | None:
    """Measures all candidates in alternating rounds; one that fails is not tried again.

    Args:
        candidates: Candidates, which receive their samples.
        rounds: Number of rounds.
        report: Receives one readable line per measurement.
        keep: Called after each round.

    Returns:
        The interrupt (Ctrl-C) that ended the rounds early, to be raised once results are written; or None.

    Raises:
        KeyboardInterrupt: The interrupt came before anything was measured.
    """
    began = time.monotonic()
    try:
        for number in range(1, rounds + 1):
            if number == 2:
                rest = (time.monotonic() - began) * (rounds - 1)
                text = f"{rest:.0f} s" if rest < 100 else f"{rest / 60:.0f} min"
                report(f"the other rounds take about {text}")
            for candidate in candidates if number % 2 else candidates[::-1]:
                if not candidate.reason:
                    report(f"round {number} of {rounds}: {candidate.name}: {_measure(candidate)}")
            keep()
    except KeyboardInterrupt as interrupt:
        if not any(candidate.samples for candidate in candidates):
            raise
        for candidate in candidates:
            if len(candidate.samples) < rounds and not candidate.reason:
                candidate.reason = "interrupted"
        return interrupt
    return None


def _measure(candidate: Candidate[Any]) -> str:
    try:
        sample = candidate.measure()
    except MeasurementFailed as failure:
        candidate.reason = failure.reason
        return str(failure)
    candidate.samples.append(sample)
    return f"{sample[RATE]:.4g} images/s"


def find_conclusions(candidates: Sequence[Candidate[Any]]) -> list[str]:
    """Returns sentences about any candidates: the fastest, too much noise, and missing rows."""
    done = [each for each in candidates if each.samples]
    if not done:
        return ["Nothing could be measured; each row has the reason."]
    fastest = max(done, key=lambda each: each.rate.median)
    sentences = []
    if len(candidates) > 1:
        sentences.append(f"Fastest: {fastest.name}: {fastest.rate.median:.4g} images/s.")
    spreads = [each.rate.spread for each in done if len(each.samples) > 1]
    noise = statistics.median(spreads) / 2 if spreads else 0.0
    if noise > _NOISY:
        sentences.append(
            f"Runs of the same candidate differ by ±{noise:.0%} here: other work shares the machine, or "
            "--seconds is too short. Smaller differences between candidates mean nothing."
        )
    if lost := len(candidates) - len(done):
        sentences.append(f"{lost} of {len(candidates)} could not be measured; each row has the reason.")
    return sentences


def latency_sample(
    latencies: Sequence[float], seconds: float, images: int, percentiles: Sequence[int]
) -> Sample:
    """Returns a sample of requests: percentiles such as ``p50`` in seconds, speed, and number of requests."""
    values = np.percentile(latencies, percentiles).tolist()
    named = {f"p{percent}": value for percent, value in zip(percentiles, values, strict=True)}
    return {**named, RATE: images * len(latencies) / seconds, "requests": len(latencies)}


def powers_of_two(most: int) -> list[int]:
    """Returns 1, 2, 4 and so on below ``most``, and ``most``; nothing for 0."""
    return sorted({*(1 << power for power in range(most.bit_length())), most}) if most else []
