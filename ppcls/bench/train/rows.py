"""What the measurements of training say: rows, pictures, and what follows from them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ppcls.bench.measure.turns import Measured
from ppcls.bench.results.noise import warn_of_spread
from ppcls.bench.results.results import Better, Chart, Label, Metric, Row
from ppcls.bench.train.peak_flops import teraflops, utilization
from ppcls.bench.train.train import Look
from ppcls.bench.train.variants import PRECISIONS, Variant

Ways = Measured[Variant]
RATE, EFFICIENCY = "images/s", "efficiency"
_KINDS = ("framework", "source")  # labels that make series of a chart rather than charts

# What the worker calls it: what the results do, the factor to their unit, the unit, what is better.
_WHOLE: dict[str, tuple[str, float, str, Better]] = {
    "images_per_second": (RATE, 1, "images/s", "more"),
    "step": ("step", 1e3, "ms", "less"),
    "data_wait": ("data wait", 1e2, "%", "less"),
    "cpu_cores": ("CPU load", 1, "cores", "neither"),
    "host_memory": ("host memory", 1, "MiB", "less"),
    "gpu_load": ("GPU load", 1e2, "%", "neither"),
    "gpu_reserved": ("GPU memory", 1, "MiB", "less"),
    "gpu_allocated": ("GPU memory in tensors", 1, "MiB", "less"),
}
_PHASES = {
    "data wait": "data",
    "forward": "forward",
    "backward": "backward",
    "all-reduce": "all-reduce not hidden",
    "all-reduce hidden": "all-reduce hidden",
    "optimizer": "optimizer",
    "host": "rest",
}


def rows_of(measured: Sequence[Ways], look: Look) -> list[Row]:
    """Returns a row for each way, with its reason where it could not be measured; then one for its phases."""
    alone = {each.contender: each for each in measured if each.contender.processes == 1}
    whole, split = [], []
    alike = _alike(measured)
    for each in measured:
        metrics, labels = _metrics(each, look), labels_of(each.contender, look)
        base = alone.get(replace(each.contender, processes=1))
        if metrics and base is not None and base.rounds and each is not base:
            metrics[EFFICIENCY] = _efficiency(each, base)
        whole.append(Row(labels, metrics, _note(each, alike)))
        if phases := _phases(each):
            split.append(Row({**labels, "of": "phases of a step"}, phases))
    return [*whole, *split]


def labels_of(variant: Variant, look: Look) -> dict[str, Label]:
    """Returns what tells a way apart from those of other runs, too."""
    return {"model": look.model, "image": look.size, **variant.labels()}


def _alike(measured: Sequence[Ways]) -> dict[str, str]:
    """Returns how steps were executed, of each framework that has one way for all."""
    found: dict[str, set[str]] = {}
    for each in measured:
        for one in each.rounds[:1]:
            found.setdefault(each.contender.framework, set()).add(one["execution"])
    return {framework: how.pop() for framework, how in found.items() if len(how) == 1}


def _phases(measured: Ways) -> dict[str, Metric]:
    rounds = [each["phases"] for each in measured.rounds if "phases" in each]
    if not rounds:
        return {}
    return {
        name: _metric(rounds, key, 1e3, "ms", "less") for key, name in _PHASES.items() if key in rounds[0]
    }


def _metrics(measured: Ways, look: Look) -> dict[str, Metric]:
    if not measured.rounds:
        return {}
    first = measured.rounds[0]
    metrics = {
        name: _metric(measured.rounds, key, factor, unit, better)
        for key, (name, factor, unit, better) in _WHOLE.items()
        if key in first
    }
    used = peak_rate(measured.contender, look)
    if isinstance(used, float) and look.multiply_adds is not None:
        shares = [
            1e2 * utilization(rate / measured.contender.processes, look.multiply_adds, used)
            for rate in metrics[RATE].values
        ]
        metrics["MFU"] = Metric(tuple(shares), "%")
    return metrics


def _metric(rounds: Sequence[dict[str, Any]], key: str, factor: float, unit: str, better: Better) -> Metric:
    return Metric(tuple(factor * each[key] for each in rounds), unit, better)


def peak_rate(variant: Variant, look: Look) -> float | str:
    """Returns the card's peak in 10^12 FLOPs a second, or why it is not known."""
    if look.place.device == "cpu":
        return "the peak rate of a CPU is not known"
    if look.multiply_adds is None:
        return "of several models that train at once, only one's multiplications are counted"
    rate = teraflops(look.place.card, PRECISIONS[variant.precision].format)
    return rate if isinstance(rate, str) else float(rate)


def _efficiency(several: Ways, alone: Ways) -> Metric:
    """Returns the rate over as many times one process's, round by round."""
    pairs = zip(several.rounds, alone.rounds, strict=False)
    key, processes = "images_per_second", several.contender.processes
    return Metric(tuple(1e2 * many[key] / (processes * one[key]) for many, one in pairs), "%")


def _note(measured: Ways, alike: dict[str, str]) -> str:
    said = []
    if measured.rounds and measured.contender.framework not in alike:
        said.append(str(measured.rounds[0]["execution"]))
    said += dict.fromkeys(
        f"phases not timed: {one['no_phases']}" for one in measured.rounds if "no_phases" in one
    )
    said += [measured.note] if measured.note else []
    return "; ".join(said)


def charts_of(measured: Sequence[Ways]) -> list[Chart]:
    """Returns a picture for each thing that was varied."""
    labels = [each.contender.labels() for each in measured if each.rounds]
    varied = [
        name
        for name in (labels[0] if labels else {})
        if len({row[name] for row in labels}) > 1 and not _told_by_framework(name, labels)
    ]
    kinds = tuple(name for name in _KINDS if name in varied)
    charts = []
    for name in [each for each in varied if each not in kinds] or list(kinds[:1]):
        series = tuple(each for each in kinds if each != name)
        where = {other: labels[0][other] for other in varied if other not in (name, *series)}
        charts.append(Chart(f"Training, by {name}", RATE, name, series, where))
        if name == "processes":
            charts.append(Chart("Efficiency against one process", EFFICIENCY, name, series, where))
    return charts


def _told_by_framework(name: str, labels: Sequence[dict[str, Label]]) -> bool:
    """Whether a label differs between frameworks only: PyTorch trains by O1 where we train by O2."""
    values: dict[Label, set[Label]] = {}
    for row in labels:
        values.setdefault(row["framework"], set()).add(row[name])
    return name not in _KINDS and all(len(each) == 1 for each in values.values())


def findings_of(measured: Sequence[Ways], look: Look) -> Iterator[str]:
    """Yields what is to be known of the figures, a sentence each."""
    done = [each for each in measured if each.rounds]
    if not done:
        yield "Nothing could be measured; each row says why."
        return
    fastest = max(done, key=lambda each: _metrics(each, look)[RATE].median)
    rate = _metrics(fastest, look)[RATE].median
    yield f"Fastest: {fastest.contender.describe()}: {rate:.4g} images/s."
    yield from warn_of_spread(_metrics(each, look)[RATE] for each in done)
    for framework, how in _alike(done).items():
        yield f"{framework}'s {how}."
    if look.place.device == "cpu" and any(each.contender.processes > 1 for each in done):
        yield (
            f"Several processes are gloo processes that share this CPU's {look.place.cores} cores: they show "
            "that it works and what the exchange costs, not how GPUs scale."
        )
    if look.place.device == "cpu" and any(
        "bfloat16" in each.contender.precision and each.contender.framework == "Paddle" for each in done
    ):
        yield "bfloat16 on a CPU is rounding, computed in float32: it shows numbers, not speed."
    for reason in dict.fromkeys(
        why for each in done if isinstance(why := peak_rate(each.contender, look), str)
    ):
        yield f"No MFU: {reason}."
    if any("phases" in each.rounds[0] for each in done):
        yield (
            "StepHooks are those of plain steps after the timed ones"
            + (", which wait for the GPU between phases" if look.place.device == "gpu" else "")
            + ": their shares count, and their sum may be more than a step."
        )
    lost = [each for each in measured if not each.rounds]
    if lost:
        yield f"{len(lost)} of {len(measured)} ways could not be measured; each row says why."
