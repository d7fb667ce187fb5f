"""The choice of the fastest way to execute training steps; the timers are substitutes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ppcls.api import fit
from ppcls.config.base.yaml import dump_yaml, parse_yaml
from ppcls.engine.autotune import autotune as module
from ppcls.engine.autotune.autotune import (
    Execution,
    autotune,
    choose,
    first_execution,
    list_open_settings,
)
from ppcls.engine.autotune.processes import MeasurementFailed, Sample
from ppcls.recipe.load import load_config
from ppcls.recipe.schema import Config
from ppcls.runtime.hardware import Card

MEMORY = 80_000  # MiB
LOSSES = [2.3, 2.2]
HALF: dict[str, Any] = {"AMP": {"level": "O1", "dtype": "float16"}, "Global__device": "auto"}


class Timer:
    """Measures nothing: answers from a table of images per second, by settings."""

    def __init__(self, rates: dict[Execution, float], **special: Any) -> None:
        self.rates, self.special, self.measured = rates, special, list[Execution]()
        self.noises = list[float]()

    def __call__(self, way: Execution, noise: float = 0.0) -> Sample:
        if noise:
            self.noises.append(noise)
            return {"losses": self.special["disturbed"]}
        self.measured.append(way)
        rate = self.rates[way]
        if rate == 0:
            raise MeasurementFailed("out of memory")
        changes = self.special.get("changes", {}).get(way, {})
        return {
            "images_per_second": rate,
            "step": 1 / rate,
            "losses": LOSSES,
            "gpu_reserved": 100.0,
        } | changes


def choose_for(config: Config, measure: Timer) -> tuple[Execution, dict[str, float]]:
    settings = list_open_settings(config.Global, config.Arch)
    first = first_execution(config.Global, config.Arch, settings)
    return choose(first, settings, 0.05, measure, MEMORY)


EAGER, GRAPH = Execution(), Execution(cuda_graph=True)
NHWC, COMPILED = Execution("NHWC", True), Execution("NHWC", True, True)
COMPILED_NCHW = Execution(cuda_graph=True, to_static=True)
FUSED = Execution("NHWC", True, fused_kernels=True)
RATES = {EAGER: 100.0, GRAPH: 200.0, NHWC: 300.0, COMPILED: 400.0, COMPILED_NCHW: 250.0, FUSED: 350.0}


def test_choose_keeps_each_setting_that_is_faster(make_config: Callable[..., Config]) -> None:
    timer = Timer(RATES)
    chosen, rates = choose_for(make_config(**HALF), timer)
    assert (chosen, timer.measured) == (COMPILED, [EAGER, GRAPH, NHWC, COMPILED, FUSED])
    assert list(rates.values()) == [100, 200, 300, 400, 350]


def test_choose_fused_kernels_bring_their_layout_and_replace_compilation(
    make_config: Callable[..., Config],
) -> None:
    slow = {NHWC: 50.0, COMPILED_NCHW: 210.0}  # as float32, for which Paddle converts NHWC
    chosen, _ = choose_for(make_config(**HALF), Timer({**RATES, **slow}))
    assert chosen == FUSED
    config = make_config(**HALF)
    tuned = config.model_copy(update=chosen.sections(config.Global, config.Arch))
    values = (tuned.Arch.data_format, tuned.Global.fused_kernels, tuned.Global.to_static)
    assert values == ("NHWC", True, False)


@pytest.mark.parametrize(
    "changes", [{"losses": [2.3, 3.0]}, {"losses": [2.3, float("nan")]}, {"gpu_reserved": 70_000.0}]
)
def test_choose_skips_other_losses_and_too_much_memory(
    make_config: Callable[..., Config], changes: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    timer = Timer(RATES, changes={COMPILED: changes})
    assert choose_for(make_config(**HALF), timer)[0] == FUSED
    assert f"{COMPILED}: skipped: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("losses", "disturbed", "accepted"),
    [
        ([2.3, 2.2], None, True),  # nothing else is measured
        ([2.3, 2.1], [2.3, 2.19], True),
        ([2.3, 2.1], [2.3, 2.2], False),
        ([2.1, 2.2], [2.3, 2.0], False),  # only later losses depend on rounding
        ([2.3, float("nan")], [2.3, 2.0], False),
        ([2.3, 9.0], [2.3, float("nan")], False),
    ],
)
def test_choose_accepts_differences_that_rounding_causes(
    losses: list[float], disturbed: list[float] | None, accepted: bool
) -> None:
    fused = Execution("NHWC", fused_kernels=True)
    timer = Timer({EAGER: 100.0, fused: 250.0}, changes={fused: {"losses": losses}}, disturbed=disturbed)
    chosen, _ = choose(EAGER, ["fused_kernels"], 0.01, timer, None, 1e-5)
    assert chosen == (fused if accepted else EAGER)
    assert timer.noises == ([] if disturbed is None else [1e-5])


def test_choose_prefers_a_graph_that_is_as_fast(make_config: Callable[..., Config]) -> None:
    rates = {EAGER: 100.0, GRAPH: 99.0, NHWC: 100.0, COMPILED_NCHW: 100.0, FUSED: 100.0}
    timer = Timer(rates)
    assert choose_for(make_config(**HALF), timer)[0] == GRAPH


def test_choose_skips_what_fails(make_config: Callable[..., Config]) -> None:
    slower = {Execution("NHWC"): 90.0, Execution(to_static=True): 110.0}
    slower[Execution("NHWC", fused_kernels=True)] = 90.0
    timer = Timer({**RATES, GRAPH: 0.0, **slower})
    assert choose_for(make_config(**HALF), timer)[0] == Execution(to_static=True)


def test_choose_obeys_explicit_settings(make_config: Callable[..., Config]) -> None:
    explicit = {"Arch__data_format": "NHWC", "Global__to_static": False, "Global__fused_kernels": False}
    timer = Timer({Execution("NHWC"): 1.0, NHWC: 2.0})
    assert choose_for(make_config(**HALF, **explicit), timer)[0] == NHWC


def execution_of(text: str) -> Execution:
    """Returns the way in a config that is to be measured."""
    config = load_config(parse_yaml(text, "the task"))
    run = config.Global
    return Execution(
        config.Arch.data_format, bool(run.cuda_graph), bool(run.to_static), run.fused_kernels is True
    )


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Timer:
    """Pretends that there is a card, and that short runs are long enough."""
    timer = Timer(RATES)
    monkeypatch.setenv("PPCLS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(module, "selected_card", lambda: Card("GPU-1", MEMORY))
    monkeypatch.setattr(Card, "name", lambda _card: "card")
    monkeypatch.setattr(module, "_measure_on", lambda _card, text, noise: timer(execution_of(text), noise))
    monkeypatch.setattr(module, "MIN_UPDATES", 6)
    return timer


def test_autotune_measures_once_and_reads_the_choice_later(
    make_config: Callable[..., Config], card: Timer, capsys: pytest.CaptureFixture[str]
) -> None:
    config = make_config(**HALF)
    tuned = autotune(config)
    assert (tuned.Arch.data_format, tuned.Global.cuda_graph, tuned.Global.to_static) == ("NHWC", True, True)
    assert (config.Arch.data_format, config.Global.cuda_graph) == ("NCHW", "auto")
    assert autotune(config) == tuned
    assert len(card.measured) == 5
    assert "from an earlier measurement" in capsys.readouterr().err
    autotune(make_config(**HALF, DataLoader__Train__sampler__batch_size=2))
    assert len(card.measured) == 10, "another batch size is measured, too"


@pytest.mark.parametrize(
    "changes",
    [{"Global__autotune": False}, {"Global__deterministic": True}, {"Global__device": "cpu", "AMP": None}],
)
def test_autotune_leaves_other_runs_unchanged(
    make_config: Callable[..., Config], card: Timer, changes: dict[str, Any]
) -> None:
    config = make_config(**{**HALF, **changes})
    assert autotune(config) is config
    assert not card.measured


@pytest.mark.parametrize(("amp", "layout"), [({"Global__device": "auto"}, "NCHW"), (HALF, "NHWC")])
def test_autotune_short_run_measures_nothing(
    make_config: Callable[..., Config],
    card: Timer,
    monkeypatch: pytest.MonkeyPatch,
    amp: dict[str, Any],
    layout: str,
) -> None:
    monkeypatch.setattr(module, "MIN_UPDATES", 7)
    tuned = autotune(make_config(**amp))
    assert (tuned.Arch.data_format, tuned.Global.cuda_graph) == (layout, "auto")
    assert not card.measured


@pytest.mark.parametrize("content", ["", "{}", '{"chosen": {"layout": "NHWC"}}'])
def test_autotune_damaged_cache_is_reported_and_nothing_is_measured(
    make_config: Callable[..., Config], card: Timer, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    config = make_config(**HALF)
    autotune(config)
    measured = len(card.measured)
    (file,) = (Path(os.environ["PPCLS_HOME"]) / "autotune").glob("*.json")
    file.write_text(content)
    assert autotune(config).Arch.data_format == "NHWC"
    assert len(card.measured) == measured
    assert f"{file}: cannot be used, so nothing is measured" in capsys.readouterr().err


def test_autotune_cache_that_cannot_be_created_is_reported(
    make_config: Callable[..., Config], card: Timer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "home").write_text("not a folder")
    assert autotune(make_config(Global__device="auto")).Arch.data_format == "NCHW"
    assert not card.measured
    assert "cannot be used, so nothing is measured" in capsys.readouterr().err


def test_autotune_keeps_the_layout_of_the_users_own_architecture(
    make_config: Callable[..., Config], card: Timer, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(**HALF)
    monkeypatch.setattr(module, "ZOO", {})
    assert autotune(config).Arch.data_format == "NCHW"
    assert {way.data_format for way in card.measured} == {"NCHW"}


CPU_RATES = {EAGER: 100.0, Execution("NHWC", fused_kernels=True): 250.0}


@pytest.fixture
def processor(card: Timer, monkeypatch: pytest.MonkeyPatch) -> Timer:
    """Pretends that there is no card, and that short runs are long enough."""
    monkeypatch.setattr(module, "selected_card", lambda: None)
    monkeypatch.setattr(module, "estimate_update", lambda *_: None)
    monkeypatch.setattr(module, "MIN_CPU_UPDATES", 6)
    card.rates = CPU_RATES
    return card


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_autotune_on_a_cpu_measures_the_fused_kernels(
    make_config: Callable[..., Config], processor: Timer, device: str
) -> None:
    config = make_config(Global__device=device)
    tuned = autotune(config)
    assert (tuned.Arch.data_format, tuned.Global.fused_kernels) == ("NHWC", True)
    assert (tuned.Global.cuda_graph, tuned.Global.to_static) == (False, False)
    assert processor.measured == list(CPU_RATES)
    assert autotune(config) == tuned
    assert len(processor.measured) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"Arch__data_format": "NCHW"},
        {"Global__fused_kernels": False},
        {"AMP": {"level": "O1", "dtype": "bfloat16"}},
        {"Global__epochs": 1},
    ],
)
def test_autotune_on_a_cpu_leaves_other_runs_unchanged(
    make_config: Callable[..., Config], processor: Timer, changes: dict[str, Any]
) -> None:
    autotune(make_config(Global__device="cpu"))  # its choice is in the cache
    measured = len(processor.measured)
    config = make_config(Global__device="cpu", **changes)
    assert autotune(config) is config
    assert len(processor.measured) == measured


@pytest.mark.parametrize(
    ("threads", "settings", "expected"),
    [
        (2, {"cuda_graph": False, "to_static": False, "fused_kernels": True}, "NHWC"),
        (2, {}, "NCHW"),  # the checkpoint's run was too short to be measured
        (None, {"cuda_graph": True, "to_static": False, "fused_kernels": True}, "measured"),  # on a GPU
        ("damaged", {}, "measured"),
    ],
)
def test_autotune_resumed_run_repeats_the_choice_of_its_checkpoint(
    make_config: Callable[..., Config],
    processor: Timer,
    tmp_path: Path,
    threads: int | str | None,
    settings: dict[str, bool],
    expected: str,
) -> None:
    state = "{" if threads == "damaged" else json.dumps({"threads": threads})
    (tmp_path / "state.json").write_text(state)
    tree = {"Global": settings, "Arch": {"data_format": "NHWC"}}
    (tmp_path / "config.yaml").write_text(dump_yaml(tree))
    tuned = autotune(make_config(Global__device="cpu"), tmp_path)
    assert bool(processor.measured) == (expected == "measured")
    assert tuned.Arch.data_format == ("NCHW" if expected == "NCHW" else "NHWC")


@pytest.mark.slow
def test_fused_kernels_on_a_cpu_are_measured_and_resumed(
    make_yaml: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PPCLS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(module, "saves_time", lambda *_: True)
    monkeypatch.setitem(module._USED_FROM, "fused_kernels", 0.0)  # also if the test's few steps are slower
    output = tmp_path / "run"
    config = make_yaml(Global__device="cpu", Arch__name="ResNet18", Global__output_dir=str(output))
    fit(load_config(config))
    saved = load_config(output / "latest/config.yaml")
    assert saved.Global.fused_kernels is True
    assert saved.Arch.data_format == "NHWC"
    monkeypatch.setattr(module, "_measure_on", None)  # the resumed run measures nothing
    more = ["Global.checkpoints=auto", f"Global.epochs={saved.Global.epochs + 1}"]
    fit(load_config(config, more))
    assert load_config(output / "latest/config.yaml").Global.fused_kernels is True
