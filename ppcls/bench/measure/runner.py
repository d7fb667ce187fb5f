"""Benchmark runner: measures candidates in rounds, and returns their result rows.

Each round measures every candidate once, and every second round in reverse order. If the machine becomes
slower, all candidates become slower, and the ratios within a round remain comparable.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from ppcls.bench.results.schema import Better, Label, Quantity, ResultRow
from ppcls.engine.autotune.processes import MeasurementFailed, Sample

Key = TypeVar("Key")
RATE = "images_per_second"
_NOISY = 0.1  # half the range, as a share of the median


class MetricUnit(NamedTuple):
    """Metric of the result rows.

    Attributes:
        name: Name of the metric.
        unit: Unit of the values in the result rows.
        better: Whether larger or smaller values are better.
        factor: Factor that converts the value in a sample to the unit.
    """

    name: str
    unit: str
    better: Better = "more"
    factor: float = 1


METRICS = {  # metrics by the key in a sample, in the order of the columns in tables
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


@dataclass
class Candidate(Generic[Key]):
    """One variant that a benchmark measures, and its measurements so far.

    Attributes:
        key: Identity of the candidate in its benchmark, such as a `Variant` of training.
        name: Name that is printed.
        measure: Function that measures once and returns a sample. It raises `MeasurementFailed` if this
            candidate cannot be measured but others may.
        labels: Labels of the result row.
        base: Name of the ratio in the result row, and the candidate to compare with; None for no ratio.
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
        """Returns the rate divided by the rate of another candidate, for each round."""
        pairs = zip(self.samples, base.samples, strict=False)  # one side may lack the last round
        return Quantity(tuple(sample[RATE] / other[RATE] for sample, other in pairs), "")

    def row(self) -> ResultRow:
        """Returns the result row with the metrics. Its note gives the reason for missing rounds."""
        metrics = self.metrics()
        if metrics and self.base is not None and self.base[1].samples:
            metrics[self.base[0]] = self.ratio(self.base[1])
        count = f"rounds measured: {len(self.samples)}; " if self.samples and self.reason else ""
        return ResultRow(self.labels, metrics, f"{count}{self.reason}")


@dataclass(frozen=True)
class Effort:
    """Number and duration of measurements.

    Attributes:
        rounds: Number of measurements of each candidate.
        warm_up: Number of steps or requests before a measurement.
        counted: Number of steps or requests in a measurement; None to measure for ``seconds``.
        seconds: Duration of a measurement in seconds.
        timeout: Seconds after which a measurement is aborted; they include the start-up.
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
    """Measures all candidates in rounds. After a failure, a candidate is not measured again.

    Args:
        candidates: Candidates. The samples are added to them.
        rounds: Number of rounds.
        report: Called with one line of text per measurement.
        keep: Called after each round.

    Returns:
        The interrupt (Ctrl-C) that ended the measurement early, which the caller raises after it has written
        the results; otherwise None.

    Raises:
        KeyboardInterrupt: The user interrupted the measurement before there were any samples.
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
    """Returns sentences about the fastest candidate, too much noise, and candidates without results."""
    done = [each for each in candidates if each.samples]
    if not done:
        return ["Nothing could be measured; each row gives the reason."]
    fastest = max(done, key=lambda each: each.rate.median)
    sentences = []
    if len(candidates) > 1:
        sentences.append(f"Fastest: {fastest.name}: {fastest.rate.median:.4g} images/s.")
    spreads = [each.rate.spread for each in done if len(each.samples) > 1]
    noise = statistics.median(spreads) / 2 if spreads else 0.0
    if noise > _NOISY:
        sentences.append(
            f"Measurements of the same candidate differ by ±{noise:.0%}: the machine does other work, or "
            "--seconds is too short. Smaller differences between candidates are not significant."
        )
    if lost := len(candidates) - len(done):
        sentences.append(f"{lost} of {len(candidates)} could not be measured; their rows give the reasons.")
    return sentences


def powers_of_two(most: int) -> list[int]:
    """Returns the powers of two below ``most``, and ``most`` itself; an empty list for 0."""
    return sorted({*(1 << power for power in range(most.bit_length())), most}) if most else []
