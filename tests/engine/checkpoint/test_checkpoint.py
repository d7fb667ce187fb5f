"""Checkpoints are whole or not there, whatever fails, and tell what does not fit."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event, get_native_id
from typing import Any

import numpy as np
import paddle
import pytest
from run_checkpoints import checkpoints_of
from small_net import CLASSES, Net, assert_equal, content, make_state, train_epochs

from ppcls.engine.checkpoint import snapshot
from ppcls.engine.checkpoint.checkpoints import BEST, LATEST, Checkpoints
from ppcls.engine.checkpoint.resume import resume
from ppcls.engine.core.precision import FP32
from ppcls.engine.core.state import TrainState
from ppcls.errors import UserError
from ppcls.optimizer.state import optimizer_state
from ppcls.recipe.load import load_config
from ppcls.recipe.schema import Config
from ppcls.weights import store
from ppcls.weights.files import AVERAGE, WEIGHTS, read_arrays, read_weights, write_arrays
from ppcls.weights.manifest import MANIFEST, Manifest, read_manifest, write_file, write_manifest
from ppcls.weights.store import Store

STATE, OPTIMIZER = "state.json", "optimizer.safetensors"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


@pytest.fixture
def config(make_config: Callable[..., Config]) -> Config:
    return make_config()


@pytest.fixture
def checkpoints(output: Path, config: Config) -> Checkpoints:
    return checkpoints_of(output, config)


def everything(state: TrainState) -> dict[str, np.ndarray]:
    """Returns copies of all arrays of a run."""
    average = state.ema.state_dict() if state.ema is not None else {}
    optimizer = optimizer_state(state.optimizer, state.model)
    return {
        **content(state.model),
        **{f"average {name}": tensor.numpy().copy() for name, tensor in average.items()},
        **{f"optimizer {name}": tensor.numpy().copy() for name, tensor in optimizer.items()},
    }


def folders(output: Path) -> list[str]:
    return sorted(path.name for path in (output / "checkpoints").iterdir())


def links(output: Path) -> dict[str, str]:
    return {path.name: path.resolve().name for path in output.iterdir() if path.is_symlink()}


# What is written


def test_checkpoint_contains_the_whole_state(output: Path, checkpoints: Checkpoints, config: Config) -> None:
    state = train_epochs(make_state(decay=0.9))
    state.progress.best = 0.25
    checkpoints.save(state, [LATEST])
    folder = output / LATEST
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [WEIGHTS, AVERAGE, OPTIMIZER, STATE, "config.yaml", MANIFEST]
    )
    assert load_config(folder / "config.yaml") == config
    assert_equal(read_arrays(folder / WEIGHTS), content(state.model))
    again = make_state(seed=2, decay=0.9)
    resume(again, folder)
    assert_equal(everything(again), everything(state))
    assert (again.update, again.progress.best, again.epoch, again.step) == (3, 0.25, 1, 0)
    assert_equal(everything(train_epochs(again)), everything(train_epochs(state)))


@pytest.mark.parametrize("best", [None, 0.0, 1 / 3])
def test_checkpoint_restores_best_metric_exactly(
    output: Path, checkpoints: Checkpoints, best: float | None
) -> None:
    state = make_state()
    state.progress.best = best
    checkpoints.save(state, [LATEST])
    again = make_state()
    again.progress.best = 0.9
    resume(again, output / LATEST)
    assert again.progress.best == best


@pytest.mark.parametrize(("topk", "best"), [(1, 0.25), (3, None)], ids=["same metric", "another metric"])
def test_best_metric_is_restored_for_the_same_metric_only(
    output: Path, make_config: Callable[..., Config], topk: int, best: float | None
) -> None:
    state, again = (
        replace(make_state(), config=make_config(Metric__Eval=[{"TopkAcc": {"topk": k}}])) for k in (1, topk)
    )
    state.progress.best, state.progress.not_better = 0.25, 2
    checkpoints_of(output, state.config).save(state, [LATEST])
    resume(again, output / LATEST)
    assert (again.progress.best, again.progress.not_better) == (best, 0 if best is None else 2)


def test_checkpoint_restores_position_within_epoch(output: Path, checkpoints: Checkpoints) -> None:
    state = make_state()
    next(iter(state.loader))
    checkpoints.save(state, [LATEST])
    again = make_state()
    resume(again, output / LATEST)
    assert again.loader.state_dict() == state.loader.state_dict()
    assert (again.epoch, again.step) == (0, 1)


def test_half_weights_are_saved_as_their_float32_masters(
    output: Path, checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = make_state()
    state.model.to(dtype="float16")
    master = np.full((4, CLASSES), 1 + 2.0**-20, np.float32)  # float16 has no such number
    monkeypatch.setattr(
        snapshot, "optimizer_state", lambda *_: {"fc.weight/master": paddle.to_tensor(master)}
    )
    checkpoints.save(state, [LATEST])
    saved = read_arrays(output / LATEST / WEIGHTS)
    np.testing.assert_array_equal(saved["fc.weight"], master)
    assert {array.dtype for array in saved.values()} == {np.dtype(np.float32)}


class Scaled(FP32):
    """A precision that remembers something."""

    scale = 1.0

    def state_dict(self) -> dict[str, Any]:
        return {"scale": self.scale}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scale = state["scale"]


def test_checkpoint_restores_loss_scale(output: Path, checkpoints: Checkpoints) -> None:
    precision = Scaled()
    precision.scale = 1024.5
    checkpoints.save(make_state(precision=precision), [LATEST])
    again = Scaled()
    resume(make_state(precision=again), output / LATEST)
    assert again.scale == 1024.5


def test_save_in_background_writes_the_state_of_that_moment(
    output: Path, checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, whole = Event(), Store.write

    def write(*arguments: Any) -> Path:
        go.wait()
        return whole(*arguments)

    monkeypatch.setattr(Store, "write", write)
    state = train_epochs(make_state())
    expected, update = content(state.model), state.update
    checkpoints.save(state, [LATEST], in_background=True)
    assert not (output / LATEST).exists()
    train_epochs(state)  # meanwhile
    go.set()
    checkpoints.wait()
    assert_equal(read_arrays(output / LATEST / WEIGHTS), expected)
    assert read_manifest(output / LATEST).update == update < state.update


def test_only_the_writing_thread_leaves_the_cores_to_training(checkpoints: Checkpoints) -> None:
    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, get_native_id())

    found: list[int] = []
    before = priority()
    checkpoints.after_write = lambda: found.append(priority())
    for in_background in (True, False):
        checkpoints.save(make_state(), [LATEST], in_background=in_background)
        checkpoints.wait()
    assert found == [10, before]
    assert priority() == before


@pytest.mark.parametrize("again", [True, False])
def test_save_in_background_that_fails_is_reported_by_the_next_save_or_wait(
    output: Path, checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    def write(*_arguments: Any) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Store, "write", write)
    state = make_state()
    checkpoints.save(state, [LATEST], in_background=True)
    with pytest.raises(UserError, match="can't write a checkpoint: No space left on device; earlier"):
        checkpoints.save(state, [LATEST]) if again else checkpoints.wait()
    checkpoints.wait()  # reported once


def test_state_and_versions_are_plain_json(output: Path, checkpoints: Checkpoints) -> None:
    checkpoints.save(train_epochs(make_state()), [LATEST])
    remembered = json.loads((output / LATEST / STATE).read_text())
    assert remembered["update"] == 3
    assert remembered["loader"]["epoch"] == 1
    manifest = json.loads((output / LATEST / MANIFEST).read_text())
    assert manifest["format"] == 2
    assert manifest["versions"]["paddle"] == paddle.__version__
    assert (manifest["epoch"], manifest["step"], manifest["update"]) == (1, 0, 3)
    for name, record in manifest["files"].items():
        content = (output / LATEST / name).read_bytes()
        assert record == {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def test_links_are_relative_so_that_a_run_can_move(output: Path, checkpoints: Checkpoints) -> None:
    checkpoints.save(make_state(), [LATEST, BEST])
    assert (output / LATEST).readlink() == Path("checkpoints/step_00000000")
    output.rename(output.with_name("moved"))
    resume(make_state(), output.with_name("moved") / BEST)


def test_checkpoints_without_link_are_removed(output: Path, checkpoints: Checkpoints) -> None:
    state = make_state()
    for roles in ([LATEST, BEST], [LATEST, "epoch_2"], [LATEST], [LATEST]):
        train_epochs(state)
        checkpoints.save(state, roles)
    assert links(output) == {
        BEST: "step_00000003",
        "epoch_2": "step_00000006",
        LATEST: "step_00000012",
    }
    assert folders(output) == sorted(links(output).values())


def test_old_checkpoint_is_removed_after_the_new_one_is_linked(
    output: Path, checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = make_state()
    checkpoints.save(state, [LATEST])
    removed = []

    def rmtree(path: Path, **options: Any) -> None:
        if Path(path).name.endswith(".step_00000000"):
            removed.append(Path(path).name[-13:])
            assert (output / LATEST / STATE).is_file()
            assert links(output) == {LATEST: "step_00000003"}

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    checkpoints.save(train_epochs(state), [LATEST])
    assert removed == ["step_00000000"]


def test_second_checkpoint_of_an_update_gets_another_name(output: Path, checkpoints: Checkpoints) -> None:
    state = make_state()
    checkpoints.save(state, [LATEST])
    checkpoints.save(state, [BEST])
    assert links(output) == {LATEST: "step_00000000", BEST: "step_00000000_2"}
    checkpoints.save(state, [LATEST, BEST])
    assert links(output) == dict.fromkeys([LATEST, BEST], "step_00000000_3")
    assert folders(output) == ["step_00000000_3"]


def test_save_keeps_files_that_are_no_checkpoints(output: Path, checkpoints: Checkpoints) -> None:
    strange = ["notes.txt", "checkpoints/mine", "checkpoints/.mine", "checkpoints/.0123abcd.step"]
    for name in strange:
        (output / name).mkdir(parents=True)
    checkpoints.save(make_state(), [LATEST])
    checkpoints.save(make_state(), [LATEST])
    assert all((output / name).is_dir() for name in strange)


def test_checkpoints_of_other_ranks_are_not_written(output: Path, checkpoints: Checkpoints, cpu: Any) -> None:
    state = replace(make_state(), runtime=type(cpu)(rank=1))
    checkpoints.save(state, [LATEST])
    assert list(output.iterdir()) == []


@pytest.mark.parametrize("name", ["fc.weight", "bn._variance"])
def test_non_finite_weights_are_never_saved(output: Path, checkpoints: Checkpoints, name: str) -> None:
    state = make_state()
    checkpoints.save(state, [LATEST])
    before = everything(state)
    tensor = state.model.state_dict()[name]
    tensor.copy_(tensor * float("nan"), True)
    state.progress.update = 7
    with pytest.raises(UserError, match=f"weights are NaN or infinite at update 7: {name};"):
        checkpoints.save(state, [LATEST, BEST])
    assert links(output) == {LATEST: "step_00000000"}
    assert folders(output) == ["step_00000000"]
    again = make_state(seed=2)
    resume(again, output / LATEST)
    assert_equal(everything(again), before)


# FailureReports


FAILURES = {
    "weights": (store, "write_file", 1),
    "optimizer": (store, "write_file", 2),
    "average": (store, "write_file", 3),
    "config": (store, "write_file", 4),
    "state": (store, "write_file", 5),
    "manifest": (store, "write_manifest", 1),
    "a file's name": (Path, "replace", 4),
    "the folder": (Path, "mkdir", 1),
    "the folder's name": (Path, "rename", 1),
    "the first link": (Path, "symlink_to", 1),
    "the first link's name": (Path, "replace", 7),
    "the second link": (Path, "symlink_to", 2),
    "the second link's name": (Path, "replace", 8),
    "removal": (shutil, "rmtree", 1),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_failed_save_leaves_complete_checkpoints(
    output: Path, checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    state = make_state(decay=0.9)
    checkpoints.save(state, [LATEST, BEST])
    saved = {0: everything(state), 3: everything(train_epochs(state))}
    owner, name, fatal = FAILURES[failure]
    calls, whole = 0, getattr(owner, name)

    def failing(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == fatal:
            raise OSError(28, "No space left on device")
        return whole(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, failing)
        message = rf"{output}/checkpoints: can't write a checkpoint: No space left on device"
        with pytest.raises(UserError, match=message):
            checkpoints.save(state, [LATEST, BEST])
    assert calls == fatal
    for role in (LATEST, BEST):
        again = make_state(seed=2, decay=0.9)
        resume(again, output / role)
        assert_equal(everything(again), saved[again.update])
    checkpoints.save(state, [LATEST, BEST])
    assert set(links(output)) == {LATEST, BEST}
    assert folders(output) == sorted(set(links(output).values()))
    assert not [path.name for path in output.iterdir() if path.name.startswith(".")]


def test_leftovers_of_killed_runs_are_removed(output: Path, config: Config) -> None:
    left = output / "checkpoints" / ".01ab23cd.step_00000040"
    left.mkdir(parents=True)
    (left / WEIGHTS).write_bytes(b"half a file")
    (output / ".latest.new").symlink_to("checkpoints/step_00000040")
    checkpoints_of(output, config).save(make_state(), [LATEST])
    assert folders(output) == ["step_00000000"]
    assert links(output) == {LATEST: "step_00000000"}


def test_files_of_another_running_save_are_kept(output: Path, checkpoints: Checkpoints) -> None:
    """A hidden folder that appeared while this run lives may be in use."""
    busy = output / "checkpoints" / ".01ab23cd.step_00000040"
    busy.mkdir(parents=True)
    checkpoints.save(make_state(), [LATEST])
    assert busy.is_dir()


def test_checkpoint_error_names_folder_that_cannot_be_created(tmp_path: Path, config: Config) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/checkpoints: can't write a checkpoint: Not a directory"):
        checkpoints_of(tmp_path / "file", config).save(make_state(), [LATEST])


# Which one to resume from


def test_find_auto_returns_the_latest_checkpoint_or_none(output: Path, checkpoints: Checkpoints) -> None:
    assert checkpoints.find("auto") is None
    checkpoints.save(make_state(), [LATEST])
    assert checkpoints.find("auto") == output / LATEST


def test_find_path_returns_its_checkpoint(output: Path, checkpoints: Checkpoints) -> None:
    checkpoints.save(make_state(), ["epoch_1"])
    assert checkpoints.find(str(output / "epoch_1")) == output / "epoch_1"
    assert checkpoints.find("auto") == output / "epoch_1"


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


FILES = [WEIGHTS, OPTIMIZER, AVERAGE, STATE, "config.yaml", MANIFEST]


@pytest.mark.parametrize("harm", [damage, Path.unlink])
@pytest.mark.parametrize("file", FILES)
def test_find_auto_returns_the_newest_complete_checkpoint(
    output: Path, checkpoints: Checkpoints, file: str, harm: Callable[[Path], None]
) -> None:
    state = make_state(decay=0.9)
    checkpoints.save(state, ["epoch_1"])
    checkpoints.save(train_epochs(state), [LATEST])
    folder = (output / LATEST).resolve()
    harm(folder / file)
    assert checkpoints.find("auto") == output / "epoch_1" == checkpoints.newest_intact()
    (said,) = checkpoints.damaged
    assert said.startswith(f"{folder / file}: ")
    with pytest.raises(UserError, match=f"^{output / LATEST / file}: |no manifest"):
        checkpoints.find(str(output / LATEST))
    harm(output / "epoch_1" / file)
    with pytest.raises(UserError, match=r"all checkpoints of this run are damaged; .*:\n  .*\n  "):
        checkpoints.find("auto")
    assert checkpoints.newest_intact() is None


def test_damaged_file_error_names_file_and_digests(output: Path, checkpoints: Checkpoints) -> None:
    checkpoints.save(make_state(), [LATEST])
    path = output / LATEST / WEIGHTS
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    damage(path)
    after, size = hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size
    with pytest.raises(UserError) as caught:
        checkpoints.find(str(output / LATEST))
    assert str(caught.value) == (
        f"{path}: damaged: expected {size} bytes with SHA-256 {before}, found {size} bytes with "
        f"SHA-256 {after}; restore the file, or use another checkpoint"
    )
    with pytest.raises(UserError, match=f"expected {size} bytes with SHA-256 {before}, found"):
        read_weights(output / LATEST)


def test_newest_checkpoint_is_the_last_saved(output: Path, checkpoints: Checkpoints) -> None:
    """A run that went back to an earlier epoch resumes from the state that it had then."""
    state = make_state()
    checkpoints.save(train_epochs(state, 2), ["epoch_2"])
    checkpoints.save(train_epochs(make_state()), [LATEST])
    assert checkpoints.find("auto") == output / LATEST
    assert read_manifest(output / LATEST).update == 3


def test_newest_finds_checkpoint_without_link(
    output: Path, checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = make_state()
    checkpoints.save(state, [LATEST])
    with monkeypatch.context() as patch:
        patch.setattr(Path, "symlink_to", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
        with pytest.raises(UserError, match="No space left"):
            checkpoints.save(train_epochs(state), [LATEST])
    found = checkpoints.find("auto")
    assert found == output / "checkpoints" / "step_00000003"


@pytest.mark.parametrize(
    ("scores", "kept"),
    [
        ((0.1, 0.2, 0.3, 0.4), (0.4, 0.3, 0.2)),
        ((0.4, 0.3, 0.2, 0.1), (0.4, 0.3, 0.2)),
        ((0.2, 0.4, 0.1, 0.3), (0.4, 0.3, 0.2)),
        ((0.2, None, 0.2, 0.1), (0.2, 0.2, 0.1)),
    ],
)
def test_keep_best_keeps_k_checkpoints(
    output: Path,
    make_config: Callable[..., Config],
    scores: tuple[float | None, ...],
    kept: tuple[float, ...],
) -> None:
    checkpoints, state = checkpoints_of(output, make_config(Global__keep_best=3)), make_state()
    for score in scores:
        best = score is not None and (state.progress.best is None or score > state.progress.best)
        state.progress.best = score if best else state.progress.best
        checkpoints.save(train_epochs(state), [LATEST, BEST] if best else [LATEST], score)
    names = [BEST, f"{BEST}_2", f"{BEST}_3"]
    assert tuple(read_manifest(output / name).score for name in names) == kept
    assert len({(output / name).resolve() for name in names}) == 3
    assert set(links(output)) == {LATEST, *names}
    fewer = checkpoints_of(output, make_config(Global__keep_best=1))
    fewer.save(train_epochs(state), [LATEST])
    assert set(links(output)) == {LATEST, BEST}
    assert folders(output) == sorted(set(links(output).values()))


def test_scores_of_another_metric_are_not_compared(output: Path, make_config: Callable[..., Config]) -> None:
    state = make_state()
    for topk, scores in ((1, (0.8, 0.9)), (3, (0.3, 0.2))):
        config = make_config(Global__keep_best=3, Metric__Eval=[{"TopkAcc": {"topk": topk}}])
        state = replace(state, config=config)
        checkpoints, state.progress.best = checkpoints_of(output, state.config), None
        for score in scores:
            best = state.progress.best is None or score > state.progress.best
            state.progress.best = score if best else state.progress.best
            checkpoints.save(train_epochs(state), [LATEST, BEST] if best else [LATEST], score)
    names = [BEST, f"{BEST}_2", f"{BEST}_3"]
    assert [read_manifest(output / name).score for name in names] == [0.3, 0.2, 0.9]


@pytest.mark.parametrize("wrong", ["epoch_9", "checkpoints", "file", "auto "])
def test_find_rejects_what_is_no_checkpoint(output: Path, checkpoints: Checkpoints, wrong: str) -> None:
    checkpoints.save(make_state(), [LATEST])
    (output / "file").write_text("")
    with pytest.raises(
        UserError, match=rf"{wrong}: not a checkpoint folder \(no manifest\.json\); expected one"
    ):
        checkpoints.find(str(output / wrong))


def test_find_auto_rejects_a_dangling_link(output: Path, checkpoints: Checkpoints) -> None:
    checkpoints.save(make_state(), [LATEST])
    shutil.rmtree(output / "checkpoints")
    with pytest.raises(UserError, match="latest: not a checkpoint folder"):
        checkpoints.find("auto")


def test_new_run_rejects_folder_of_another_run(output: Path, checkpoints: Checkpoints) -> None:
    checkpoints.check_unused(None)
    checkpoints.save(make_state(), [LATEST])
    with pytest.raises(UserError, match=r"run already holds a run; resume it with --resume"):
        checkpoints.check_unused(None)
    shutil.rmtree(output / "checkpoints")
    with pytest.raises(UserError, match="already holds a run"):
        checkpoints.check_unused(None)


def test_resumed_run_rejects_folder_of_another_run(
    output: Path, checkpoints: Checkpoints, config: Config
) -> None:
    checkpoints.save(make_state(), [LATEST])
    other = checkpoints_of(output.with_name("other"), config)
    other.check_unused(output / LATEST)
    output.with_name("other").mkdir()
    other.save(make_state(), [LATEST])
    with pytest.raises(UserError, match="other already holds a run"):
        other.check_unused(output / LATEST)
    checkpoints.check_unused(output / LATEST)
    checkpoints.check_unused((output / LATEST).resolve())


# Resume of what does not fit


@pytest.fixture
def saved(output: Path, checkpoints: Checkpoints) -> Path:
    checkpoints.save(train_epochs(make_state(decay=0.9)), [LATEST])
    return output / LATEST


def change(folder: Path, **values: Any) -> None:
    remembered = json.loads((folder / STATE).read_text())
    (folder / STATE).write_text(json.dumps({**remembered, **values}))


def seal_again(folder: Path, **changes: Any) -> None:
    """Makes the manifest that of the files as they are now."""
    manifest = read_manifest(folder)
    files = {name: write_file(folder / name, (folder / name).read_bytes()) for name in manifest.files}
    write_manifest(folder, Manifest(**{**manifest.model_dump(), "files": files, **changes}))


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "{}", '{"update": 1}', "\xff\x00", '{"update": "many"}'],
)
def test_resume_of_a_damaged_state_is_an_error(saved: Path, text: str) -> None:
    (saved / STATE).write_text(text, encoding="latin-1")
    with pytest.raises(UserError, match=rf"{STATE}: damaged: "):
        resume(make_state(decay=0.9), saved)


@pytest.mark.parametrize(
    "values",
    [
        {"update": -1},
        {"update": None},
        {"best": "good"},
        {"loader": {}},
        {"loader": {"epoch": "first", "step": 0}},
        {"loader": 3},
        {"precision": None},
    ],
)
def test_resume_of_a_state_with_wrong_values_is_an_error(saved: Path, values: dict[str, Any]) -> None:
    change(saved, **values)
    with pytest.raises(UserError, match=rf"{STATE}: damaged: .*{next(iter(values))}"):
        resume(make_state(decay=0.9), saved)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step", 10**9),
        ("step", 3),
        ("epoch", 10**15),
        ("epoch", 1.0),
        ("best", float("nan")),
        ("learning_rate", float("inf")),
        ("update", 10**6),
    ],
)
@pytest.mark.parametrize("all_files", [False, True], ids=["state.json", "state.json and manifest"])
def test_resume_of_resealed_state_that_contradicts_itself_is_rejected(
    saved: Path, name: str, value: Any, all_files: bool
) -> None:
    loader = json.loads((saved / STATE).read_text())["loader"]
    in_loader = name in loader
    change(saved, **({"loader": {**loader, name: value}} if in_loader else {name: value}))
    seal_again(saved, **({name: value} if all_files and type(value) is int and name != "update" else {}))
    with pytest.raises(UserError, match=rf"{STATE}: damaged: .*{name}"):
        resume(make_state(decay=0.9), saved)


@pytest.mark.parametrize("value", [0, -4, math.inf, math.nan, None])
def test_resume_of_an_impossible_batch_size_within_an_epoch_is_rejected(
    saved: Path, value: float | None
) -> None:
    loader = json.loads((saved / STATE).read_text())["loader"]
    change(saved, loader={**loader, "step": 1, "global_batch": value})
    seal_again(saved, step=1)
    with pytest.raises(UserError, match=rf"{STATE}: damaged: loader: "):
        resume(make_state(decay=0.9), saved)


def test_resume_ignores_unlisted_average(output: Path, checkpoints: Checkpoints) -> None:
    checkpoints.save(train_epochs(make_state()), [LATEST])
    (output / LATEST / AVERAGE).write_bytes(b"stray")
    state = make_state(seed=2, decay=0.9)
    plan = resume(state, output / LATEST)
    assert "  reset: the moving average, which starts from the weights" in plan


def test_resume_of_a_newer_format_is_an_error(saved: Path, checkpoints: Checkpoints) -> None:
    seal_again(saved)
    text = (saved / MANIFEST).read_text()
    (saved / MANIFEST).write_text(text.replace('"format": 2', '"format": 3'))
    with pytest.raises(UserError, match="format 3 is not supported; this ppcls reads 2"):
        checkpoints.find(str(saved))


@pytest.mark.parametrize("file", [WEIGHTS, OPTIMIZER, AVERAGE])
@pytest.mark.parametrize("size", [0, 100])
def test_resume_of_damaged_arrays_is_an_error(saved: Path, file: str, size: int) -> None:
    (saved / file).write_bytes((saved / file).read_bytes()[:size])
    with pytest.raises(UserError, match=rf"{file}: damaged, or not a safetensors file"):
        resume(make_state(decay=0.9), saved)


@pytest.mark.parametrize("file", [WEIGHTS, OPTIMIZER])
def test_resume_with_a_missing_file_is_an_error(saved: Path, file: str) -> None:
    (saved / file).unlink()
    with pytest.raises(UserError, match=rf"{file}: no such file"):
        resume(make_state(decay=0.9), saved)


def test_resume_into_another_model_is_an_error(saved: Path) -> None:
    with pytest.raises(
        UserError,
        match=rf"{WEIGHTS}: weights of another model \(check that Arch is the same\): bn\._mean: expected",
    ):
        resume(make_state(model=Net(width=5)), saved)


def test_resume_into_another_optimizer_is_an_error(saved: Path) -> None:
    with pytest.raises(UserError, match=rf"{OPTIMIZER}: .*; check that Optimizer"):
        resume(make_state(kind=paddle.optimizer.Adam), saved)


@pytest.mark.parametrize(
    "change",
    [{"fc.bias": None}, {"fc.weight": np.zeros((4, 9), np.float32)}, {"more": np.zeros(1, np.float32)}],
)
def test_resume_of_an_average_of_another_model_is_an_error(saved: Path, change: dict[str, Any]) -> None:
    arrays = {**read_arrays(saved / AVERAGE), **change}
    kept = {name: paddle.to_tensor(array) for name, array in arrays.items() if array is not None}
    write_arrays(saved / AVERAGE, kept)
    with pytest.raises(UserError, match=rf"{AVERAGE}: weights of another model"):
        resume(make_state(decay=0.9), saved)


def test_ema_added_at_resume_starts_from_the_weights(output: Path, checkpoints: Checkpoints) -> None:
    checkpoints.save(train_epochs(make_state()), [LATEST])
    state = make_state(seed=2, decay=0.9)
    resume(state, output / LATEST)
    assert state.ema is not None
    assert_equal(state.ema.state_dict(), content(state.model))


def test_ema_removed_at_resume_is_ignored(saved: Path, checkpoints: Checkpoints) -> None:
    state = make_state()
    resume(state, saved)
    checkpoints.save(state, [LATEST])
    assert not (saved / AVERAGE).exists()


@pytest.mark.parametrize(("kept", "released"), [(1 << 30, False), (0, True)])
def test_a_large_copy_of_the_state_is_released_after_a_checkpoint(
    output: Path, checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch, kept: int, released: bool
) -> None:
    monkeypatch.setattr("ppcls.engine.checkpoint.checkpoints._KEPT_MEMORY", kept)
    state = train_epochs(make_state())
    for in_background in (True, False):
        checkpoints.save(state, [LATEST], in_background=in_background)
        checkpoints.wait()
        assert (sum(memory.size for memory in checkpoints._memory.values()) == 0) == released
        assert_equal(read_arrays(output / LATEST / WEIGHTS), content(state.model))
