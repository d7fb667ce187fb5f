"""What the loaders' benchmark measured, as rows, charts and sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ppcls.bench.loader.bottleneck import STAGES, Stage, find_bottleneck
from ppcls.bench.loader.choice import advise
from ppcls.bench.loader.contender import Contender
from ppcls.bench.loader.rounds import Run
from ppcls.bench.loader.subject import Chain, Subject
from ppcls.bench.loader.sweep import BEST, PRESENT, Measured
from ppcls.bench.loader.timing import Speed
from ppcls.bench.results.noise import warn_of_spread
from ppcls.bench.results.results import Chart, Label, Metric, Row

ALL = "all together"
_THROUGHPUT = "throughput"
QUICK_CHARTS = (Chart("Each loader", _THROUGHPUT, "contender"),)
_CHAINS: dict[Chain, str] = {
    "read": "read",
    "decode": "read and decode",
    "crop": "read, decode, resize, crop",
    "config": "the config's chain",
}


def rows(measured: Measured, subject: Subject) -> list[Row]:
    """Returns a row for each contender, those of the last rounds, and each stage."""
    size, sweep = subject.image_bytes, measured.sweep
    ceilings = {(each.chain, each.cold): runs for each, runs in sweep.items() if each.backend == "bare DALI"}
    found = []
    for each, runs in sweep.items():
        metrics = metrics_of(runs, size)
        if (ceiling := ceilings.get((each.chain, each.cold))) is not None:
            metrics["of bare DALI"] = ratios(runs, ceiling)
        found.append(Row(each.labels(), metrics))
    found += [Row(each.labels(), {}, reason) for each, reason in measured.missing]
    if measured.choice is None:
        return found
    settings = {BEST: measured.choice.best, PRESENT: measured.choice.present}
    for name, runs in measured.finals.items():
        metrics = metrics_of(runs, size)
        if PRESENT in measured.finals:
            metrics["of present"] = ratios(runs, measured.finals[PRESENT])
        found.append(Row({"setting": name, **_described(settings[name])}, metrics))
    stages: list[tuple[str, list[Run]]] = [(name, measured.stages[name]) for name in STAGES]
    for name, runs in [*stages, (ALL, measured.finals[BEST])]:
        labels: dict[str, Label] = {"stage": name, **_described(measured.choice.best)}
        found.append(Row(labels, metrics_of(runs, size)))
    return found


def _described(contender: Contender) -> dict[str, Label]:
    return {"of": contender.describe(), "cache": "cold" if contender.cold else "warm"}


def metrics_of(runs: Sequence[Run], image_bytes: float) -> dict[str, Metric]:
    """Returns what runs made and took, as metrics.

    Args:
        runs: A round each.
        image_bytes: Mean size of an encoded image.
    """
    found = {
        _THROUGHPUT: Metric(tuple(each.rate for each in runs), "images/s"),
        "data": Metric(tuple(each.rate * image_bytes / 1e6 for each in runs), "MB/s"),
        "CPU": Metric(
            tuple(1000 * each.usage.cpu_seconds / each.images for each in runs), "s/1,000 images", "less"
        ),
    }
    for name, values, unit in (
        ("GPU load", [_percent(each.usage.gpu_load) for each in runs], "%"),
        ("JPEG engine", [_percent(each.usage.jpeg_load) for each in runs], "%"),
        ("GPU memory", [each.usage.gpu_memory for each in runs], "MiB"),
    ):
        known = [float(each) for each in values if each is not None]
        if known and (name != "JPEG engine" or any(known)):
            found[name] = Metric(tuple(known), unit, "less" if unit == "MiB" else "neither")
    return found


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def ratios(runs: Sequence[Run], base: Sequence[Run]) -> Metric:
    """Returns the rates of runs over those of others in the same rounds."""
    pairs = zip(runs, base, strict=False)  # an interrupt may have cost one of them its last round
    return Metric(tuple(each.rate / other.rate for each, other in pairs), "")


def charts(measured: Measured) -> list[Chart]:
    """Returns the charts of a sweep; those for which nothing was measured are not drawn."""
    series = ("backend", "cache") if any(each.cold for each in measured.sweep) else ("backend",)
    most = max((each.workers for each in measured.sweep if each.varied == "workers"), default=0)

    def chart(title: str, x: str, metric: str = _THROUGHPUT, **where: Label) -> Chart:
        return Chart(title, metric, x, series, where)

    return [
        *(
            chart(f"By threads or workers: {text}", "workers", varied="workers", chain=name)
            for name, text in _CHAINS.items()
        ),
        chart(f"By chain, {most} threads or workers", "chain", varied="workers", workers=most),
        chart("CPU time, the config's chain", "workers", "CPU", varied="workers", chain="config"),
        chart("By batches made ahead", "prefetch", varied="prefetch"),
        chart("By the decoder's settings", "decoder", varied="decoder"),
        Chart("Each stage alone", _THROUGHPUT, "stage"),
    ]


def warn_of_noise(measured: Measured) -> list[str]:
    """Returns a sentence where runs of one setting differ much; else nothing."""
    rates = (Metric(tuple(run.rate for run in runs), "") for runs in measured.sweep.values())
    return [f"{warning} CPU time suffers least." for warning in warn_of_spread(rates)]


def conclude(measured: Measured) -> tuple[Contender | None, list[str]]:
    """Returns the setting to use, None where nothing tells, and sentences: the bottleneck, the setting."""
    if measured.interrupted:
        return None, ["Interrupted: no setting is known as best, and figures are of what had run by then."]
    if measured.choice is None:
        return None, [
            "The config's chain was not measured, or not to the end, so no setting is known as best."
        ]
    best = measured.finals[BEST]
    stages: Mapping[Stage, float] = {name: _median(measured.stages[name]) for name in STAGES}
    loads = [each.usage.gpu_load for each in best if each.usage.gpu_load is not None]
    verdict = find_bottleneck(
        stages,
        _median(best),
        on_gpu=measured.choice.best.backend == "DALI GPU",
        gpu_load=Metric(tuple(loads), "").median if loads else None,
    )
    against = measured.finals.get(PRESENT)
    setting, advice = advise(measured.choice, None if against is None else ratios(best, against))
    return setting, [verdict.text, advice]


def _median(runs: Sequence[Run]) -> float:
    return Metric(tuple(each.rate for each in runs), "images/s").median


def quick_rows(speeds: Sequence[Speed]) -> list[Row]:
    """Returns the rows of the benchmark in short."""
    first = speeds[0].name
    return [
        Row(
            {"contender": each.name},
            {_THROUGHPUT: Metric(each.rates, "images/s"), f"of {first}": Metric(each.ratios, "")},
        )
        for each in speeds
    ]
