"""Going on from a checkpoint, and saying beforehand what is kept and what is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from ppcls.config.base.fields import show
from ppcls.config.load import dump_config
from ppcls.config.schema import Config
from ppcls.data.index.read import describe_index
from ppcls.engine.checkpoint.paddleclas import is_paddleclas, restore_paddleclas
from ppcls.engine.checkpoint.snapshot import CONFIG, Remembered, restore
from ppcls.engine.core.state import TrainState
from ppcls.errors import UserError
from ppcls.weights.files import AVERAGE

# Where a run is kept and how it is watched: no change to what is trained.
_NO_MATTER = ("Global.checkpoints", "Global.output_dir", "Global.pretrained_model")
_SHOWN = 20


def resume(
    state: TrainState, source: Path, config: Config | None = None, *, has_best: bool = True
) -> list[str]:
    """Puts a run where a checkpoint left it.

    Args:
        state: At its beginning.
        source: A checkpoint's folder, or the common name of PaddleClas's files.
        config: Of the run that goes on, to compare with that of the checkpoint.
        has_best: Whether the run's folder has the best model until now. Without it the next evaluation is
            the best, or the folder might never get one, for no evaluation need beat that of another folder.

    Returns:
        The plan, line by line: where training goes on, what is kept, what changes and what can't be kept.

    Raises:
        UserError: The checkpoint is damaged, of another model or optimizer, or lies within an epoch
            whose remaining samples can't be kept.
    """
    first_scale = state.precision.state_dict()
    if is_paddleclas(source):
        restore_paddleclas(state, source)
        left = _leave_best(state, has_best)
        kept = (
            "model, optimizer and epoch" if state.best is None else "model, optimizer, epoch and best metric"
        )
        return [
            _header(state, source, state.runtime.world_size),
            f"  kept: {kept} of a PaddleClas checkpoint",
            "  begins anew: what PaddleClas does not save, such as the loss scale",
            *left,
        ]
    remembered = restore(state, source)
    lost = [f"  {line}" for line in _lost(state, source, remembered, first_scale)]
    lost += _leave_best(state, has_best)
    plan = [
        _header(state, source, remembered.world),
        f"  kept: {', '.join(_kept(state, source, remembered))}",
        *lost,
    ]
    if config is not None:
        plan += [f"  changed: {line}" for line in _changed(source / CONFIG, config)]
    return plan


def _leave_best(state: TrainState, has_best: bool) -> list[str]:
    """Forgets the best metric where the run's folder has no model of it; returns the plan's line for that."""
    if has_best or state.best is None:
        return []
    state.best, state.not_better = None, 0
    return ["  begins here: the best model, for the one until now is not in this folder"]


def _header(state: TrainState, source: Path, wrote: int) -> str:
    world = state.runtime.world_size
    ranks = f", of {wrote} processes, now {world}" if wrote != world else ""
    return f"resumed {source}: epoch {state.epoch + 1}, batch {state.step}, update {state.update}{ranks}"


def _kept(state: TrainState, source: Path, remembered: Remembered) -> Iterator[str]:
    yield "model"
    yield f"{type(state.optimizer).__name__}'s state"
    if state.ema is not None and (source / AVERAGE).is_file():
        yield "moving average"
    if remembered.precision and state.precision.state_dict() == remembered.precision:
        yield f"loss scale {remembered.precision.get('scale', '')}".rstrip()
    if state.step and remembered.data == describe_index(state.loader.index):
        yield f"the rest of epoch {state.epoch + 1}'s samples"
    elif state.closing:
        yield f"epoch {state.epoch}, whose evaluation comes first"
    if _plateau_seen(state, remembered):
        yield "what ReduceOnPlateau has seen"
    if state.best is not None:
        yield f"best metric {state.best:.4f}"


def _lost(
    state: TrainState, source: Path, remembered: Remembered, first_scale: dict[str, Any]
) -> Iterator[str]:
    """Says what is not as it would have been without the stop, and why."""
    before, now, order = remembered.loader, state.loader.state_dict(), state.loader.order
    if changes := order.changes(before):
        yield f"changed from here on: {'; '.join(changes.values())}{order.resume_hint(before)}"
    twice = before["step"] * before.get("global_batch", 0) - now["step"] * now["global_batch"]
    if twice > 0:
        yield (
            f"can't be kept: {twice} samples of epoch {now['epoch'] + 1} come twice, since none of the new "
            "updates begins where the checkpoint was made"
        )
    if remembered.data != (data := describe_index(state.loader.index)):
        others = f"; which samples of epoch {now['epoch'] + 1} came can't be kept" if now["step"] else ""
        yield f"changed: the training data, {remembered.data} -> {data}{others}"
    if remembered.world != state.runtime.world_size:
        yield "can't be kept: BatchNorm's batches and dropout's random numbers, which go by the process"
    rate = state.schedule(state.update)
    if abs(rate - remembered.learning_rate) > 1e-12 * abs(remembered.learning_rate):
        yield f"changed: learning rate of the next update, {remembered.learning_rate:.6g} -> {rate:.6g}"
    if remembered.precision != state.precision.state_dict():
        what = "begins anew" if first_scale else "is left"
        yield f"can't be kept: the loss scale, which {what} in {state.precision.name}"
    if state.plateau is not None and not _plateau_seen(state, remembered):
        yield "begins here: what ReduceOnPlateau sees"
    if remembered.best is not None and state.best is None:
        yield f"begins here: the best metric, which is {state.judge} now and was {remembered.judge}"
    has_average = (source / AVERAGE).is_file()
    if state.ema is not None and not has_average:
        yield "begins here: the moving average, with the weights"
    if state.ema is None and has_average:
        yield "left: the moving average, since the config has no EMA"


def _plateau_seen(state: TrainState, remembered: Remembered) -> bool:
    """Whether what `ReduceOnPlateau` has seen until now still counts."""
    if state.plateau is None or remembered.plateau is None:
        return False
    return bool(remembered.plateau.get("of", state.plateau.of) == state.plateau.of)


def _changed(path: Path, config: Config) -> Iterator[str]:
    """Compares the config with the one of the checkpoint, key by key."""
    try:
        before = dict(_leaves(yaml.safe_load(path.read_text(encoding="utf-8"))))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path}: damaged: {error}") from None
    now = dict(_leaves(yaml.safe_load(dump_config(config))))
    keys = [key for key in {**before, **now} if key not in _NO_MATTER and before.get(key) != now.get(key)]
    for key in keys[:_SHOWN]:
        effect = next((text for part, text in _EFFECTS.items() if part in key), "")
        yield f"{key}, {show(before.get(key))} -> {show(now.get(key))}{effect}"
    if len(keys) > _SHOWN:
        yield f"and {len(keys) - _SHOWN} keys more"


_EFFECTS = {
    "Global.epochs": " (the schedule is that of the new length)",
    "Global.use_dali": " (the same samples and decisions; decoders differ in the last bits)",
    "Train.dataset.transform_ops": " (from the next batch on)",
    "batch_transform_ops": " (from the next batch on)",
}


def _leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the path and the value of every leaf; a list is one unless it holds mappings."""
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from _leaves(value, f"{path}.{key}" if path else str(key))
    elif isinstance(tree, list) and any(isinstance(each, dict) for each in tree):
        for position, value in enumerate(tree):
            yield from _leaves(value, f"{path}.{position}")
    else:
        yield path, tree
