"""From a sweep to the setting to use."""

from __future__ import annotations

import pytest
from paths import ROOT

from ppcls.bench.loader.choice import Choice, advise, choose, present, values_of
from ppcls.bench.loader.contender import Contender
from ppcls.bench.loader.rounds import Run
from ppcls.bench.measure.usage import Usage
from ppcls.bench.results.results import Metric
from ppcls.config.load import load_config
from ppcls.runtime.start import Runtime

PHOTOS = ROOT / "configs" / "ResNet50_photos.yaml"
NOW = Contender("DALI CPU", "config", 4, 4)
WHOLE = {"decode": "whole"}


def runs(*rates: int) -> list[Run]:
    return [Run(rate, 1.0, Usage(1.0)) for rate in rates]


SWEEP = {
    Contender("read only", "read", 4): runs(9000),
    Contender("bare DALI", "config", 4): runs(9000),
    Contender("DALI CPU", "crop", 1): runs(9000),
    Contender("DALI CPU", "config", 1): runs(300),
    Contender("DALI CPU", "config", 2): runs(590, 600, 610),
    Contender("DALI CPU", "config", 4): runs(605),
    Contender("DALI CPU", "config", 4, 1, varied="prefetch"): runs(400),
    Contender("DALI CPU", "config", 4, 2, varied="prefetch"): runs(606),
    Contender("DALI CPU", "config", 4, 8, varied="prefetch"): runs(608),
    Contender("DALI CPU", "config", 4, varied="decoder"): runs(605),
    Contender("DALI CPU", "config", 4, decoder="whole", dali=WHOLE, varied="decoder"): runs(700),
    Contender("paddle.io", "config", 0): runs(200),
    Contender("paddle.io", "config", 2): runs(500),
    Contender("paddle.io", "config", 4): runs(400),
}
BEST = Contender("DALI CPU", "config", 2, 2, "whole", WHOLE)


def test_the_best_of_each_setting_is_put_together() -> None:
    choice = choose(SWEEP, NOW, "DALI CPU")
    assert choice is not None
    assert choice.best.describe() == BEST.describe()
    assert choice.best.dali == WHOLE
    assert (choice.present, choice.same) == (NOW, False)


def test_paddle_io_where_that_is_faster() -> None:
    sweep = {each: runs(100) if each.backend == "DALI CPU" else found for each, found in SWEEP.items()}
    choice = choose(sweep, NOW, "DALI CPU")
    assert choice is not None
    assert choice.best == Contender("paddle.io", "config", 2)


def test_what_a_config_can_not_ask_for_is_not_chosen() -> None:
    choice = choose(SWEEP, NOW, "DALI GPU")
    assert choice is not None
    assert choice.best.backend == "paddle.io"
    assert choose({each: SWEEP[each] for each in list(SWEEP)[:3]}, NOW, "DALI CPU") is None


def test_a_cold_cache_is_judged_by_itself() -> None:
    cold = Contender("DALI CPU", "config", 1, cold=True)
    choice = choose({**SWEEP, cold: runs(10)}, Contender("DALI CPU", "config", 4, 4, cold=True), "DALI CPU")
    assert choice is not None
    assert (choice.best.workers, choice.best.cold, choice.best.prefetch) == (1, True, 4)


def test_without_threads_varied_they_stay() -> None:
    sweep = {each: found for each, found in SWEEP.items() if each.varied == "prefetch"}
    choice = choose(sweep, NOW, "DALI CPU")
    assert choice is not None
    assert choice.best.describe() == "DALI CPU, 4 threads, prefetch 2"


def test_the_present_setting_is_what_auto_means() -> None:
    config = load_config(PHOTOS)
    split = config.DataLoader.Train
    assert split is not None
    assert present(config, split, Runtime(cores=6), cold=False) == Contender("DALI CPU", "config", 6, 8)
    by_paddle = load_config(PHOTOS, ["Global.use_dali=False"])
    assert present(by_paddle, split, Runtime(cores=6), cold=True) == Contender(
        "paddle.io", "config", 4, cold=True
    )


def test_values_of_a_config() -> None:
    assert values_of(BEST) == {
        "Global.use_dali": True,
        "DataLoader.Train.loader.dali.num_threads": 2,
        "DataLoader.Train.loader.dali.prefetch_queue_depth": 2,
        "DataLoader.Train.loader.dali.decode": "whole",
    }
    assert values_of(Contender("paddle.io", "config", 3)) == {
        "Global.use_dali": False,
        "DataLoader.Train.loader.num_workers": 3,
    }
    for setting in (BEST, Contender("paddle.io", "config", 3)):
        load_config(PHOTOS, [f"{name}={value}" for name, value in values_of(setting).items()])


@pytest.mark.parametrize(
    ("ratios", "setting", "said"),
    [
        (None, NOW, "Keep the present setting (DALI CPU, 4 threads, prefetch 4): nothing else"),
        ((0.9, 1.1), NOW, "makes 1.00 times its images/s (0.90 to 1.10), which is no gain beyond noise."),
        ((1.5, 1.6), BEST, "Use DALI CPU, 2 threads, prefetch 2, decoder whole: 1.55 times the images/s of"),
    ],
)
def test_advice(ratios: tuple[float, ...] | None, setting: Contender, said: str) -> None:
    metric = None if ratios is None else Metric(ratios, "")
    chosen, sentence = advise(Choice(BEST, NOW), metric)
    assert chosen == setting
    assert said in sentence
    assert ("-o Global.use_dali=True DataLoader.Train.loader.dali.num_threads=2" in sentence) == (
        setting == BEST
    )
