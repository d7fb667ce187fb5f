"""Resumes a run from a checkpoint, and reports which values were restored, changed or reset."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ppcls.config.base.problems import show
from ppcls.config.base.tree import Tree, leaves
from ppcls.config.base.yaml import read_yaml
from ppcls.data.index.protocol import describe_index, is_described
from ppcls.engine.checkpoint.paddleclas import is_paddleclas, restore_paddleclas
from ppcls.engine.checkpoint.snapshot import CONFIG, STATE, SavedState, has_average, restore
from ppcls.engine.core.state import TrainState
from ppcls.errors import UserError, counted

# Settings that do not affect training, so their changes are not reported.
_IGNORED = ("Global.checkpoints", "Global.output_dir", "Global.pretrained_model")
_SHOWN = 20
_EPOCHS = "Global.epochs"
_EFFECTS = {
    _EPOCHS: " (the schedule now has the new length)",
    "Global.use_dali": " (same samples and random decisions; decoders differ in the last bits)",
    "Train.dataset.transform_ops": " (from the next batch)",
    "batch_transform_ops": " (from the next batch)",
}


def resume(state: TrainState, source: Path, *, best_score: float = math.inf) -> list[str]:
    """Restores a run from a checkpoint.

    Args:
        state: State of a new run. Its config is compared with the config of the checkpoint.
        source: Folder of the checkpoint, or the common prefix of the files of PaddleClas.
        best_score: Score of the best model in the output folder, see `Checkpoints.best_score`. If the best
            metric of the checkpoint is higher, it is reset, because otherwise the folder might never get
            another best model.

    Returns:
        Lines for the log: the position, and the values that are restored, changed, reset or lost.

    Raises:
        UserError: The checkpoint is damaged, does not fit the model or the optimizer, or was saved within an
            epoch whose remaining samples can't be reproduced.
    """
    initial_scale = state.precision.state_dict()
    saved = None
    average = False
    world = state.runtime.world_size
    if is_paddleclas(source):
        restore_paddleclas(state, source)
        lines = ["reset: the loss scale and random states, which PaddleClas does not save"]
    else:
        saved = restore(state, source)
        average = has_average(source)
        lines = list(_lost(state, saved, initial_scale, average))
    if state.progress.best is not None and state.progress.best > best_score:
        state.progress.best = best_score if math.isfinite(best_score) else None
        state.progress.not_better = 0
        lines.append("reset: the best metric, since its model is not in this folder")
    restored = ["model", "optimizer", "epoch"] if saved is None else list(_kept(state, saved, average))
    if state.progress.best is not None:
        restored.append(f"best metric {state.progress.best:.4f}")
    if saved is not None:
        lines += [
            f"changed: {line}"
            for line in _changed(
                source / CONFIG, state.config.model_dump(mode="json"), state.epoch + (state.step > 0)
            )
        ]
    position = f"epoch {state.epoch + 1}, batch {state.step}, update {state.update}"
    if saved is not None and saved.world != world:
        position += f", saved by {counted(saved.world, 'process')}, now {world}"
    return [
        f"resumed {source}: {position}",
        f"  kept: {', '.join(restored)}",
        *(f"  {line}" for line in lines),
    ]


def _kept(state: TrainState, saved: SavedState, average: bool) -> Iterator[str]:
    yield "model"
    yield f"{type(state.optimizer).__name__} state"
    if state.ema is not None and average:
        yield "moving average"
    if saved.precision and state.precision.state_dict() == saved.precision:
        yield f"loss scale {saved.precision.get('scale', '')}".rstrip()
    if state.step and is_described(saved.data, state.loader.index):
        yield f"the remaining samples of epoch {state.epoch + 1}"
    elif state.progress.closing:
        yield f"epoch {state.epoch}, which is evaluated first"
    if _keeps_plateau(state, saved):
        yield "ReduceOnPlateau state"


def _lost(
    state: TrainState, saved: SavedState, initial_scale: dict[str, Any], average: bool
) -> Iterator[str]:
    """Yields the differences to a run that was not interrupted, with their reasons."""
    before = saved.loader
    now = state.loader.state_dict()
    order = state.loader.order
    if changes := order.changes(before):
        yield f"changed from here on: {'; '.join(changes.values())}{order.resume_hint(before)}"
    repeated = before["step"] * before.get("global_batch", 0) - now["step"] * now["global_batch"]
    if repeated > 0:
        yield (
            f"can't be kept: {counted(repeated, 'sample')} of epoch {now['epoch'] + 1} will be repeated, "
            "since no update of the new size starts at the checkpoint"
        )
    if not is_described(saved.data, state.loader.index):
        data = describe_index(state.loader.index)
        others = f"; the remaining samples of epoch {now['epoch'] + 1} can't be kept" if now["step"] else ""
        yield f"changed: the training data, {saved.data} -> {data}{others}"
    if saved.world != state.runtime.world_size:
        yield "can't be kept: BatchNorm's batches and dropout's random numbers, which depend on the process"
    threads = state.runtime.threads
    if state.runtime.device == "cpu" and saved.threads not in (None, threads):
        yield (
            f"changed: {saved.threads} -> {counted(threads, 'thread')} of Paddle, which add in another "
            "order, so the weights will differ from those of a run without interruption (Global.cpu_threads)"
        )
    rate = state.learning_rate(state.update)
    if abs(rate - saved.learning_rate) > 1e-12 * abs(saved.learning_rate):
        yield f"changed: learning rate of the next update, {saved.learning_rate:.6g} -> {rate:.6g}"
    if saved.precision != state.precision.state_dict():
        effect = "is reset" if initial_scale else "is not used"
        yield f"can't be kept: the loss scale, which {effect} in {state.precision.name}"
    if state.plateau is not None and not _keeps_plateau(state, saved):
        yield "reset: ReduceOnPlateau state"
    if saved.best is not None and state.progress.best is None:
        yield f"reset: the best metric, which is now {state.judge} and was {saved.judge}"
    if state.ema is not None and not average:
        yield "reset: the moving average, which starts from the weights"
    if state.ema is None and average:
        yield "ignored: the moving average, since the config has no EMA"


def _keeps_plateau(state: TrainState, saved: SavedState) -> bool:
    """Returns whether the checkpoint has a `ReduceOnPlateau` state for the metric of this run."""
    if state.plateau is None or saved.plateau is None:
        return False
    return bool(saved.plateau.get("of", state.plateau.of) == state.plateau.of)


def _changed(path: Path, config: Tree, epochs: int) -> Iterator[str]:
    """Yields the keys that differ between the config of the checkpoint and of the run, with both values.

    Args:
        path: Config of the checkpoint.
        config: Config of the run as plain data.
        epochs: Number of epochs that the checkpoint has started.
    """
    before = dict(leaves(read_yaml(path)))
    now = dict(leaves(config))
    # Users may resume a run with another number of epochs. Only an unchanged number can show damage.
    if before.get(_EPOCHS) == now[_EPOCHS] < epochs:
        raise UserError(
            f"{path.with_name(STATE)}: damaged: loader.epoch: expected at most "
            f"{counted(now[_EPOCHS], 'epoch')}, as in {CONFIG}, got {epochs}"
        )
    keys = [key for key in {**before, **now} if key not in _IGNORED and before.get(key) != now.get(key)]
    for key in keys[:_SHOWN]:
        effect = next((text for part, text in _EFFECTS.items() if part in key), "")
        yield f"{key}, {show(before.get(key))} -> {show(now.get(key))}{effect}"
    if len(keys) > _SHOWN:
        yield f"and {counted(len(keys) - _SHOWN, 'more key')}"
