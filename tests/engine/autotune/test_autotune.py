"""The choice of the fastest way to execute training steps; the timers are substitutes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ppcls.api import fit
from ppcls.config.base.yaml import dump_yaml, parse_yaml
from ppcls.data.sampling.samplers import ClassBalancedSampler
from ppcls.engine.autotune import autotune as module
from ppcls.engine.autotune import timing, ways
from ppcls.engine.autotune.autotune import autotune, first_execution, list_open_settings, thread_counts
from ppcls.engine.autotune.processes import MeasurementFailed, MeasuringProcess, Sample, worker_command
from ppcls.engine.autotune.ways import Criteria, Execution, choose
from ppcls.engine.autotune.worker import measure
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
            "inference_images_per_second": 4 * rate,
            "step": 1 / rate,
            "losses": LOSSES,
            "gpu_reserved": 100.0,
        } | changes


def choose_for(config: Config, measure: Timer) -> tuple[Execution, dict[str, float]]:
    settings = list_open_settings(config.Global, config.Arch)
    first = first_execution(config.Global, config.Arch, settings)
    choice = choose(first, settings, measure, Criteria(0.05, MEMORY))
    return choice.execution, {str(way): rate for way, rate in choice.training.items()}


EAGER, GRAPH = Execution(), Execution(cuda_graph=True)
NHWC, COMPILED = Execution("NHWC", True), Execution("NHWC", True, True)
COMPILED_NCHW = Execution(cuda_graph=True, to_static=True)
FUSED = Execution("NHWC", True, fused_kernels=True)
RATES = {EAGER: 100.0, GRAPH: 200.0, NHWC: 300.0, COMPILED: 400.0, COMPILED_NCHW: 250.0, FUSED: 350.0}


def test_choose_uses_a_way_whose_evaluation_failed(
    make_config: Callable[..., Config], capsys: pytest.CaptureFixture[str]
) -> None:
    failure = {"inference_images_per_second": None, "inference_error": "no capture"}
    config = make_config(**HALF)
    settings = list_open_settings(config.Global, config.Arch)
    first = first_execution(config.Global, config.Arch, settings)
    for failed in (RATES, {COMPILED: 0}):
        timer = Timer(RATES, changes=dict.fromkeys(failed, failure))
        choice = choose(first, settings, timer, Criteria(0.05, MEMORY, evaluated=0.1))
        assert choice.execution == COMPILED
        assert choice.inference == {
            way: 4 * rate for way, rate in choice.training.items() if way not in failed
        }
        assert "evaluation not measured: no capture" in capsys.readouterr().err
        record = choice.record("a CPU")
        assert len(record.inference_images_per_second) == len(choice.inference)


@pytest.mark.parametrize(
    ("batch_size", "update_freq", "drop_last", "updates"),
    [(2, 1, False, 3), (2, 1, True, 2), (8, 1, False, 1), (2, 2, False, 2), (2, 8, False, 1)],
)
def test_counted_updates_are_those_of_the_run(
    batch_size: int,
    update_freq: int,
    drop_last: bool,
    updates: int,
    make_config: Callable[..., Config],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also of runs whose batches have more images than the data set, of 5 images here."""
    config = make_config(Global__update_freq=update_freq, Global__epochs=10)
    split = config.DataLoader.need_train()
    sampler = split.sampler.model_copy(update={"batch_size": batch_size, "drop_last": drop_last})
    monkeypatch.setattr(type(split.dataset), "read", lambda *_: range(5))
    split = split.model_copy(update={"sampler": sampler})
    assert module.count_updates(config.Global, split, None) == 10 * updates


def test_counted_updates_are_those_of_a_sampler_with_longer_epochs(
    make_config: Callable[..., Config],
) -> None:
    config = make_config(Global__epochs=10)
    split = config.DataLoader.need_train()
    sampler = ClassBalancedSampler(batch_size=8, samples=480)
    split = split.model_copy(update={"sampler": sampler})
    assert module.count_updates(config.Global, split, config.class_count(training=True)) == 600


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
    chosen = choose(EAGER, ["fused_kernels"], timer, Criteria(0.01, None, 1e-5)).execution
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


@pytest.mark.parametrize(("evaluated", "chosen"), [(0.0, GRAPH), (0.1, GRAPH), (0.5, EAGER)])
def test_choose_counts_the_time_of_evaluations(evaluated: float, chosen: Execution) -> None:
    slow = {GRAPH: {"inference_images_per_second": 40.0}}
    timer = Timer({EAGER: 100.0, GRAPH: 150.0}, changes=slow)
    assert choose(EAGER, ["cuda_graph"], timer, Criteria(0.01, None, evaluated=evaluated)).execution == chosen


@pytest.mark.parametrize(("rate", "fused"), [(405.0, True), (500.0, False)])  # of the fused kernels: 400
def test_choose_records_the_fastest_inference(
    rate: float, fused: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    way = Execution("NHWC", fused_kernels=True)
    rates = {EAGER: 90.0, way: 100.0}
    timer = Timer(rates, changes={EAGER: {"inference_images_per_second": rate}})
    fastest = choose(EAGER, ["fused_kernels"], timer, Criteria(0.01, None))
    record = fastest.record("a CPU")
    assert fastest.execution == way
    assert (record.fused_kernels, record.data_format) == (fused, "NHWC" if fused else "NCHW")
    assert list(record.images_per_second.values()) == [90, 100]
    assert list(record.inference_images_per_second.values()) == [rate, 400]
    assert (
        f"{EAGER}: 90 images/s, 11.1 ms per step, evaluation {rate:,.0f} images/s" in capsys.readouterr().err
    )


def test_choose_measures_threads_with_the_best_settings() -> None:
    fused = Execution("NHWC", fused_kernels=True)
    eight, four = replace(fused, threads=8), replace(fused, threads=4)
    timer = Timer({EAGER: 100.0, fused: 200.0, eight: 190.0, four: 220.0})
    fastest = choose(EAGER, ["fused_kernels"], timer, Criteria(0.01, None), (8, 4))
    assert (fastest.execution, timer.measured) == (four, [EAGER, fused, eight, four])
    assert str(four) == "NHWC, fused kernels, operator by operator, 4 threads"
    assert (fastest.record("a CPU").threads, fastest.record("a CPU").fused_kernels) == (4, True)


@pytest.mark.parametrize(
    ("cores", "physical", "counts"),
    [(1, 1, ()), (2, 2, ()), (2, 1, (1,)), (4, 4, (2,)), (16, 8, (8,)), (6, 5, (5, 3)), (3, 3, (1,))],
)
def test_thread_counts(cores: int, physical: int, counts: tuple[int, ...]) -> None:
    assert thread_counts(cores, physical) == counts


def execution_of(text: str) -> Execution:
    """Returns the way in a config that is to be measured."""
    config = load_config(parse_yaml(text, "the task"))
    run = config.Global
    return Execution(
        config.Arch.data_format,
        bool(run.cuda_graph),
        bool(run.to_static),
        run.fused_kernels is True,
        run.cpu_threads,
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
    monkeypatch.setattr(module, "MIN_UPDATES", 9)
    tuned = autotune(make_config(**amp))
    assert (tuned.Arch.data_format, tuned.Global.cuda_graph) == (layout, "auto")
    assert not card.measured


@pytest.mark.parametrize(("limit", "measured"), [(60, False), (1199, False), (1201, True)])
def test_autotune_takes_only_a_small_part_of_the_time_limit(
    make_config: Callable[..., Config], card: Timer, limit: float, measured: bool
) -> None:
    tuned = autotune(make_config(**HALF, Global__time_limit=limit))
    assert bool(card.measured) == measured
    assert tuned.Arch.data_format == "NHWC"
    earlier = len(card.measured)
    autotune(make_config(**HALF))
    assert autotune(make_config(**HALF, Global__time_limit=limit)).Global.cuda_graph is True, "from the cache"
    assert len(card.measured) == max(earlier, 5)


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


def test_autotune_measures_again_when_the_users_module_changes(
    make_config: Callable[..., Config], card: Timer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The same name can be another network, which may not work in the way that was fastest before."""
    code = tmp_path / "measured_parts.py"
    code.write_text("VERSION = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = make_config(**HALF, Global__import_modules=["measured_parts"])
    autotune(config)
    autotune(config)
    assert len(card.measured) == 5
    code.write_text("VERSION = 2\n")
    autotune(config)
    assert len(card.measured) == 10


def test_users_code_reads_modules_and_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "measured_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "networks.py").write_text("VERSION = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = module.users_code(["measured_package.networks"])
    (package / "networks.py").write_text("VERSION = 2\n")
    assert before != module.users_code(["measured_package.networks"])
    assert not module.users_code(["ppcls.arch.families.resnet", "paddle.vision.models"])


def test_autotune_measures_again_for_another_share_of_evaluations(
    make_config: Callable[..., Config], card: Timer
) -> None:
    card.special["changes"] = {COMPILED: {"inference_images_per_second": 40.0}}
    assert autotune(make_config(**HALF)).Global.fused_kernels is True  # 22 images per 48 of training
    assert autotune(make_config(**HALF, Global__eval_during_train=False)).Global.to_static is True
    assert len(card.measured) == 10
    assert autotune(make_config(**HALF, Global__eval_interval=2)).Global.fused_kernels is True
    assert len(card.measured) == 15


def test_autotune_reads_the_cache_of_older_versions(make_config: Callable[..., Config], card: Timer) -> None:
    config = make_config(**HALF)
    tuned = autotune(config)
    assert tuned.Global.autotuned is not None
    assert tuned.Global.autotuned.machine == "card"
    (file,) = (Path(os.environ["PPCLS_HOME"]) / "autotune").glob("*.json")
    ways = {"data_format": "NHWC", "cuda_graph": True, "to_static": False, "fused_kernels": True}
    file.write_text(json.dumps({"chosen": ways, "images_per_second": {"NHWC": 3.0}}))
    older = autotune(config).Global
    assert (older.fused_kernels, older.autotuned) == (True, None)
    assert len(card.measured) == 5


CPU_RATES = {EAGER: 100.0, Execution("NHWC", fused_kernels=True): 250.0}


@pytest.fixture
def processor(card: Timer, monkeypatch: pytest.MonkeyPatch) -> Timer:
    """Pretends that there is no card, and that short runs are long enough."""
    monkeypatch.setattr(module, "selected_card", lambda: None)
    monkeypatch.setattr(module, "estimate_update", lambda *_: None)
    monkeypatch.setattr(module, "MIN_CPU_UPDATES", 6)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # as after the import of Paddle, so no threads are measured
    card.rates = CPU_RATES
    return card


FUSED_ON_CPU = Execution("NHWC", fused_kernels=True)


@pytest.fixture
def hyperthreads(processor: Timer, monkeypatch: pytest.MonkeyPatch) -> Timer:
    """Pretends that Paddle is not imported, and that there are eight cores, each with two hyperthreads."""
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(module, "usable_cores", lambda: 16)
    monkeypatch.setattr(module, "physical_cores", lambda: 8)
    processor.rates = {**CPU_RATES, replace(FUSED_ON_CPU, threads=8): 300.0}
    return processor


def test_autotune_on_a_cpu_measures_threads(
    make_config: Callable[..., Config], hyperthreads: Timer, capsys: pytest.CaptureFixture[str]
) -> None:
    config = make_config(Global__device="cpu")
    tuned = autotune(config).Global
    assert tuned.autotuned is not None
    assert (tuned.cpu_threads, tuned.autotuned.threads) == (None, 8)
    assert tuned.fused_kernels is True
    assert "uses NHWC, fused kernels, operator by operator, 8 threads; saved" in capsys.readouterr().err
    assert autotune(config).Global == tuned
    assert len(hyperthreads.measured) == 3


def test_duration_of_an_update_includes_both_views_of_unlabelled_images(
    make_config: Callable[..., Config], processor: Timer, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    monkeypatch.setattr(module, "estimate_update", lambda _arch, images, *_: counts.append(images))
    config = make_config(Global__device="cpu")
    autotune(config)
    data = config.DataLoader.model_copy(update={"UnLabelTrain": config.DataLoader.need_train()})
    autotune(config.model_copy(update={"DataLoader": data}))
    assert counts[1] == 3 * counts[0]
    assert processor.measured


@pytest.mark.parametrize("variable", ["OMP_NUM_THREADS", "PADDLE_LOCAL_SIZE", None])
def test_autotune_keeps_threads_that_are_set(
    make_config: Callable[..., Config],
    hyperthreads: Timer,
    monkeypatch: pytest.MonkeyPatch,
    variable: str | None,
) -> None:
    if variable is not None:
        monkeypatch.setenv(variable, "2")
    changes = {} if variable else {"Global__cpu_threads": 3}
    hyperthreads.rates = {replace(way, threads=None if variable else 3): 1.0 for way in CPU_RATES}
    tuned = autotune(make_config(Global__device="cpu", **changes)).Global
    assert tuned.autotuned is not None
    assert tuned.autotuned.threads is None
    assert len(hyperthreads.measured) == 2


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


@pytest.mark.parametrize("damage", [{}, {"machine": None}])
def test_autotune_resumed_run_repeats_the_record_of_its_checkpoint(
    make_config: Callable[..., Config],
    hyperthreads: Timer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    damage: dict[str, Any],
) -> None:
    config = make_config(Global__device="cpu")
    tuned = autotune(config)
    tree = tuned.model_dump(mode="json")
    tree["Global"]["autotuned"] |= damage
    (tmp_path / "state.json").write_text(json.dumps({"threads": 8}))
    (tmp_path / "config.yaml").write_text(dump_yaml(tree))
    hyperthreads.rates = {}
    hyperthreads.measured.clear()
    assert autotune(config, tmp_path) == tuned  # of a damaged checkpoint, by the cache
    reason = "from an earlier measurement" if damage else "as before the interruption"
    assert f"8 threads, {reason}" in capsys.readouterr().err
    assert not hyperthreads.measured


@pytest.mark.parametrize(
    "changes",
    [
        {"Global__device": "cpu"},
        pytest.param({"Global__device": "gpu", "Global__cuda_graph": True}, marks=pytest.mark.gpu),
        pytest.param(
            {
                "Global__device": "gpu",
                "Global__cuda_graph": True,
                "Global__fused_kernels": True,
                "Arch__data_format": "NHWC",
                "AMP": {"level": "O1", "dtype": "float16"},
            },
            marks=pytest.mark.gpu,
        ),
    ],
)
def test_process_measures_training_and_inference(
    make_yaml: Callable[..., Path], changes: dict[str, Any]
) -> None:
    file = make_yaml(Arch__name="ResNet18", Global__use_dali=False, **changes)
    task = {"config": str(file), "plan": {"warm_up": 5, "settle": 0.0, "seconds": 0.1, "steps": 2}}
    sample = MeasuringProcess(worker_command(module._WORKER), task, 300.0).run()
    assert min(sample["inference_images_per_second"], sample["images_per_second"]) > 0
    if not changes.get("Global__cuda_graph"):
        disturbed = MeasuringProcess(worker_command(module._WORKER), {**task, "noise": 0.1}, 300.0).run()
        assert "inference_images_per_second" not in disturbed
        assert disturbed["losses"] != sample["losses"]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("arch", "amp", "first"),
    [
        (
            {"name": "DeiT_tiny_patch16_224", "img_size": 64, "drop_rate": 0.2, "drop_path_rate": 0.3},
            {"use_amp": False},
            Execution(cuda_graph=True),
        ),
        (
            {"name": "EfficientNetB0_small"},
            {"level": "O1", "dtype": "float16"},
            Execution(cuda_graph=True),
        ),
    ],
)
def test_choose_measures_a_compiled_model_with_dropout_on_a_gpu(
    make_config: Callable[..., Config], arch: dict[str, Any], amp: dict[str, Any], first: Execution
) -> None:
    """Its steps draw the factors of those that are not compiled, so the losses are equal."""
    changes = {f"Arch__{key}": value for key, value in arch.items()}
    # With fewer pixels per channel, BatchNorm would amplify the differences of rounding.
    chain = [{"DecodeImage": None}, {"RandCropImage": {"size": 64}}, {"NormalizeImage": None}]
    changes |= {f"DataLoader__{split}__dataset__transform_ops": chain for split in ("Train", "Eval")}
    changes |= {"DataLoader__Train__sampler__batch_size": 32, "Global__image_shape": [3, 64, 64]}
    config = make_config(Global__device="gpu", Global__use_dali=False, AMP=amp, **changes)
    plan = {"warm_up": 5, "settle": 0.0, "seconds": 0.1, "steps": 4}

    def measure(way: Execution, noise: float) -> Sample:
        assert not noise
        tree = config.model_copy(update=way.sections(config.Global, config.Arch)).model_dump(mode="json")
        file = Path(config.Global.output_dir).with_suffix(".yaml")
        file.write_text(dump_yaml(tree))
        task = {"config": str(file), "plan": plan}
        return MeasuringProcess(worker_command(module._WORKER), task, 300.0).run()

    tolerance = module._TOLERANCE["float16" if amp.get("level") else "float32"]
    fastest = choose(first, ["to_static"], measure, Criteria(tolerance, None))
    assert fastest.training.keys() == {first, replace(first, to_static=True)}


def test_sample_without_inference_says_why(
    make_yaml: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> float:
        raise RuntimeError("operator\nnot supported")

    monkeypatch.setattr(timing, "time_inference", fail)
    file = make_yaml(Arch__name="ResNet18", Global__use_dali=False, Global__device="cpu")
    plan = {"warm_up": 1, "settle": 0.0, "seconds": 0.01, "steps": 1}
    sample = measure({"config": str(file), "plan": plan})
    assert sample["inference_error"] == "operator not supported"
    assert "inference_images_per_second" not in sample
    assert sample["images_per_second"] > 0


@pytest.mark.slow
def test_fused_kernels_on_a_cpu_are_measured_and_resumed(
    make_yaml: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PPCLS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(module, "saves_time", lambda *_: True)
    monkeypatch.setitem(ways._USED_FROM, "fused_kernels", 0.0)  # also if the test's few steps are slower
    output = tmp_path / "run"
    config = make_yaml(Global__device="cpu", Arch__name="ResNet18", Global__output_dir=str(output))
    fit(load_config(config))
    saved = load_config(output / "latest/config.yaml")
    assert saved.Global.fused_kernels is True
    assert saved.Arch.data_format == "NHWC"
    record = saved.Global.autotuned
    assert record is not None
    assert record.images_per_second.keys() == record.inference_images_per_second.keys()
    assert len(record.images_per_second) >= 2
    monkeypatch.setattr(module, "_measure_on", None)  # the resumed run measures nothing
    more = ["Global.checkpoints=auto", f"Global.epochs={saved.Global.epochs + 1}"]
    fit(load_config(config, more))
    resumed = load_config(output / "latest/config.yaml").Global
    assert (resumed.fused_kernels, resumed.autotuned) == (True, record)
