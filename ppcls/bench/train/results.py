"""Makes the result rows and conclusions of the training benchmark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ppcls.bench.measure.runner import Candidate
from ppcls.bench.results.schema import Quantity, ResultRow
from ppcls.bench.train.peak_flops import teraflops, utilization
from ppcls.bench.train.variants import PRECISIONS, Inspection, Variant
from ppcls.errors import counted

MeasuredVariant = Candidate[Variant]
# Names in the results by names of phases.
_PHASES = {"data wait": "data", "all-reduce": "all-reduce not hidden", "host": "rest"}


def make_rows(measured: Sequence[MeasuredVariant], inspection: Inspection) -> list[ResultRow]:
    """Returns one row per variant, followed by one row per variant with the durations of its phases."""
    single = {variant.key: variant for variant in measured if variant.key.processes == 1}
    executions = _common_executions(measured)
    whole = []
    phases = []
    for variant in measured:
        row = variant.row()
        samples = variant.samples
        processes = variant.key.processes
        metrics = dict(row.metrics)
        peak = _peak_rate(variant.key, inspection)
        if samples and isinstance(peak, float) and inspection.multiply_adds is not None:
            rates = [rate / processes for rate in variant.rate.values]
            shares = [utilization(rate, inspection.multiply_adds, peak) for rate in rates]
            metrics["MFU"] = Quantity(tuple(1e2 * share for share in shares), "%")
        base = single.get(replace(variant.key, processes=1))
        if samples and base is not None and base.samples and variant is not base:
            ratios = variant.ratio(base).values
            metrics["efficiency"] = Quantity(tuple(1e2 * ratio / processes for ratio in ratios), "%")
        notes = [samples[0]["execution"]] if samples and variant.key.framework not in executions else []
        reasons = dict.fromkeys(sample["no_phases"] for sample in samples if "no_phases" in sample)
        notes += [f"phases not timed: {reason}" for reason in reasons]
        note = "; ".join([*notes, *([row.note] if row.note else [])])
        whole.append(ResultRow(row.labels, metrics, note))
        if split := [sample["phases"] for sample in samples if "phases" in sample]:
            milliseconds = {
                _PHASES.get(name, name): Quantity(tuple(1e3 * times[name] for times in split), "ms", "less")
                for name in split[0]
            }
            phases.append(ResultRow({**row.labels, "of": "phases of a step"}, milliseconds))
    return [*whole, *phases]


def add_epochs(rows: Sequence[ResultRow], epochs: int | None, images: int) -> list[ResultRow]:
    """Returns the rows with the seconds for a number of epochs, computed from the images per second.

    Args:
        rows: Rows of variants.
        epochs: Number of epochs; None to return the rows unchanged.
        images: Number of images in an epoch.
    """
    if epochs is None:
        return list(rows)
    unit = f"s for {counted(epochs, 'epoch')}"
    return [
        replace(
            row,
            metrics={
                "time": Quantity(tuple(epochs * images / rate for rate in speed.values), unit, "less"),
                **row.metrics,
            },
        )
        if (speed := row.metrics.get("images/s")) is not None
        else row
        for row in rows
    ]


def _common_executions(measured: Sequence[MeasuredVariant]) -> dict[str, str]:
    """Returns how steps were executed, for each framework that executed all variants in the same way."""
    executions: dict[str, set[str]] = {}
    for variant in measured:
        for sample in variant.samples[:1]:
            executions.setdefault(variant.key.framework, set()).add(sample["execution"])
    return {framework: kinds.pop() for framework, kinds in executions.items() if len(kinds) == 1}


def _peak_rate(variant: Variant, inspection: Inspection) -> float | str:
    """Returns the GPU's peak rate in 10^12 FLOPs per second, or the reason why MFU cannot be computed."""
    if inspection.device == "cpu":
        return "the peak rate of a CPU is unknown"
    if inspection.multiply_adds is None:
        return "several models are trained together, and their total multiply-adds are unknown"
    rate = teraflops(inspection.card, PRECISIONS[variant.precision].format)
    return rate if isinstance(rate, str) else float(rate)


def explain_rows(measured: Sequence[MeasuredVariant], inspection: Inspection) -> Iterator[str]:
    """Yields sentences that explain how steps were executed and what the values mean."""
    done = [row for row in measured if row.samples]
    for framework, execution in _common_executions(done).items():
        yield f"{framework} {execution}."
    on_cpu = inspection.device == "cpu"
    if any(row.key.processes > 1 for row in measured):
        yield (
            "Several processes train data-parallel, with one process per GPU (DDP). Paddle has no data "
            "parallelism in a single process (DP, as torch.nn.DataParallel). DDP replaces it: in a single "
            "process, Python and the copies of weights and outputs between GPUs limit the speed."
        )
    if on_cpu and any(row.key.processes > 1 for row in done):
        yield (
            f"All processes share {inspection.cores} CPU cores and exchange gradients with Gloo: the results "
            "show the cost of the exchange, not how training scales on GPUs."
        )
    if on_cpu and any("bfloat16" in row.key.precision and row.key.framework == "Paddle" for row in done):
        yield (
            "On a CPU, bfloat16 is emulated: values are rounded to bfloat16, but computed in float32, so the "
            "speed is not meaningful."
        )
    rates = [_peak_rate(row.key, inspection) for row in done]
    for reason in dict.fromkeys(rate for rate in rates if isinstance(rate, str)):
        yield f"No MFU: {reason}."
    if any("phases" in row.samples[0] for row in done):
        waiting = "" if on_cpu else ", which wait for the GPU between phases"
        yield (
            f"Phases are timed in additional eager steps{waiting}. Compare the shares of the phases; their "
            "sum may exceed the duration of a measured step."
        )
