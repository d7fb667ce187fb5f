"""Stop anywhere, resume, and end bit for bit where the undisturbed run ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paddle import nn
from run_checkpoints import checkpoints_of
from small_net import assert_equal, build_net, content

from ppcls.engine import execution
from ppcls.engine.checkpoint.resume import resume
from ppcls.engine.core.build import build_state
from ppcls.engine.core.state import TrainState
from ppcls.engine.setup import build_run
from ppcls.engine.train import train
from ppcls.errors import UserError
from ppcls.recipe.schema import Config
from ppcls.registry import ARCHITECTURES
from ppcls.report.jsonlines import read_records
from ppcls.runtime.start import Runtime
from ppcls.weights.files import read_arrays
from ppcls.weights.manifest import read_manifest, read_record, write_manifest

VARIANTS: dict[str, dict[str, Any]] = {
    "dali": {"Global__use_dali": True},
    "paddle.io": {"Global__use_dali": False},
    "accumulation": {"Global__update_freq": 2, "DataLoader__Train__sampler__batch_size": 4},
    "average": {
        "Arch__name": "ResNet18",
        "EMA": {"decay": 0.9, "warmup": True},
        "Optimizer": {
            "name": "LARS",
            "lr": {"name": "ReduceOnPlateau", "learning_rate": 1.0, "patience": 0, "threshold": 10.0},
            "clip_norm": 1.0,
            "freeze": ["stem.*", "blocks.[01].*"],
            "by_name": [{"pattern": "fc.*", "lr_mult": 2}],
        },
    },
    "repeated images": {"DataLoader__Train__sampler__name": "RepeatedAugSampler"},
    "bfloat16": {"AMP__dtype": "bfloat16"},
    "schedule-free": {
        "Optimizer": {
            "name": "ScheduleFreeAdamW",
            "lr": {"name": "Constant", "learning_rate": 1e-3, "warmup_epoch": 1},
            "clip_norm": 1.0,
        },
    },
    "sam": {"Arch__name": "PPLCNet_x0_25", "Optimizer__sam_rho": 0.1, "Global__update_freq": 2},
    "late sam": {"Arch__name": "PPLCNet_x0_25", "Optimizer__sam_rho": 0.1, "Optimizer__sam_first_epoch": 2},
    "adamw": {"Optimizer": {"name": "AdamW", "lr": {"name": "Cosine", "learning_rate": 1e-3}}},
}


@pytest.fixture
def make_config(make_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Config]:
    """Makes the small config with a network that trains in half of the time."""
    monkeypatch.setitem(ARCHITECTURES._entries, "Small", build_net)
    return lambda output="run", **changes: make_config(output, **{"Arch__name": "Small", **changes})


class Killed(Exception):
    """Ends a run as a crash would, between two steps."""


def output(config: Config) -> Path:
    folder = Path(config.Global.output_dir)
    folder.mkdir(exist_ok=True)
    return folder


def run_and_kill(config: Config, runtime: Runtime, update: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = execution.train_step

    def step(state: Any, batch: Any, *rest: Any) -> Any:
        if state.update == update:
            raise Killed
        return whole(state, batch, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(execution, "train_step", step)
        with pytest.raises(Killed):
            train(config, runtime, output(config))


def reseal(folder: Path, state: dict[str, Any], **changes: Any) -> None:
    """Replaces ``state.json`` of a checkpoint, and writes a manifest that fits."""
    (folder / "state.json").write_text(json.dumps(state))
    manifest = read_manifest(folder)
    files = {name: read_record(folder / name) for name in manifest.files}
    write_manifest(folder, manifest.model_copy(update={"files": files, **changes}))


def same_files(one: Path, other: Path) -> None:
    files = sorted(path.name for path in one.glob("*.safetensors"))
    assert files == sorted(path.name for path in other.glob("*.safetensors")) != []
    for file in files:
        expected, found = read_arrays(one / file), read_arrays(other / file)
        assert expected.keys() == found.keys()
        for key, value in expected.items():
            np.testing.assert_array_equal(found[key], value, err_msg=f"{file} {key}")


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(name, marks=[] if name in ("dali", "paddle.io") else pytest.mark.slow)
        for name in VARIANTS
    ],
)
def test_killed_run_ends_like_undisturbed_run(
    make_config: Callable[..., Config], cpu: Runtime, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    changes = {**VARIANTS[variant], "Global__save_steps": 1}
    straight = make_config("straight", **changes)
    total = train(straight, cpu, output(straight)).update
    # within the first epoch, in the second, and twice in one run
    broken = make_config("broken", **changes)
    run_and_kill(broken, cpu, 1, monkeypatch)
    again = make_config("broken", **changes, Global__checkpoints="auto")
    run_and_kill(again, cpu, total - 1, monkeypatch)
    assert train(again, cpu, output(again)).update == total
    same_files(output(straight) / "latest", output(again) / "latest")
    straight_log, again_log = (
        [(type(each), each.update, each.metrics) for each in read_records(output(each) / "metrics.jsonl")]
        for each in (straight, again)
    )
    assert [each for each in again_log if each[0].__name__ == "EvalRecord"] == [
        each for each in straight_log if each[0].__name__ == "EvalRecord"
    ]


def test_resume_keeps_the_best_metric(make_config: Callable[..., Config], cpu: Runtime) -> None:
    config = make_config(Global__epochs=1)
    best = train(config, cpu, output(config)).progress.best
    assert best is not None
    longer = make_config(Global__epochs=1, Global__checkpoints="auto")
    assert train(longer, cpu, output(longer)).progress.best == best


def test_resume_keeps_the_count_of_early_stopping(
    make_config: Callable[..., Config], cpu: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def linear(class_num: int, **_: Any) -> nn.Layer:
        return nn.Sequential(nn.Flatten(), nn.Linear(16 * 16 * 3, class_num))

    monkeypatch.setitem(ARCHITECTURES._entries, "Linear", linear)
    never = {"name": "Constant", "learning_rate": 1e-30}  # all evaluations are alike
    settings = {"Global__epochs": 9, "Optimizer__lr": never, "Arch__name": "Linear"}
    ended = train(config := make_config(**settings, Global__early_stopping=2), cpu, output(config))
    assert (ended.epoch, ended.progress.not_better) == (3, 2)
    again = make_config(**settings, Global__early_stopping=2, Global__checkpoints="auto")
    assert train(again, cpu, output(again)).update == ended.update
    longer = make_config(**settings, Global__early_stopping=4, Global__checkpoints="auto")
    assert train(longer, cpu, output(longer)).epoch == 5
    elsewhere = make_config(
        "elsewhere", **settings, Global__early_stopping=1, Global__checkpoints=str(output(config) / "latest")
    )
    assert train(elsewhere, cpu, output(elsewhere)).epoch == 7  # its own best model first, then one more


def test_resume_with_another_metric_resets_the_best_one(
    make_config: Callable[..., Config], cpu: Runtime, tmp_path: Path
) -> None:
    judged = {"name": "ReduceOnPlateau", "learning_rate": 0.01, "mode": "max", "patience": 5}
    config = make_config(Global__epochs=1, Optimizer__lr=judged)
    assert train(config, cpu, output(config)).progress.best is not None
    other = make_config(
        Global__epochs=1,
        Optimizer__lr=judged,
        Metric__Eval=[{"PerClassRecall": {}}, {"TopkAcc": {"topk": 1}}],
    )
    state = build_state(other, cpu, lambda *_: None)
    plan = "\n".join(resume(state, output(other) / "latest"))
    assert state.progress.best is None
    assert "best metric" not in plan.split("kept: ")[1].splitlines()[0]
    assert "reset: the best metric, which is now recall_mean and was top1" in plan
    assert "reset: ReduceOnPlateau state" in plan
    assert state.plateau is not None
    assert state.plateau.state_dict()["best"] is None
    longer = make_config(Global__epochs=1, Optimizer__lr=judged, Metric__Eval=[{"TopkAcc": {"topk": [1, 3]}}])
    same = build_state(longer, cpu, lambda *_: None)
    assert "ReduceOnPlateau state, best metric" in resume(same, output(longer) / "latest")[1]
    assert same.progress.best is not None


def test_resume_into_another_folder_saves_a_best_model_there(
    make_config: Callable[..., Config], cpu: Runtime, tmp_path: Path
) -> None:
    config = make_config("first", Global__epochs=1)
    best = train(config, cpu, output(config)).progress.best
    assert best is not None
    there = make_config("second", Global__checkpoints=str(tmp_path / "first" / "latest"))
    run = build_run(there, cpu, output(there))
    # Otherwise this folder gets no best_model unless an evaluation beats that of the other folder.
    assert run.state.progress.best is None
    plan = "\n".join(run.notes)
    assert "reset: the best metric, since its model is not in this folder" in plan
    assert "best metric" not in plan.split("kept: ")[1].splitlines()[0]
    here = make_config("first", Global__checkpoints="auto")
    assert build_run(here, cpu, output(here)).state.progress.best == best


def test_resume_of_a_best_metric_above_that_of_the_best_model_resets_it(
    make_config: Callable[..., Config], cpu: Runtime
) -> None:
    config = make_config(Global__epochs=1)
    best = train(config, cpu, output(config)).progress.best
    folder = (output(config) / "latest").resolve()
    state = json.loads((folder / "state.json").read_text())
    state["best"] = 1e300
    reseal(folder, state)
    again = make_config(Global__epochs=1, Global__checkpoints=str(folder))
    run = build_run(again, cpu, output(again))
    assert run.state.progress.best == best
    assert "reset: the best metric, since its model is not in this folder" in "\n".join(run.notes)


def test_resume_with_another_loader_continues_with_the_same_samples(
    make_config: Callable[..., Config], cpu: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config("switch", Global__save_steps=1, Global__use_dali=True)
    run_and_kill(config, cpu, 2, monkeypatch)
    switched = make_config("switch", Global__use_dali=False, Global__checkpoints="auto")
    state = build_state(switched, cpu, lambda *_: None)
    folder = checkpoints_of(output(switched), switched).find("auto")
    assert folder is not None
    resume(state, folder)
    assert (state.epoch, state.step, state.update) == (0, 2, 2)
    fresh = build_state(config, cpu, lambda *_: None)
    expected = [batch.label.numpy().tolist() for batch in fresh.loader][2:]
    assert [batch.label.numpy().tolist() for batch in state.loader] == expected


def labels(state: TrainState) -> list[int]:
    return [label for batch in state.loader for label in batch.label.numpy()[: batch.valid].tolist()]


@pytest.mark.parametrize(
    ("batch_size", "update_freq", "step", "twice"), [(4, 1, 4, 0), (5, 1, 3, 1), (4, 3, 3, 4), (26, 1, 0, 16)]
)
def test_resume_with_another_batch_size_within_an_epoch_skips_no_sample(
    make_config: Callable[..., Config],
    cpu: Runtime,
    monkeypatch: pytest.MonkeyPatch,
    batch_size: int,
    update_freq: int,
    step: int,
    twice: int,
) -> None:
    config = make_config(Global__save_steps=1)
    run_and_kill(config, cpu, 2, monkeypatch)
    expected = labels(build_state(config, cpu, lambda *_: None))[16 - twice :]
    other = make_config(
        Global__checkpoints="auto",
        Global__update_freq=update_freq,
        DataLoader__Train__sampler__batch_size=batch_size,
    )
    state = build_state(other, cpu, lambda *_: None)
    plan = "\n".join(resume(state, output(other) / "latest"))
    assert (state.step, state.update) == (step, 2)
    assert labels(state) == expected
    assert f"changed from here on: global_batch was 8 and is now {batch_size}" in plan
    samples = "1 sample" if twice == 1 else f"{twice} samples"
    assert (f"can't be kept: {samples} of epoch 1 will be repeated" in plan) == (twice > 0)
    assert ("; Global.update_freq was 1 and is now 3" in plan) == (update_freq == 3)


def test_resume_with_another_order_within_an_epoch_is_an_error(
    make_config: Callable[..., Config], cpu: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(Global__save_steps=1)
    run_and_kill(config, cpu, 2, monkeypatch)
    other = make_config(Global__checkpoints="auto", Global__seed=6)
    with pytest.raises(UserError, match="middle of epoch 1, but seed was 5 and is now 6"):
        train(other, cpu, output(other))


def test_resume_with_other_data_of_the_same_size_is_reported(
    make_config: Callable[..., Config], cpu: Runtime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = make_config(Global__save_steps=1)
    run_and_kill(config, cpu, 2, monkeypatch)
    split = config.DataLoader.Train
    assert split is not None
    lines = Path(split.dataset.cls_label_path).read_text().splitlines()  # type: ignore[union-attr]
    (tmp_path / "turned.txt").write_text("\n".join(lines[::-1]))
    other = make_config(DataLoader__Train__dataset__cls_label_path=str(tmp_path / "turned.txt"))
    state = build_state(other, cpu, lambda *_: None)
    plan = "\n".join(resume(state, output(other) / "latest"))
    assert "changed: the training data, 26 samples (" in plan
    assert "the remaining samples of epoch 1" not in plan.splitlines()[1]
    assert "the remaining samples of epoch 1 can't be kept" in plan


def test_resume_plan_is_logged_before_training(
    make_config: Callable[..., Config], cpu: Runtime, tmp_path: Path
) -> None:
    config = make_config(Global__epochs=1, EMA__decay=0.9)
    train(config, cpu, output(config))
    chain = config.model_dump(mode="json")["DataLoader"]["Train"]["dataset"]["transform_ops"]
    other = make_config(
        Global__epochs=2,
        Global__checkpoints="auto",
        Global__use_dali=False,
        DataLoader__Train__dataset__transform_ops=[*chain[:2], *chain[3:]],
    )
    train(other, cpu, output(other))
    log = (tmp_path / "run" / "train.log").read_text()
    resumed = log.index(f"resumed {tmp_path}/run/latest: epoch 2, batch 0, update 4\n")
    for line in (
        "  kept: model, Momentum state, best metric",
        "  changed: learning rate of the next update, 0 -> 0.005",
        "  ignored: the moving average, since the config has no EMA",
        "  changed: Global.epochs, 1 -> 2 (the schedule now has the new length)",
        "  changed: Global.use_dali, True -> False (same samples and random decisions; decoders differ",
        "  changed: DataLoader.Train.dataset.transform_ops.2.",
    ):
        assert resumed < log.index(line) < log.index("epoch 2/2"), line


def test_resume_reports_another_last_epoch_of_mixing(
    make_config: Callable[..., Config], cpu: Runtime
) -> None:
    def with_mixing(**keys: int) -> Config:
        return make_config(
            Global__epochs=1, DataLoader__Train__dataset__batch_transform_ops=[{"MixupOperator": keys}]
        )

    config = with_mixing()
    train(config, cpu, output(config))

    def plan(config: Config) -> list[str]:
        return resume(build_state(config, cpu, lambda *_: None), output(config) / "latest")

    key = "DataLoader.Train.dataset.batch_transform_ops.0.MixupOperator.last_epoch"
    assert f"  changed: {key}, None -> 1 (from the next batch)" in plan(with_mixing(last_epoch=1))
    assert not any("last_epoch" in line for line in plan(config))


def test_resume_with_another_number_of_threads_is_noted(
    make_config: Callable[..., Config], cpu: Runtime
) -> None:
    config = make_config(Global__epochs=1)
    train(config, cpu, output(config))
    latest = output(config) / "latest"
    assert json.loads((latest / "state.json").read_text())["threads"] == cpu.threads

    def plan(threads: int) -> str:
        state = build_state(config, replace(cpu, threads=threads), lambda *_: None)
        return "\n".join(resume(state, latest))

    assert f"changed: {cpu.threads} -> {cpu.threads + 1} threads of Paddle" in plan(cpu.threads + 1)
    assert "threads" not in plan(cpu.threads)
    saved = json.loads((latest / "state.json").read_text())
    del saved["threads"]  # as in a checkpoint of an earlier version
    reseal(latest, saved)
    assert "threads" not in plan(cpu.threads + 1)


def test_resume_of_more_epochs_than_the_config_has_is_rejected(
    make_config: Callable[..., Config], cpu: Runtime
) -> None:
    config = make_config(Global__epochs=1)
    train(config, cpu, output(config))
    folder = (output(config) / "latest").resolve()
    state = json.loads((folder / "state.json").read_text())
    state["loader"]["epoch"] = state["update"]
    reseal(folder, state, epoch=state["update"])
    again = make_config(Global__epochs=1, Global__checkpoints=str(folder))
    with pytest.raises(UserError, match=r"state.json: damaged: loader.epoch: expected at most 1 epoch"):
        train(again, cpu, output(again))
    fewer = make_config(Global__epochs=2, Global__checkpoints=str(folder))
    assert train(fewer, cpu, output(fewer)).epoch == state["update"]


def test_resume_auto_skips_and_reports_a_damaged_checkpoint(
    make_config: Callable[..., Config], cpu: Runtime, tmp_path: Path
) -> None:
    config = make_config(Global__epochs=2)
    straight = train(config, cpu, output(config))
    weights = content(straight.model)
    damaged = (tmp_path / "run" / "latest").resolve() / "optimizer.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    again = make_config(Global__epochs=2, Global__checkpoints="auto")
    assert_equal(content(train(again, cpu, output(again)).model), weights)
    log = (tmp_path / "run" / "train.log").read_text()
    assert f"skipped a damaged checkpoint: {damaged}: damaged: expected" in log
    assert ": epoch 2, batch 0, update 4" in log


def test_resume_evaluates_epoch_whose_evaluation_failed(
    make_config: Callable[..., Config], cpu: Runtime, tmp_path: Path
) -> None:
    listing = tmp_path / "eval.txt"
    config = make_config(Global__epochs=1)
    whole = Path(str(config.DataLoader.Eval.dataset.cls_label_path)).read_text()  # type: ignore[union-attr]
    listing.write_text("eval.txt 0\n")  # text, not an image
    bad = make_config(Global__epochs=1, DataLoader__Eval__dataset__cls_label_path=str(listing))
    with pytest.raises(
        UserError, match=r"not an image(.|\n)*skip them with --on-error skip \(-o DataLoader\.Train"
    ):
        train(bad, cpu, output(bad))
    listing.write_text(whole)
    again = make_config(
        Global__epochs=1, DataLoader__Eval__dataset__cls_label_path=str(listing), Global__checkpoints="auto"
    )
    state = train(again, cpu, output(again))
    straight = make_config("straight", Global__epochs=1)
    assert state.progress.best == train(straight, cpu, output(straight)).progress.best is not None
    assert (output(again) / "best_model").is_symlink()
    assert not state.progress.closing


class Noisy(nn.Layer):
    """A model that draws random numbers while it trains."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.drop, self.fc = nn.Dropout(0.5), nn.Linear(768, classes)

    def forward(self, image: Any) -> Any:
        return self.fc(self.drop(image.flatten(1)))


def test_resume_continues_the_random_numbers_of_the_model(
    make_config: Callable[..., Config], cpu: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ARCHITECTURES._entries, "Noisy", lambda class_num, *_rest, **_more: Noisy(class_num))
    changes = {"Arch__name": "Noisy", "Global__save_steps": 1}
    straight = make_config("straight", **changes)
    train(straight, cpu, output(straight))
    broken = make_config("broken", **changes)
    run_and_kill(broken, cpu, 3, monkeypatch)
    again = make_config("broken", **changes, Global__checkpoints="auto")
    train(again, cpu, output(again))
    same_files(output(straight) / "latest", output(again) / "latest")


def test_resume_with_another_batch_size_after_an_epoch_continues_the_schedule(
    make_config: Callable[..., Config], cpu: Runtime
) -> None:
    config = make_config(Global__epochs=2, Global__save_interval=1)
    train(config, cpu, output(config))
    folder = output(config) / "epoch_1"
    other = make_config("other", DataLoader__Train__sampler__batch_size=4, Global__epochs=2)
    state = build_state(other, cpu, lambda *_: None)
    fresh = state.schedule
    assert state.updates_per_epoch == 7
    resume(state, folder)
    assert state.update == 4
    assert state.learning_rate(state.update) == fresh(7)


def test_failed_evaluation_keeps_the_epoch(
    make_config: Callable[..., Config], cpu: Runtime, images: Path, tmp_path: Path
) -> None:
    listing = tmp_path / "bad.txt"
    listing.write_text("eval.txt 0\n")  # text, not an image
    config = make_config(DataLoader__Eval__dataset__cls_label_path=str(listing))
    with pytest.raises(UserError, match="not an image"):
        train(config, cpu, output(config))
    folder = checkpoints_of(output(config), config).find("auto")
    assert folder is not None
    state = build_state(config, cpu, lambda *_: None)
    resume(state, folder)
    assert (state.epoch, state.step) == (1, 0)
