"""Stop anywhere, resume, and end bit for bit where the undisturbed run ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ppcls.config.schema import Config
from ppcls.engine import loop
from ppcls.engine.checkpoint import Checkpoints, resume
from ppcls.engine.state import build_state
from ppcls.engine.train import train
from ppcls.engine.weights import read_arrays
from ppcls.errors import UserError
from ppcls.report.jsonlines import read_records
from ppcls.runtime import Runtime

VARIANTS: dict[str, dict[str, Any]] = {
    "dali": {"Global__use_dali": True},
    "paddle.io": {"Global__use_dali": False},
    "accumulation": {"Global__update_freq": 2, "DataLoader__Train__sampler__batch_size": 4},
    "average": {"EMA__decay": 0.9, "Optimizer__clip_norm": 1.0},
    "repeated images": {"DataLoader__Train__sampler__name": "RepeatedAugSampler"},
    "bfloat16": {"AMP__dtype": "bfloat16"},
    "adamw": {"Optimizer": {"name": "AdamW", "lr": {"name": "Cosine", "learning_rate": 1e-3}}},
}


class Killed(Exception):
    """Ends a run as a crash would, between two steps."""


def output(config: Config) -> Path:
    folder = Path(config.Global.output_dir)
    folder.mkdir(exist_ok=True)
    return folder


def run_and_kill(config: Config, runtime: Runtime, update: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = loop.train_step

    def step(state: Any, batch: Any, *rest: Any) -> Any:
        if state.update == update:
            raise Killed
        return whole(state, batch, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "train_step", step)
        with pytest.raises(Killed):
            train(config, runtime, output(config))


def same_files(one: Path, other: Path) -> None:
    files = sorted(path.name for path in one.glob("*.safetensors"))
    assert files == sorted(path.name for path in other.glob("*.safetensors")) != []
    for file in files:
        expected, found = read_arrays(one / file), read_arrays(other / file)
        assert expected.keys() == found.keys()
        for key, value in expected.items():
            np.testing.assert_array_equal(found[key], value, err_msg=f"{file} {key}")


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_killed_run_ends_as_the_undisturbed_one(
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
    best = train(config, cpu, output(config)).best
    assert best is not None
    longer = make_config(Global__epochs=1, Global__checkpoints="auto")
    assert train(longer, cpu, output(longer)).best == best


def test_another_loader_goes_on_with_the_same_samples(
    make_config: Callable[..., Config], cpu: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config("switch", Global__save_steps=1, Global__use_dali=True)
    run_and_kill(config, cpu, 2, monkeypatch)
    switched = make_config("switch", Global__use_dali=False, Global__checkpoints="auto")
    state = build_state(switched, cpu, lambda model: None)
    folder = Checkpoints(output(switched), switched).find("auto")
    assert folder is not None
    resume(state, folder)
    assert (state.epoch, state.step, state.update) == (0, 2, 2)
    fresh = build_state(config, cpu, lambda model: None)
    expected = [batch.label.numpy().tolist() for batch in fresh.loader][2:]
    assert [batch.label.numpy().tolist() for batch in state.loader] == expected


def test_another_batch_size_within_an_epoch_is_refused_with_the_reason(
    make_config: Callable[..., Config], cpu: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(Global__save_steps=1)
    run_and_kill(config, cpu, 2, monkeypatch)
    other = make_config(Global__checkpoints="auto", DataLoader__Train__sampler__batch_size=4)
    with pytest.raises(UserError, match="middle of epoch 1, but global_batch was 8 and is 4"):
        train(other, cpu, output(other))


def test_another_batch_size_at_an_epochs_end_keeps_the_schedules_place(
    make_config: Callable[..., Config], cpu: Runtime
) -> None:
    config = make_config(Global__epochs=2, Global__save_interval=1)
    train(config, cpu, output(config))
    folder = output(config) / "epoch_1"
    other = make_config("other", DataLoader__Train__sampler__batch_size=4, Global__epochs=2)
    state = build_state(other, cpu, lambda model: None)
    fresh = state.schedule
    assert state.updates_per_epoch == 7
    resume(state, folder)
    assert state.update == 4
    assert state.schedule(state.update) == fresh(7)


def test_a_failed_evaluation_does_not_lose_the_epoch(
    make_config: Callable[..., Config], cpu: Runtime, images: Path, tmp_path: Path
) -> None:
    listing = tmp_path / "bad.txt"
    listing.write_text("eval.txt 0\n")  # text, not an image
    config = make_config(DataLoader__Eval__dataset__cls_label_path=str(listing))
    with pytest.raises(UserError, match="not an image"):
        train(config, cpu, output(config))
    folder = Checkpoints(output(config), config).find("auto")
    assert folder is not None
    state = build_state(config, cpu, lambda model: None)
    resume(state, folder)
    assert (state.epoch, state.step) == (1, 0)
