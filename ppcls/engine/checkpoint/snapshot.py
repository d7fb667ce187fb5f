"""Converts a `ppcls.engine.core.state.TrainState` between two updates to files, and back.

Random states need no file. The random numbers of the data depend only on (seed, epoch, image), and Paddle's
generators are seeded for each batch from (seed, rank, epoch, step).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paddle
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ppcls.data.index.protocol import describe_index
from ppcls.engine.core.state import TrainState
from ppcls.errors import UserError, counted
from ppcls.files import read_regular
from ppcls.optimizer.state import MASTER, load_optimizer_state, optimizer_state
from ppcls.runtime.host_memory import HostMemory
from ppcls.weights.files import AVERAGE, WEIGHTS, Arrays, copy_to_host, fill, read_arrays
from ppcls.weights.manifest import MANIFEST, read_manifest

OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"
CONFIG = "config.yaml"

Content = bytes | Arrays  # content of a file; arrays are packed when the file is written


class SavedState(BaseModel):
    """The content of ``state.json``.

    Attributes:
        update: Number of finished optimizer updates.
        best: Metric of the best evaluation so far.
        closing: See `ppcls.engine.core.state.RunProgress`.
        learning_rate: Learning rate planned for the next update.
        world: Number of processes.
        data: Description of the training samples, from `ppcls.data.index.protocol.describe_index`.
        loader: Position of the loader, and the settings that define the samples at this position.
        precision: Loss scale and its counters; empty without loss scaling.
        plateau: State of `ppcls.optimizer.plateau.Plateau`; None for other schedules.
        judge: Name of the metric of ``best``; None in older checkpoints.
        not_better: See `ppcls.engine.core.state.RunProgress`.
        metrics: See `ppcls.engine.core.state.RunProgress`; empty in older checkpoints.
        threads: Number of Paddle's CPU threads if the model was on a CPU; None on a GPU, and in older
            checkpoints.
    """

    model_config = ConfigDict(strict=True, extra="forbid")
    update: int = Field(ge=0)
    best: float | None = Field(allow_inf_nan=False)
    closing: bool
    learning_rate: float = Field(allow_inf_nan=False)
    world: int = Field(ge=1)
    data: str
    loader: dict[str, Any]
    precision: dict[str, Any]
    plateau: dict[str, Any] | None = None
    judge: str | None = None
    not_better: int = Field(0, ge=0)
    metrics: dict[str, float] = {}
    threads: int | None = Field(None, ge=1)


def snapshot_files(
    state: TrainState, config: str, memory: defaultdict[str, HostMemory]
) -> Iterator[tuple[str, Content]]:
    """Yields the name and content of each file of a checkpoint.

    Args:
        config: Config of the run as YAML text.
        memory: Memory for the arrays of each file. The next snapshot with the same memory overwrites them.

    Raises:
        UserError: A weight is NaN or infinite. Raised before the first file.
    """
    optimizer = optimizer_state(state.optimizer, state.model)
    weights = _exact_weights(state, optimizer)
    _check_finite(weights, state.update)
    yield WEIGHTS, copy_to_host(weights, memory[WEIGHTS])
    # The weights are the master weights, so these are not stored again.
    others = {
        key: tensor
        for key, tensor in optimizer.items()
        if not (key.endswith(f"/{MASTER}") and key.removesuffix(f"/{MASTER}") in weights)
    }
    del weights
    yield OPTIMIZER, copy_to_host(others, memory[OPTIMIZER])
    if state.ema is not None:
        yield AVERAGE, copy_to_host(_full_average(state), memory[AVERAGE])
    yield CONFIG, config.encode()
    saved = SavedState(
        update=state.update,
        best=state.progress.best,
        closing=state.progress.closing,
        learning_rate=state.learning_rate(state.update),
        world=state.runtime.world_size,
        data=describe_index(state.loader.index),
        loader=state.loader.state_dict(),
        precision=state.precision.state_dict(),
        plateau=None if state.plateau is None else state.plateau.state_dict(),
        judge=state.judge,
        not_better=state.progress.not_better,
        metrics=state.progress.metrics,
        threads=state.runtime.threads if state.runtime.device == "cpu" else None,
    )
    yield STATE, (saved.model_dump_json(indent=2) + "\n").encode()


def restore(state: TrainState, folder: Path) -> SavedState:
    """Restores a run from a checkpoint and returns the content of its ``state.json``.

    The saved float32 weights become the master weights of a half-precision model. Older checkpoints also have
    master weights, which are ignored if the run needs none, because they equal the saved weights. If the
    checkpoint has no moving average, it starts from the weights.

    Tensors are filled one by one from a file that is mapped into memory, so that the state of a large model
    is not in memory twice.

    Raises:
        UserError: The checkpoint is damaged, does not fit the model or the optimizer, or was saved within an
            epoch whose remaining samples can't be reproduced; or there is not enough memory.
    """
    try:
        return _restore(state, folder)
    except MemoryError as error:  # of Paddle, for the host and for a GPU
        size = sum(record.size for record in read_manifest(folder).files.values())
        reason = next((line.strip() for line in str(error).splitlines() if "llocate" in line), "")
        raise UserError(
            f"{folder}: there is not enough memory to restore this checkpoint of {size / 1e9:.2f} GB"
            f"{reason and f' ({reason})'}; free some memory, or start fewer processes on this machine"
        ) from None


def _restore(state: TrainState, folder: Path) -> SavedState:
    saved = _read_state(folder)
    _check_position(saved, folder / STATE)
    parts = [
        ("loader", state.loader.load_state_dict, saved.loader),
        ("precision", state.precision.load_state_dict, saved.precision),
    ]
    if state.plateau is not None and saved.plateau is not None:
        parts.append(("plateau", state.plateau.load_state_dict, saved.plateau))
    for part, load, content in parts:
        try:
            load(content)
        except (ArithmeticError, KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{folder / STATE}: damaged: {part}: {error!r}; resume from another checkpoint"
            ) from None
    if state.step >= max(1, len(state.loader)):
        raise UserError(
            f"{folder / STATE}: damaged: loader.step: expected less than "
            f"{counted(len(state.loader), 'batch')}, got {state.step}"
        )
    weights = read_arrays(folder / WEIGHTS)
    fill(state.model.state_dict(), weights, folder / WEIGHTS)
    fill_optimizer(state, read_arrays(folder / OPTIMIZER), weights, folder / OPTIMIZER)
    if state.ema is not None:
        source = folder / (AVERAGE if has_average(folder) else WEIGHTS)
        fill_average(state, read_arrays(source), source)
    progress = state.progress
    progress.update = saved.update
    progress.closing = saved.closing
    progress.metrics = saved.metrics
    # Scores of different metrics can't be compared, so the next evaluation becomes the best so far.
    same = saved.judge in (state.judge, None)
    progress.best, progress.not_better = (saved.best, saved.not_better) if same else (None, 0)
    align_schedule(state)
    return saved


def has_average(folder: Path) -> bool:
    """Returns whether a checkpoint was saved with a moving average."""
    return AVERAGE in read_manifest(folder).files


def fill_optimizer(state: TrainState, arrays: Arrays, weights: Arrays, source: Path) -> None:
    """Restores the optimizer's state. Adds or drops master weights, depending on the precision of the run.

    Args:
        arrays: Saved state of the optimizer.
        weights: Saved weights, from which missing master weights are copied.
        source: File of the state, for error messages.

    Raises:
        UserError: The state does not fit the optimizer.
    """
    names = optimizer_state(state.optimizer, state.model)
    masters = {key for key in names if key.endswith(f"/{MASTER}")}
    accepted = {
        key: value for key, value in arrays.items() if not key.endswith(f"/{MASTER}") or key in masters
    }
    for key in masters - accepted.keys():
        accepted[key] = weights[key.removesuffix(f"/{MASTER}")].astype("float32", copy=False)
    try:
        load_optimizer_state(state.optimizer, state.model, accepted)
    except ValueError as error:
        raise UserError(
            f"{source}: {error}; check that Optimizer and its frozen parameters are the same as in the run "
            "that saved this checkpoint"
        ) from None


def fill_average(state: TrainState, arrays: Arrays, source: Path) -> None:
    """Restores the moving average.

    Args:
        arrays: Saved average.
        source: File of the average, for error messages.

    Raises:
        UserError: See `ppcls.weights.files.fill`.
    """
    fill(_full_average(state), arrays, source)


def align_schedule(state: TrainState) -> None:
    """Shifts the learning rate schedule to the current epoch if earlier epochs had more or fewer updates."""
    position = state.epoch * state.updates_per_epoch + state.updates_of_epoch
    state.progress.schedule_shift = position - state.update


def _read_state(folder: Path) -> SavedState:
    path = folder / STATE
    try:
        return SavedState.model_validate(json.loads(read_regular(path)))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"{path}: damaged: {where}: {first['msg']}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: damaged: {error}") from None


def _check_position(saved: SavedState, path: Path) -> None:
    """Checks that the saved position is plausible."""
    manifest = read_manifest(path.parent)
    loader = saved.loader
    actual = {"update": saved.update, "loader.epoch": loader.get("epoch"), "loader.step": loader.get("step")}
    expected = {"update": manifest.update, "loader.epoch": manifest.epoch, "loader.step": manifest.step}
    problems = [
        f"{name}: expected {expected[name]} as in {MANIFEST}, got {value!r}"
        for name, value in actual.items()
        if type(value) is not int or value != expected[name]
    ]
    if manifest.epoch > manifest.update:
        problems.append(
            f"loader.epoch: {counted(manifest.epoch, 'epoch needs', 'epochs need')} at least "
            f"{counted(manifest.epoch, 'update')}, got {manifest.update}"
        )
    samples = loader.get("size")
    if manifest.step and not (type(samples) is int and manifest.step < samples):
        problems.append(f"loader.step: expected less than {samples!r} samples, got {manifest.step}")
    if problems:
        raise UserError(f"{path}: damaged: {'; '.join(problems)}")


def _check_finite(weights: dict[str, paddle.Tensor], update: int) -> None:
    finite = paddle.stack([paddle.isfinite(tensor).all() for tensor in weights.values()]).numpy()
    wrong = [name for name, good in zip(weights, finite, strict=True) if not good]
    if wrong:
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise UserError(
            f"weights are NaN or infinite at update {update}: {wrong[0]}{more}; this model is not saved. "
            "Lower Optimizer.lr.learning_rate, warm up, or clip gradients (clip_norm)"
        )


def _exact_weights(state: TrainState, optimizer: dict[str, paddle.Tensor]) -> dict[str, paddle.Tensor]:
    """Returns the weights in float32. With AMP O2 these are the master weights, which are not rounded."""
    exact = {
        name: optimizer.get(f"{name}/{MASTER}", tensor) for name, tensor in state.model.state_dict().items()
    }
    return {
        name: tensor.astype("float32")
        if tensor.is_floating_point() and tensor.dtype != paddle.float32
        else tensor
        for name, tensor in exact.items()
    }


def _full_average(state: TrainState) -> dict[str, paddle.Tensor]:
    """Returns the moving average, completed with the model's tensors that are not averaged."""
    assert state.ema is not None
    return {**state.model.state_dict(), **state.ema.state_dict()}
