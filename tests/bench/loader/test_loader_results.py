"""Rows, charts and sentences of what was measured."""

from __future__ import annotations

import pytest

from ppcls.bench.loader.choice import Choice
from ppcls.bench.loader.contender import Contender
from ppcls.bench.loader.results import charts, conclude, metrics_of, quick_rows, ratios, warn_of_noise
from ppcls.bench.loader.rounds import Run
from ppcls.bench.loader.sweep import BEST, PRESENT, Measured
from ppcls.bench.loader.timing import Speed
from ppcls.bench.measure.usage import Usage


def runs(*rates: int, load: float | None = None) -> list[Run]:
    return [Run(rate, 1.0, Usage(2.0, load, None, None if load is None else 500)) for rate in rates]


def test_metrics_of_a_cpu() -> None:
    found = metrics_of([Run(400, 2.0, Usage(0.8)), Run(600, 2.0, Usage(0.6))], image_bytes=50_000)
    assert {name: (metric.values, metric.unit) for name, metric in found.items()} == {
        "throughput": ((200.0, 300.0), "images/s"),
        "data": ((10.0, 15.0), "MB/s"),
        "CPU": ((2.0, 1.0), "s/1,000 images"),
    }
    assert found["CPU"].better == "less"


def test_metrics_of_a_gpu() -> None:
    usage = Usage(1.0, 0.93, 0.5, 2048)
    found = metrics_of([Run(10, 1.0, usage)], 1.0)
    assert {name: metric.values for name, metric in found.items() if name.startswith(("GPU", "JPEG"))} == {
        "GPU load": (pytest.approx(93.0),),
        "JPEG engine": (50.0,),
        "GPU memory": (2048.0,),
    }
    idle = metrics_of([Run(10, 1.0, Usage(1.0, 0.0, 0.0, 2048))], 1.0)
    assert "JPEG engine" not in idle, "a decoder that is not used says nothing"


def test_ratios_are_of_a_round() -> None:
    assert ratios(runs(100, 50), runs(50, 100)).values == (2.0, 0.5)


def measured(best: list[Run], now: list[Run] | None, backend: str = "DALI CPU") -> Measured:
    chosen = Contender(backend, "config", 2, 4)  # type: ignore[arg-type]
    choice = Choice(chosen, chosen if now is None else Contender("paddle.io", "config", 4))
    stages = {"disk": runs(9000), "decode": runs(1000), "transform": runs(3000), "hand-over": runs(8000)}
    finals = {BEST: best} if now is None else {BEST: best, PRESENT: now}
    return Measured({chosen: best}, (), choice, finals, stages)


def test_the_conclusion_names_bottleneck_and_setting() -> None:
    setting, (bottleneck, advice) = conclude(measured(runs(800, 820), runs(400, 410)))
    assert setting == Contender("DALI CPU", "config", 2, 4)
    assert bottleneck.startswith("The bottleneck is decode: alone it makes 1,000 images/s (disk 9,000")
    assert advice.startswith("Use DALI CPU, 2 threads, prefetch 4: 2.00 times the images/s")


def test_without_a_better_setting_the_present_one_stays() -> None:
    setting, (_, advice) = conclude(measured(runs(800, 820), None))
    assert setting == Contender("DALI CPU", "config", 2, 4)
    assert advice.startswith("Keep the present setting (DALI CPU, 2 threads, prefetch 4)")


def test_a_busy_gpu_is_named() -> None:
    _, (bottleneck, _) = conclude(measured(runs(800, 820, load=0.95), runs(700, 700), "DALI GPU"))
    assert bottleneck.startswith("The bottleneck is the GPU, busy 95% of the time, by decode")


def test_what_ran_before_an_interrupt_tells_no_setting() -> None:
    assert ratios(runs(100, 90), runs(50)).values == (2.0,)
    ours = Contender("DALI CPU", "config", 2)
    setting, (sentence,) = conclude(Measured({ours: runs(100, 90)}, (), None, {}, {}, interrupted=True))
    assert setting is None
    assert sentence.startswith("Interrupted:")


def test_noise_is_named() -> None:
    quiet, busy = runs(100, 104, 98), runs(100, 160, 80)
    names = [Contender("DALI CPU", "config", each) for each in range(3)]
    assert warn_of_noise(Measured(dict.fromkeys(names, quiet), (), None, {}, {})) == []
    assert warn_of_noise(Measured({}, (), None, {}, {})) == []
    mixed = {names[0]: quiet, names[1]: busy, names[2]: busy}
    (sentence,) = warn_of_noise(Measured(mixed, (), None, {}, {}))
    assert sentence.startswith("Runs of one and the same setting differ by ±40% here: other work")


def test_nothing_is_concluded_from_nothing() -> None:
    setting, (sentence,) = conclude(Measured({}, (), None, {}, {}))
    assert setting is None
    assert "was not measured" in sentence


def test_charts_tell_cold_from_warm_where_both_are_there() -> None:
    warm = Contender("DALI CPU", "config", 2)
    only = Measured({warm: runs(1)}, (), None, {}, {})
    both = Measured({warm: runs(1), Contender("DALI CPU", "config", 2, cold=True): runs(1)}, (), None, {}, {})
    assert charts(only)[0].series == ("backend",)
    assert charts(both)[0].series == ("backend", "cache")


def test_rows_in_short() -> None:
    bare, ours = quick_rows([Speed("bare", (100.0,), (1.0,)), Speed("ours", (110.0,), (1.1,))])
    assert bare.labels == {"contender": "bare"}
    assert ours.metrics["of bare"].values == (1.1,)
