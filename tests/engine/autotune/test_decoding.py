"""The choice of the device that decodes the images; no GPU is needed, and the timer is a substitute."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ppcls.config.base.yaml import dump_yaml
from ppcls.engine.autotune import decoding as module
from ppcls.engine.autotune.decoding import choose, choose_decoder, read_decoder
from ppcls.engine.autotune.processes import MeasurementFailed, Sample
from ppcls.engine.autotune.worker import measure
from ppcls.recipe.schema import Config
from ppcls.runtime.hardware import Card

GPU: dict[str, Any] = {"Global__device": "gpu", "Global__use_dali": True}
CPU_WAY = {"decode_on": "cpu", "gpu_share": None}
THIRD = {"decode_on": "both", "gpu_share": 1 / 3}


@dataclass(frozen=True)
class _Card(Card):
    def name(self) -> str:
        return "a card"

    def near_cores(self) -> frozenset[int]:
        return frozenset()


class Timer:
    """Answers with the given rates instead of measuring."""

    def __init__(self, rates: Sequence[float | str]) -> None:
        self.rates = rates
        self.calls = 0

    def __call__(self, *_: object) -> Sample:
        self.calls += 1
        return {"rates": self.rates}


@pytest.fixture
def timer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Timer:
    timer = Timer([100.0, 120.0, 150.0, 120.0, 110.0, 90.0])
    monkeypatch.setenv("PPCLS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(module, "selected_card", lambda: _Card("GPU-1", 80_000))
    monkeypatch.setattr(module, "_measure", timer)
    monkeypatch.setattr(module, "MIN_UPDATES", 1)
    return timer


def way_of(config: Config) -> dict[str, Any]:
    dali = config.DataLoader.need_train().loader.dali
    return {"decode_on": dali.decode_on, "gpu_share": dali.gpu_share}


@pytest.mark.parametrize(
    ("rates", "best"),
    [
        ([100.0, 120.0, 150.0, 120.0, 110.0, 90.0], THIRD),
        ([100.0, 101.5, 101.0, 101.9, 99.0, 90.0], CPU_WAY),
        (["out of memory", 140.0, 150.0, 120.0, 110.0, 160.0], {"decode_on": "gpu", "gpu_share": None}),
        (["out of memory"] * len(module._WAYS), {"decode_on": "auto", "gpu_share": None}),
    ],
)
def test_fastest_way_is_chosen(rates: list[float | str], best: dict[str, Any]) -> None:
    chosen, measured = choose(module._WAYS, Timer(rates))
    assert chosen == best
    assert list(measured.values()) == [rate for rate in rates if not isinstance(rate, str)]


def test_failed_measurement_leaves_the_choice_open(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(_: object) -> Sample:
        raise MeasurementFailed("killed by SIGSEGV")

    assert choose(module._WAYS, fail) == ({"decode_on": "auto", "gpu_share": None}, {})
    assert capsys.readouterr().err.count("skipped: killed by SIGSEGV") == len(module._WAYS)


def test_choice_is_measured_once_and_only_for_the_images_of_training(
    make_config: Callable[..., Config], timer: Timer
) -> None:
    config = make_config(**GPU)
    tuned = choose_decoder(config)
    assert way_of(tuned) == THIRD
    assert tuned.DataLoader.Eval == config.DataLoader.Eval
    assert way_of(choose_decoder(config)) == THIRD
    assert timer.calls == 1
    choose_decoder(make_config(**GPU, DataLoader__Train__sampler__batch_size=4))
    assert timer.calls == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"Global__autotune": False},
        {"Global__deterministic": True},
        {"Global__device": "cpu"},
        {"Global__use_dali": False},
        {"DataLoader__Train__loader__dali": {"decode_on": "cpu"}},
        {"DataLoader__Train__loader__dali": {"hw_decoder_load": 0.5}},
        {"DataLoader__Train__cache": "memory"},
        {"Global__time_limit": 599},
    ],
)
def test_other_runs_are_unchanged(
    make_config: Callable[..., Config], timer: Timer, changes: dict[str, Any]
) -> None:
    config = make_config(**{**GPU, **changes})
    assert choose_decoder(config) is config
    assert timer.calls == 0


def test_short_run_is_not_measured(
    make_config: Callable[..., Config], timer: Timer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MIN_UPDATES", 1_000_000)
    config = make_config(**GPU)
    assert choose_decoder(config) is config
    assert timer.calls == 0


def test_small_card_decodes_on_one_device(
    make_config: Callable[..., Config], timer: Timer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "selected_card", lambda: _Card("GPU-1", 24_000))
    timer.rates = [100.0, 150.0]
    assert way_of(choose_decoder(make_config(**GPU)))["decode_on"] == "gpu"


@pytest.mark.parametrize("way", [CPU_WAY, THIRD, {"decode_on": "auto", "gpu_share": None}])
def test_resumed_run_repeats_the_choice_of_its_checkpoint(
    make_config: Callable[..., Config], timer: Timer, tmp_path: Path, way: dict[str, Any]
) -> None:
    config = make_config(**GPU)
    tuned = config.model_copy(
        update=module._with_decoder(config.DataLoader, config.DataLoader.need_train(), way)
    )
    (tmp_path / "config.yaml").write_text(dump_yaml(tuned.model_dump(mode="json")))
    assert read_decoder(tmp_path) == way
    assert way_of(choose_decoder(config, tmp_path)) == way
    assert timer.calls == 0


@pytest.mark.parametrize("text", [None, "", "[1]", "DataLoader: {Train: null}", "\0"])
def test_unreadable_checkpoint_is_measured_again(
    make_config: Callable[..., Config], timer: Timer, tmp_path: Path, text: str | None
) -> None:
    if text is not None:
        (tmp_path / "config.yaml").write_text(text)
    assert read_decoder(tmp_path) is None
    assert way_of(choose_decoder(make_config(**GPU), tmp_path)) == THIRD


def test_damaged_cache_is_reported(
    make_config: Callable[..., Config], timer: Timer, capsys: pytest.CaptureFixture[str]
) -> None:
    config = make_config(**GPU)
    choose_decoder(config)
    (file,) = (Path(os.environ["PPCLS_HOME"]) / "autotune").glob("*.json")
    for content in ("", "{}", '{"chosen": 3}', json.dumps({"chosen": {"decode_on": "tape"}})):
        file.write_text(content)
        assert choose_decoder(config) is config
        assert f"{file}: cannot be used" in capsys.readouterr().err


def test_process_measures_each_way_on_the_images(make_config: Callable[..., Config], tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(dump_yaml(make_config(Global__device="cpu").model_dump(mode="json")))
    plan = {"warm_up": 1, "settle": 0.0, "seconds": 0.01, "steps": 1}
    ways = [{"decode_on": "auto"}, {"decode_on": "gpu"}]
    rate, reason = measure({"config": str(file), "plan": plan, "ways": ways})["rates"]
    assert rate > 0
    assert "expected auto or cpu because this run is on the CPU, got gpu" in reason
