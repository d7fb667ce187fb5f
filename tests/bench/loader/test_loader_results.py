"""Rows, charts and conclusions of loaders."""

from __future__ import annotations

import pytest

from ppcls.bench.loader import quick
from ppcls.bench.loader.advice import Choice
from ppcls.bench.loader.results import find_conclusions, loader_metrics
from ppcls.bench.loader.settings import BEST, PRESENT, LoaderSetting
from ppcls.bench.loader.sweep import SweepResult
from ppcls.bench.measure.runner import Key, Measurements
from ppcls.bench.measure.usage import ResourceUsage

SETTING = LoaderSetting("DALI CPU", "config", 2, 4)


def measured(key: Key, *rates: float, usage: ResourceUsage | None = None) -> Measurements[Key]:
    used = usage or ResourceUsage(2.0)
    samples = [{"images_per_second": rate, "images": 1000, "usage": used} for rate in rates]
    return Measurements(key, str(key), samples)


def test_loader_metrics_of_a_cpu() -> None:
    metrics = loader_metrics(measured("x", 200.0, 300.0), image_bytes=50_000)
    assert {name: (metric.values, metric.unit) for name, metric in metrics.items()} == {
        "throughput": ((200.0, 300.0), "images/s"),
        "data": ((10.0, 15.0), "MB/s"),
        "CPU": ((2.0, 2.0), "s/1,000 images"),
    }
    assert metrics["CPU"].better == "less"


def test_loader_metrics_of_a_gpu() -> None:
    metrics = loader_metrics(measured("x", 10.0, usage=ResourceUsage(1.0, 0.93, 0.5, 2048)), 1.0)
    gpu = {name: metric.values for name, metric in metrics.items() if name.startswith(("GPU", "JPEG"))}
    assert gpu == {"GPU load": (pytest.approx(93.0),), "JPEG engine": (50.0,), "GPU memory": (2048.0,)}
    idle = loader_metrics(measured("x", 10.0, usage=ResourceUsage(1.0, 0.0, 0.0, 2048)), 1.0)
    assert "GPU load" in idle
    assert "JPEG engine" not in idle, "the load of an unused decoder is left out"


def result(
    best: Measurements[str], present: Measurements[str] | None, setting: LoaderSetting = SETTING
) -> SweepResult:
    choice = Choice(setting, setting if present is None else LoaderSetting("paddle.io", "config", 4))
    rates = {"disk": 9000, "decode": 1000, "transform": 3000, "hand-over": 8000}
    finals = {name: measured(name, rate) for name, rate in rates.items()} | {BEST: best}
    if present is not None:
        finals[PRESENT] = present
    return SweepResult([], choice, finals)


def test_find_conclusions_names_bottleneck_and_setting() -> None:
    setting, (bottleneck, advice) = find_conclusions(
        result(measured(BEST, 800, 820), measured(PRESENT, 400, 410))
    )
    assert setting == SETTING
    assert bottleneck.startswith("The bottleneck is decode: 1,000 images/s alone (disk 9,000")
    assert advice.startswith("Use DALI CPU, 2 threads, prefetch 4: 2.00 times the images/s")


def test_find_conclusions_without_a_better_setting_keeps_the_present_one() -> None:
    setting, (_, advice) = find_conclusions(result(measured(BEST, 800, 820), None))
    assert setting == SETTING
    assert advice.startswith("Keep the present setting (DALI CPU, 2 threads, prefetch 4)")


def test_find_conclusions_names_a_busy_gpu() -> None:
    busy = measured(BEST, 800, 820, usage=ResourceUsage(1.0, 0.95))
    gpu = LoaderSetting("DALI GPU", "config", 2, 4)
    _, (bottleneck, _) = find_conclusions(result(busy, measured(PRESENT, 700, 700), gpu))
    assert bottleneck.startswith("The bottleneck is the GPU, busy 95% of the time, with decode")


@pytest.mark.parametrize(
    ("interrupt", "text"), [(KeyboardInterrupt(), "Interrupted:"), (None, "The config's chain was not")]
)
def test_find_conclusions_of_an_incomplete_sweep_recommends_nothing(
    interrupt: KeyboardInterrupt | None, text: str
) -> None:
    setting, sentences = find_conclusions(SweepResult([measured(SETTING, 100, 180)], interrupt=interrupt))
    assert setting is None
    assert sentences[0].startswith("Runs of the same candidate differ by")
    assert sentences[1].startswith(text)


def test_quick_rows_and_conclusions_compare_with_the_bare_pipeline() -> None:
    names = ("bare DALI pipeline", "ppcls, DALI", "ppcls, paddle.io, 2 workers")
    rounds = [measured(name, *rates) for name, rates in zip(names, [(100, 50), (110, 55), ()], strict=True)]
    bare, ours, lost = quick.make_rows(rounds)
    assert bare.labels == {"loader": "bare DALI pipeline"}
    assert ours.metrics["of bare DALI pipeline"].values == pytest.approx((1.1, 1.1))
    assert lost.metrics == {}
    paddle = measured(names[2], 55, 11)
    assert list(quick.find_conclusions([*rounds[:2], paddle])) == [
        "ppcls, DALI is 3.50 times as fast as ppcls, paddle.io, 2 workers"
    ]
    assert list(quick.find_conclusions(rounds)) == []
