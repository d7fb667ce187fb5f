"""Rows, charts and conclusions from measurements of training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ppcls.bench.measure.runner import Measurements
from ppcls.bench.results.schema import Better, ChartSpec, Label, Quantity, ResultRow, spread_warning
from ppcls.bench.train.peak_flops import teraflops, utilization
from ppcls.bench.train.tasks import Inspection
from ppcls.bench.train.variants import PRECISIONS, Variant

MeasuredVariant = Measurements[Variant]
RATE, EFFICIENCY = "images/s", "efficiency"
_SERIES = ("framework", "source")  # labels that become series of a chart instead of charts

# Name in the worker's sample: name in the results, factor to its unit, unit, what is better.
_METRICS: dict[str, tuple[str, float, str, Better]] = {
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


def make_rows(measured: Sequence[MeasuredVariant], inspection: Inspection) -> list[ResultRow]:
    """Returns a row for each variant, with the reason if it could not be measured; then rows of phases."""
    single = {variant.key: variant for variant in measured if variant.key.processes == 1}
    executions = _common_executions(measured)
    whole, phases = [], []
    for variant in measured:
        labels: dict[str, Label] = {
            "model": inspection.model,
            "image": inspection.size,
            **variant.key.labels(),
        }
        metrics = _metrics(variant, inspection)
        base = single.get(replace(variant.key, processes=1))
        if metrics and base is not None and base.samples and variant is not base:
            ratios = variant.ratio(base).values
            metrics[EFFICIENCY] = Quantity(
                tuple(1e2 * ratio / variant.key.processes for ratio in ratios), "%"
            )
        whole.append(ResultRow(labels, metrics, _note(variant, executions)))
        if split := _phases(variant):
            phases.append(ResultRow({**labels, "of": "phases of a step"}, split))
    return [*whole, *phases]


def _common_executions(measured: Sequence[MeasuredVariant]) -> dict[str, str]:
    """Returns how steps were executed, for each framework that executed all its variants alike."""
    executions: dict[str, set[str]] = {}
    for measurements in measured:
        for sample in measurements.samples[:1]:
            executions.setdefault(measurements.key.framework, set()).add(sample["execution"])
    return {framework: kinds.pop() for framework, kinds in executions.items() if len(kinds) == 1}


def _phases(measured: MeasuredVariant) -> dict[str, Quantity]:
    samples = [sample["phases"] for sample in measured.samples if "phases" in sample]
    names = {key: name for key, name in _PHASES.items() if samples and key in samples[0]}
    return {
        name: Quantity(tuple(1e3 * sample[key] for sample in samples), "ms", "less")
        for key, name in names.items()
    }


def _metrics(measured: MeasuredVariant, inspection: Inspection) -> dict[str, Quantity]:
    if not measured.samples:
        return {}
    metrics = {
        name: measured.quantity(key, unit, better, factor)
        for key, (name, factor, unit, better) in _METRICS.items()
        if key in measured.samples[0]
    }
    peak = _peak_rate(measured.key, inspection)
    if isinstance(peak, float) and inspection.multiply_adds is not None:
        shares = [
            1e2 * utilization(rate / measured.key.processes, inspection.multiply_adds, peak)
            for rate in metrics[RATE].values
        ]
        metrics["MFU"] = Quantity(tuple(shares), "%")
    return metrics


def _peak_rate(variant: Variant, inspection: Inspection) -> float | str:
    """Returns the card's peak in 10^12 FLOPs per second, or why MFU cannot be computed."""
    if inspection.device.kind == "cpu":
        return "the peak rate of a CPU is unknown"
    if inspection.multiply_adds is None:
        return "several models train together, and only the multiply-adds of one are known"
    rate = teraflops(inspection.device.card, PRECISIONS[variant.precision].format)
    return rate if isinstance(rate, str) else float(rate)


def _note(measured: MeasuredVariant, executions: dict[str, str]) -> str:
    notes = []
    if measured.samples and measured.key.framework not in executions:
        notes.append(str(measured.samples[0]["execution"]))
    reasons = dict.fromkeys(sample["no_phases"] for sample in measured.samples if "no_phases" in sample)
    notes += [f"phases not timed: {reason}" for reason in reasons]
    return "; ".join([*notes, *([measured.note] if measured.note else [])])


def make_charts(measured: Sequence[MeasuredVariant]) -> list[ChartSpec]:
    """Returns one chart for each axis that was varied."""
    labels = [variant.key.labels() for variant in measured if variant.samples]
    varied = [
        name
        for name in (labels[0] if labels else {})
        if len({row[name] for row in labels}) > 1 and not _follows_framework(name, labels)
    ]
    kinds = tuple(name for name in _SERIES if name in varied)
    charts = []
    for name in [name for name in varied if name not in kinds] or list(kinds[:1]):
        series = tuple(kind for kind in kinds if kind != name)
        where = {other: labels[0][other] for other in varied if other not in (name, *series)}
        charts.append(ChartSpec(f"Training, by {name}", RATE, name, series, where))
        if name == "processes":
            charts.append(ChartSpec("Efficiency against one process", EFFICIENCY, name, series, where))
    return charts


def _follows_framework(name: str, labels: Sequence[dict[str, Label]]) -> bool:
    """Returns whether a label differs between frameworks only: PyTorch uses O1 where we use O2."""
    values: dict[Label, set[Label]] = {}
    for row in labels:
        values.setdefault(row["framework"], set()).add(row[name])
    return name not in _SERIES and all(len(framework_labels) == 1 for framework_labels in values.values())


def find_conclusions(measured: Sequence[MeasuredVariant], inspection: Inspection) -> Iterator[str]:
    """Yields the conclusions, one sentence each."""
    done = [row for row in measured if row.samples]
    if not done:
        yield "Nothing could be measured; each row has the reason."
        return
    fastest = max(done, key=lambda row: row.rate().median)
    yield f"Fastest: {fastest.name}: {fastest.rate().median:.4g} images/s."
    yield from spread_warning(row.rate() for row in done)
    for framework, execution in _common_executions(done).items():
        yield f"{framework} {execution}."
    on_cpu, gpu = inspection.device.kind == "cpu", inspection.device.kind == "gpu"
    if on_cpu and any(row.key.processes > 1 for row in done):
        yield (
            f"All processes share {inspection.device.cores} CPU cores and exchange gradients by gloo: these "
            "figures show the cost of the exchange, not how training scales on GPUs."
        )
    bfloat16 = [row.key for row in done if "bfloat16" in row.key.precision]
    if on_cpu and any(variant.framework == "Paddle" for variant in bfloat16):
        yield "bfloat16 on a CPU rounds, but computes in float32: it shows accuracy, not speed."
    rates = [_peak_rate(row.key, inspection) for row in done]
    for reason in dict.fromkeys(rate for rate in rates if isinstance(rate, str)):
        yield f"No MFU: {reason}."
    if any("phases" in row.samples[0] for row in done):
        waiting = ", which wait for the GPU between phases" if gpu else ""
        yield (
            f"Phases are timed in ordinary steps after the counted ones{waiting}: compare their shares; "
            "their sum may exceed a step."
        )
    if lost := len(measured) - len(done):
        yield f"{lost} of {len(measured)} variants could not be measured; each row has the reason."
