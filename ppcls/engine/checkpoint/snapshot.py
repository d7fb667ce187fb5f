"""A run between two updates as files, and back: all that `ppcls.engine.core.state.TrainState` remembers.

Random states need no file: the random numbers of data are a function of (seed, epoch, image), and Paddle's
generators are seeded for each batch from (seed, rank, epoch, step).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paddle
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ppcls.config.load import dump_config
from ppcls.config.schema import Config
from ppcls.data.index.read import describe_index
from ppcls.engine.core.state import TrainState
from ppcls.errors import UserError
from ppcls.optimizer.state import MASTER, load_optimizer_state, optimizer_state
from ppcls.weights.files import AVERAGE, WEIGHTS, Arrays, fill, pack_arrays, read_arrays

OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"
CONFIG = "config.yaml"


class Remembered(BaseModel):
    """What ``state.json`` holds.

    Attributes:
        update: Optimizer updates done.
        best: Metric of the best evaluation so far.
        closing: See `ppcls.engine.core.state.TrainState`.
        learning_rate: That the next update was to have.
        world: Number of processes.
        data: The training samples, described by `ppcls.data.index.read.describe_index`.
        loader: Position of the loader, with what gives it its meaning.
        precision: Loss scale and the like.
        plateau: What `ppcls.optimizer.plateau.Plateau` counted; None where the rate goes by no evaluation.
        judge: Name of the metric that ``best`` is of; None where that was not written down.
        not_better: See `ppcls.engine.core.state.TrainState`.
    """

    model_config = ConfigDict(strict=True, extra="forbid")
    update: int = Field(ge=0)
    best: float | None
    closing: bool
    learning_rate: float
    world: int = Field(ge=1)
    data: str
    loader: dict[str, Any]
    precision: dict[str, Any]
    plateau: dict[str, Any] | None = None
    judge: str | None = None
    not_better: int = Field(0, ge=0)


def take(state: TrainState, config: Config) -> Iterator[tuple[str, bytes]]:
    """Yields the name and the content of each file.

    Raises:
        UserError: The model is not finite any more; before the first file.
    """
    optimizer = optimizer_state(state.optimizer, state.model)
    weights = _exact_weights(state, optimizer)
    _refuse_not_finite(weights, state.update)
    yield WEIGHTS, pack_arrays(weights)
    yield OPTIMIZER, pack_arrays(optimizer)
    if state.ema is not None:
        yield AVERAGE, pack_arrays(_whole_average(state))
    yield CONFIG, dump_config(config).encode()
    yield STATE, (_remember(state).model_dump_json(indent=2) + "\n").encode()


def recall(folder: Path) -> Remembered:
    """Reads a checkpoint's ``state.json``.

    Raises:
        UserError: It is missing or damaged.
    """
    path = folder / STATE
    try:
        return Remembered.model_validate(json.loads(path.read_bytes()))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"{path}: damaged: {where}: {first['msg']}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: damaged: {error}") from None


def restore(state: TrainState, folder: Path) -> Remembered:
    """Puts a run where a checkpoint left it, and returns what was remembered there.

    Weights that were float32 become masters of half-precision ones, and masters that are not wanted any
    more are left: they are the weights. An average that begins here begins with the weights.

    Raises:
        UserError: The checkpoint is damaged, of another model or optimizer, or lies within an epoch
            whose remaining samples can't be kept.
    """
    remembered = recall(folder)
    parts = [
        ("loader", state.loader.load_state_dict, remembered.loader),
        ("precision", state.precision.load_state_dict, remembered.precision),
    ]
    if state.plateau is not None and remembered.plateau is not None:
        parts.append(("plateau", state.plateau.load_state_dict, remembered.plateau))
    for part, load, saved in parts:
        try:
            load(saved)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{folder / STATE}: damaged: {part}: {error!r}") from None
    weights = read_arrays(folder / WEIGHTS)
    fill(state.model.state_dict(), weights, folder / WEIGHTS)
    fill_optimizer(state, read_arrays(folder / OPTIMIZER), weights, folder / OPTIMIZER)
    if state.ema is not None:
        source = folder / (AVERAGE if (folder / AVERAGE).is_file() else WEIGHTS)
        fill_average(state, read_arrays(source), source)
    state.update, state.closing = remembered.update, remembered.closing
    # Numbers of another metric can't be compared: the next evaluation is the best, or none would ever be.
    same = remembered.judge == state.judge or None in (remembered.judge, state.judge)
    state.best, state.not_better = (remembered.best, remembered.not_better) if same else (None, 0)
    keep_schedule(state)
    return remembered


def fill_optimizer(state: TrainState, arrays: Arrays, weights: Arrays, source: Path) -> None:
    """Gives the optimizer its state; masters come and go with the precision.

    Raises:
        UserError: It is another optimizer's.
    """
    own = optimizer_state(state.optimizer, state.model)
    masters = {key for key in own if key.endswith(f"/{MASTER}")}
    kept = {key: value for key, value in arrays.items() if not key.endswith(f"/{MASTER}") or key in masters}
    for key in masters - kept.keys():
        kept[key] = weights[key.removesuffix(f"/{MASTER}")].astype("float32")
    try:
        load_optimizer_state(
            state.optimizer, state.model, {key: paddle.to_tensor(value) for key, value in kept.items()}
        )
    except ValueError as error:
        raise UserError(f"{source}: {error}; is Optimizer the same, also what it freezes?") from None


def fill_average(state: TrainState, arrays: Arrays, source: Path) -> None:
    """Gives the moving average its values; raises as `ppcls.weights.files.fill` does."""
    fill(_whole_average(state), arrays, source)


def keep_schedule(state: TrainState) -> None:
    """Has the schedule go on at the epoch's place, also where epochs had another number of updates."""
    schedule = state.schedule
    shift = state.epoch * state.updates_per_epoch + state.updates_of_epoch - state.update
    if shift:
        state.schedule = lambda update: schedule(update + shift)


def _remember(state: TrainState) -> Remembered:
    return Remembered(
        update=state.update,
        best=state.best,
        closing=state.closing,
        learning_rate=state.schedule(state.update),
        world=state.runtime.world_size,
        data=describe_index(state.loader.index),
        loader=state.loader.state_dict(),
        precision=state.precision.state_dict(),
        plateau=None if state.plateau is None else state.plateau.state_dict(),
        judge=state.judge,
        not_better=state.not_better,
    )


def _refuse_not_finite(weights: dict[str, paddle.Tensor], update: int) -> None:
    wrong = [name for name, tensor in weights.items() if not bool(paddle.isfinite(tensor).all())]
    if wrong:
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise UserError(
            f"the model is not finite any more at update {update}: {wrong[0]}{more}; it was not saved. "
            "Lower Optimizer.lr.learning_rate, warm up, or give clip_norm"
        )


def _exact_weights(state: TrainState, optimizer: dict[str, paddle.Tensor]) -> dict[str, paddle.Tensor]:
    """Returns the model's weights in float32: under O2 the masters, of which the model's are roundings."""
    return {
        name: optimizer.get(f"{name}/{MASTER}", tensor).astype("float32")
        if tensor.is_floating_point()
        else tensor
        for name, tensor in state.model.state_dict().items()
    }


def _whole_average(state: TrainState) -> dict[str, paddle.Tensor]:
    assert state.ema is not None
    return {**state.model.state_dict(), **state.ema.state_dict()}
