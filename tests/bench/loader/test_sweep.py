"""The sweep's choice, with scripted rates instead of loaders; conclusions of the quick benchmark."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from benchmark_images import PHOTOS, write_images
from finished_candidates import finished

from ppcls.bench.loader import sweep
from ppcls.bench.loader.runners import BatchTimer, Loaders
from ppcls.bench.loader.settings import LoaderSetting
from ppcls.bench.loader.sweep import LoaderSweep, best_of, compare_loaders
from ppcls.bench.loader.workload import LoaderWorkload, read_workload
from ppcls.bench.measure.runner import Candidate, MeasurementFailed, Sample, run_rounds
from ppcls.bench.measure.usage import UsageMeter
from ppcls.bench.results.schema import Label
from ppcls.recipe.load import load_config
from ppcls.runtime.start import Runtime

Rates = Callable[[LoaderSetting], float]


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> LoaderWorkload:
    config = load_config(PHOTOS, write_images(tmp_path_factory.mktemp("images")))
    split = config.DataLoader.need_train()
    return read_workload(split, config.Arch, config.Global, Runtime(cores=4, threads=2), 100)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, workload: LoaderWorkload) -> Callable[[Rates], LoaderSweep]:
    """Returns a function that makes a sweep with these images per second; 0 is a failure."""

    def measure(rates: Rates, setting: LoaderSetting) -> Sample:
        if (rate := rates(setting)) == 0:
            raise MeasurementFailed("no memory")
        return {"images_per_second": rate}

    def make(rates: Rates) -> LoaderSweep:
        def candidate(
            setting: LoaderSetting,
            _workload: object,
            _timer: object,
            name: str = "",
            labels: dict[str, Label] | None = None,
        ) -> Candidate[LoaderSetting]:
            kept = setting.labels() if labels is None else labels
            return Candidate(setting, name or setting.describe(), partial(measure, rates, setting), kept)

        monkeypatch.setattr(sweep, "loader_candidate", candidate)

        def measure_rounds(candidates: Loaders) -> None:
            assert run_rounds(candidates, 2, lambda _: None) is None

        disk = partial(measure, lambda _: 500.0, LoaderSetting("DALI CPU", 1, stage="disk"))
        monkeypatch.setattr(
            sweep,
            "reading_candidate",
            lambda _, key, *__, **___: Candidate(key, "disk", disk, {"up to": "disk, cold", "of": ""}),
        )
        timer = BatchTimer(1.0, UsageMeter(), lambda: None)
        return LoaderSweep(workload, timer, measure_rounds)

    return make


def dali_rate(setting: LoaderSetting) -> float:
    """Returns rates that are best for two threads, two prefetched batches and whole images."""
    if setting.stage != "hand-over":
        return {"disk": 9000.0, "decode": 1000.0, "transform": 900.0}[setting.stage]
    rate = {1: 300.0, 2: 600.0, 4: 605.0}[setting.workers]
    if setting.prefetch is not None:
        rate += {1: -200, 2: 10, 4: 10, 8: 11}[setting.prefetch]
    return rate + (200 if setting.dali else 0) if setting.backend == "DALI CPU" else rate / 3


def test_sweep_combines_the_best_value_of_each_axis(scripted: Callable[[Rates], LoaderSweep]) -> None:
    found = scripted(dali_rate)
    setting, (bottleneck, disk, advice) = found.run((1, 2, 4), (1, 2, 4))
    assert setting is not None
    assert setting.describe() == "DALI CPU, 2 threads, prefetch 2, decoder whole"
    assert bottleneck.startswith("The bottleneck is decode: ")
    assert "The disk reads only 500 images/s, so it is the bottleneck in a first epoch" in disk
    assert advice.startswith("Use DALI CPU, 2 threads, prefetch 2, decoder whole: 1.31 times the images/s")
    rows = [each.row() for each in found.candidates]
    assert [row.labels["up to"] for row in rows if "up to" in row.labels] == [
        "disk",
        "decode",
        "transform",
        "disk, cold",
    ]
    best = next(row for row in rows if row.labels.get("setting") == "best found")
    assert best.metrics["of present"].values == pytest.approx((810 / 616, 810 / 616))
    assert "of bare DALI" in rows[0].metrics


def test_sweep_prefers_paddle_io_if_it_is_faster(scripted: Callable[[Rates], LoaderSweep]) -> None:
    setting, _ = scripted(lambda s: 2000.0 if s.backend == "paddle.io" else dali_rate(s)).run((1,), (0, 2))
    assert setting == LoaderSetting("paddle.io", 0)


def test_sweep_keeps_a_present_setting_that_is_as_good(scripted: Callable[[Rates], LoaderSweep]) -> None:
    setting, (_, disk, advice) = scripted(lambda s: 100.0).run((1, 2, 4), (1,))
    assert "no bottleneck: it reads 500 images/s, and the loader could use 100" in disk
    assert advice.startswith("Keep the present setting (DALI CPU, 4 threads, prefetch 8): ")
    assert setting is not None
    assert setting.workers == 4


def test_sweep_without_a_loader_that_works_recommends_nothing(
    scripted: Callable[[Rates], LoaderSweep],
) -> None:
    found = scripted(lambda s: 100.0 if s.backend == "bare DALI" else 0.0)
    setting, (sentence,) = found.run((1,), (0,))
    assert setting is None
    assert "no setting is recommended" in sentence
    assert [each.row().note for each in found.candidates] == ["", "no memory", "no memory"]


def test_sweep_best_setting_that_fails_later_recommends_nothing(
    scripted: Callable[[Rates], LoaderSweep],
) -> None:
    setting, (sentence,) = scripted(lambda s: 100.0 if s.stage == "hand-over" else 0.0).run((1,), (0,))
    assert setting is None
    assert sentence.startswith("The best setting was not measured completely")


def measured(
    name: str, *rates: float, reason: str = "", backend: str = "DALI CPU"
) -> Candidate[LoaderSetting]:
    samples = [{"images_per_second": rate} for rate in rates]
    key = LoaderSetting(backend, int(name))  # type: ignore[arg-type]
    return finished(key, name, samples, reason)


def test_best_of_ignores_failures_and_other_backends() -> None:
    found = [
        measured("1", 300),
        measured("2", 590, 600, 610),
        measured("4", 605),
        measured("8", 9000, reason="out of memory"),
        measured("16", 9000, backend="paddle.io"),
    ]
    best = best_of(found, "DALI CPU")
    assert best is not None
    assert best.workers == 2
    assert best_of(found, "DALI GPU") is None


def test_compare_loaders_takes_rounds_in_pairs() -> None:
    names = ("bare DALI pipeline", "ppcls, DALI", "ppcls, paddle.io, 2 workers")
    found = [
        finished(LoaderSetting("DALI CPU", 1), name, [{"images_per_second": rate} for rate in rates])
        for name, rates in zip(names, [(100, 50), (110, 55), ()], strict=True)
    ]
    assert list(compare_loaders(found)) == []
    found[2].samples = [{"images_per_second": rate} for rate in (55, 11)]
    assert list(compare_loaders(found)) == [
        "ppcls, DALI has 4 times (2 to 5) the images/s of ppcls, paddle.io, 2 workers."
    ]
