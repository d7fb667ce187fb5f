"""Rows, charts and conclusions of the loader sweep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ppcls.bench.loader.advice import advise, find_bottleneck
from ppcls.bench.loader.settings import BEST, PRESENT, STAGES, LoaderSetting, Stage
from ppcls.bench.loader.workload import Chain
from ppcls.bench.measure.runner import Measurements
from ppcls.bench.results.schema import ChartSpec, Label, Quantity, ResultRow, spread_warning

if TYPE_CHECKING:  # only for annotations
    from ppcls.bench.loader.sweep import SweepResult

THROUGHPUT = "throughput"
_CHAINS: dict[Chain, str] = {
    "read": "reading alone",
    "config": "the config's chain",
}


def make_rows(result: SweepResult, image_bytes: float) -> list[ResultRow]:
    """Returns a row for each setting, then for best and present setting, then for each stage."""
    bare = {
        measurements.key.chain: measurements
        for measurements in result.sweep
        if measurements.key.backend == "bare DALI"
    }
    rows = []
    for measurement in result.sweep:
        metrics = loader_metrics(measurement, image_bytes)
        base = bare.get(measurement.key.chain)
        if metrics and base is not None and base.samples:
            metrics["of bare DALI"] = measurement.ratio(base)
        rows.append(ResultRow(measurement.key.labels(), metrics, measurement.note))
    if result.choice is None:
        return rows
    finals = result.finals
    for name, setting in ((BEST, result.choice.best), (PRESENT, result.choice.present)):
        if name in finals:
            metrics = loader_metrics(finals[name], image_bytes)
            if PRESENT in finals:
                metrics["of present"] = finals[name].ratio(finals[PRESENT])
            rows.append(ResultRow({"setting": name, "of": setting.describe()}, metrics))
    for stage, name in [*((stage, stage) for stage in STAGES), ("all together", BEST)]:
        labels: dict[str, Label] = {"stage": stage, "of": result.choice.best.describe()}
        rows.append(ResultRow(labels, loader_metrics(finals[name], image_bytes)))
    return rows


def loader_metrics(measured: Measurements[Any], image_bytes: float) -> dict[str, Quantity]:
    """Returns speed and resource usage of a loader; nothing if it was not measured.

    Args:
        measured: Measurements of `ppcls.bench.loader.runners.BatchTimer`.
        image_bytes: Mean size of an encoded image.
    """
    if not measured.samples:
        return {}
    usages = [(sample["usage"], sample["images"]) for sample in measured.samples]
    cpu = tuple(1000 * usage.cpu_seconds / images for usage, images in usages)
    metrics = {
        THROUGHPUT: measured.rate(),
        "data": measured.quantity("images_per_second", "MB/s", factor=image_bytes / 1e6),
        "CPU": Quantity(cpu, "s/1,000 images", "less"),
    }
    gpu = [100 * usage.gpu_load for usage, _ in usages if usage.gpu_load is not None]
    jpeg = [100 * usage.jpeg_load for usage, _ in usages if usage.jpeg_load is not None]
    memory = [float(usage.gpu_memory) for usage, _ in usages if usage.gpu_memory is not None]
    if gpu:
        metrics["GPU load"] = Quantity(tuple(gpu), "%", "neither")
    if any(jpeg):
        metrics["JPEG engine"] = Quantity(tuple(jpeg), "%", "neither")
    if memory:
        metrics["GPU memory"] = Quantity(tuple(memory), "MiB", "less")
    return metrics


def make_charts() -> list[ChartSpec]:
    """Returns the charts of a sweep; those without rows are not drawn."""

    def chart(title: str, x: str, metric: str = THROUGHPUT, **where: Label) -> ChartSpec:
        return ChartSpec(title, metric, x, ("backend",), where)

    return [
        *(
            chart(f"By threads or workers: {text}", "workers", varied="workers", chain=name)
            for name, text in _CHAINS.items()
        ),
        chart("CPU time, the config's chain", "workers", "CPU", varied="workers", chain="config"),
        chart("By prefetched batches", "prefetch", varied="prefetch"),
        chart("By settings of the decoder", "decoder", varied="decoder"),
        ChartSpec("Each stage alone", THROUGHPUT, "stage"),
    ]


def find_conclusions(result: SweepResult) -> tuple[LoaderSetting | None, list[str]]:
    """Returns the setting to use, None if unknown, and sentences about noise, bottleneck and setting."""
    noise = spread_warning(measurement.rate() for measurement in result.sweep if measurement.samples)
    noise = [f"{warning} CPU time is affected least." for warning in noise]
    if result.interrupt is not None:
        return None, [
            *noise,
            "Interrupted: no setting is recommended; the figures are those measured before.",
        ]
    if result.choice is None:
        return None, [*noise, "The config's chain was not measured completely, so no setting is recommended."]
    best, present = result.finals[BEST], result.finals.get(PRESENT)
    stages: Mapping[Stage, float] = {stage: result.finals[stage].rate().median for stage in STAGES}
    loads = [sample["usage"].gpu_load for sample in best.samples]
    loads = [load for load in loads if load is not None]
    limit = find_bottleneck(
        stages,
        best.rate().median,
        on_gpu=result.choice.best.backend == "DALI GPU",
        gpu_load=Quantity(tuple(loads), "").median if loads else None,
    )
    setting, advice = advise(result.choice, None if present is None else best.ratio(present))
    return setting, [*noise, limit.text, advice]
