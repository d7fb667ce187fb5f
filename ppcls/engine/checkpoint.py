"""What a run keeps on disk: one folder a checkpoint, and links that say what each is.

``checkpoints/step_00000360`` is written whole under another name and then renamed; ``latest``,
``best_model`` and ``epoch_N`` are links to such folders, each replaced in one rename. A folder that no
link names is removed, after the newer one is there.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import paddle
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ppcls import __version__
from ppcls.config.load import dump_config
from ppcls.config.schema import Config
from ppcls.engine.state import TrainState
from ppcls.engine.weights import AVERAGE, WEIGHTS, fill, read_arrays, write_arrays
from ppcls.errors import UserError
from ppcls.files import new_folder, write_text
from ppcls.optimizer.state import load_optimizer_state, optimizer_state

_FORMAT = 1
_OPTIMIZER = "optimizer.safetensors"
_STATE = "state.json"
_CONFIG = "config.yaml"
LATEST = "latest"
BEST = "best_model"


class _Remembered(BaseModel):
    """What ``state.json`` holds."""

    model_config = ConfigDict(strict=True, extra="forbid")
    format: int = _FORMAT
    versions: dict[str, str]
    update: int = Field(ge=0)
    best: float | None
    loader: dict[str, Any]
    precision: dict[str, Any]
    world: int | None = Field(None, ge=1)  # not in checkpoints of earlier versions


class Checkpoints:
    """The checkpoints of one output folder.

    Args:
        output_dir: Folder of the run.
        config: Written beside each checkpoint.
    """

    def __init__(self, output_dir: Path, config: Config) -> None:
        self._output_dir, self._config = output_dir, config
        self._folder = output_dir / "checkpoints"
        # Temporary folders that are here now and still are at the first save: their runs are dead.
        self._left = list(self._folder.glob(".????????.step_*"))

    def save(self, state: TrainState, roles: Iterable[str]) -> None:
        """Writes the state as `save_alone` does, while the other ranks wait for rank 0.

        Raises:
            UserError: It can't be written, or the model is not finite any more; all earlier
                checkpoints are as they were.
        """
        self.save_alone(state, roles)
        if state.runtime.world > 1:
            paddle.distributed.barrier()

    def save_alone(self, state: TrainState, roles: Iterable[str]) -> None:
        """Writes the state under ``roles`` (link names) on rank 0, and nothing on others; waits for none.

        Raises:
            UserError: As `save`.
        """
        if not state.runtime.is_main:
            return
        try:
            folder = self._write(state)
            for role in roles:
                self._link(role, folder)
            self._remove_unnamed()
        except OSError as error:
            raise UserError(
                f"{self._folder}: can't write a checkpoint: {error.strerror or error}; "
                "the earlier ones are untouched"
            ) from error

    def find(self, wanted: str) -> Path | None:
        """Returns the folder to resume from: ``wanted``, or with ``auto`` the latest, if there is one.

        Raises:
            UserError: ``wanted`` is no checkpoint folder.
        """
        path = self._output_dir / LATEST if wanted == "auto" else Path(wanted)
        if (path / _STATE).is_file():
            return path
        if wanted == "auto" and not path.is_symlink():
            return None
        raise UserError(f"{path}: not a checkpoint folder (no {_STATE}); expected one such as output/latest")

    def refuse_existing(self, resumed: Path | None) -> None:
        """Refuses an output folder that holds another run than the one to go on with.

        Args:
            resumed: Checkpoint folder of the run to go on with; None for a new run.

        Raises:
            UserError: It does.
        """
        own = resumed is not None and self._folder.resolve() in resumed.resolve().parents
        if (self._output_dir / LATEST).is_symlink() and not own:
            raise UserError(
                f"{self._output_dir} already holds a run; go on with it by -o Global.checkpoints=auto, "
                "or choose another Global.output_dir"
            )

    def _write(self, state: TrainState) -> Path:
        folder, copy = self._folder / f"step_{state.update:08d}", 1
        while folder.exists():
            copy += 1
            folder = folder.with_name(f"step_{state.update:08d}_{copy}")
        optimizer = optimizer_state(state.optimizer, state.model)
        weights = _exact_weights(state, optimizer)
        _refuse_not_finite(weights, state.update)
        with new_folder(folder) as temporary:
            write_arrays(temporary / WEIGHTS, weights)
            write_arrays(temporary / _OPTIMIZER, optimizer)
            if state.ema is not None:
                write_arrays(temporary / AVERAGE, _whole_average(state))
            write_text(temporary / _CONFIG, dump_config(self._config))
            write_text(temporary / _STATE, _remember(state).model_dump_json(indent=2) + "\n")
        return folder

    def _link(self, role: str, folder: Path) -> None:
        link = self._output_dir / role
        temporary = link.with_name(f".{role}.new")
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(os.path.relpath(folder, self._output_dir))
        temporary.replace(link)

    def _remove_unnamed(self) -> None:
        named = {link.resolve() for link in self._output_dir.iterdir() if link.is_symlink()}
        for folder in self._folder.glob("step_*"):
            if folder.resolve() not in named:
                shutil.rmtree(folder)
        while self._left:
            shutil.rmtree(self._left.pop(), ignore_errors=True)


def _remember(state: TrainState) -> _Remembered:
    return _Remembered(
        versions={"ppcls": __version__, "paddle": paddle.__version__},
        update=state.update,
        best=state.best,
        loader=state.loader.state_dict(),
        precision=state.precision.state_dict(),
        world=state.runtime.world,
    )


def _recall(path: Path) -> _Remembered:
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(tree, dict) and tree.get("format", _FORMAT) != _FORMAT:
            raise UserError(f"{path}: format {tree['format']}; this ppcls reads format {_FORMAT}")
        return _Remembered.model_validate(tree)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"{path}: damaged: {where}: {first['msg']}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: damaged: {error}") from None


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
        name: optimizer.get(f"{name}/master", tensor).astype("float32")
        if tensor.is_floating_point()
        else tensor
        for name, tensor in state.model.state_dict().items()
    }


def _whole_average(state: TrainState) -> dict[str, paddle.Tensor]:
    assert state.ema is not None
    return {**state.model.state_dict(), **state.ema.state_dict()}


def resume(state: TrainState, folder: Path) -> list[str]:
    """Puts a run where a checkpoint left it.

    Returns:
        Lines for the log: where the run goes on, and what is other than it was.

    Raises:
        UserError: The checkpoint is damaged, of another model or optimizer, or lies within an epoch
            whose remaining samples can't be kept.
    """
    remembered = _recall(folder / _STATE)
    try:
        state.loader.load_state_dict(remembered.loader)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder / _STATE}: damaged: loader: {error!r}") from None
    try:
        state.precision.load_state_dict(remembered.precision)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder / _STATE}: damaged: precision: {error!r}") from None
    fill(state.model.state_dict(), read_arrays(folder / WEIGHTS), folder / WEIGHTS)
    arrays = {key: paddle.to_tensor(value) for key, value in read_arrays(folder / _OPTIMIZER).items()}
    try:
        load_optimizer_state(state.optimizer, state.model, arrays)
    except ValueError as error:
        raise UserError(f"{folder / _OPTIMIZER}: {error}; is Optimizer the same?") from None
    if state.ema is not None:
        source = folder / (AVERAGE if (folder / AVERAGE).is_file() else WEIGHTS)
        fill(_whole_average(state), read_arrays(source), source)
    state.update, state.best = remembered.update, remembered.best
    _keep_schedule(state)
    return _tell_resumed(state, folder, remembered)


def _tell_resumed(state: TrainState, folder: Path, remembered: _Remembered) -> list[str]:
    order, world = state.loader.order, state.runtime.world
    wrote = "" if remembered.world in (None, world) else f", of {remembered.world} processes, now {world}"
    told = [f"resumed {folder}: epoch {state.epoch + 1}, batch {state.step}, update {state.update}{wrote}"]
    if changed := order.changes(remembered.loader):
        told.append(f"from here on {'; '.join(changed)}{order.for_any_world(remembered.loader)}")
    return told


def _keep_schedule(state: TrainState) -> None:
    """Has the schedule go on at the epoch's place, also where epochs had another number of updates."""
    schedule = state.schedule
    shift = state.epoch * state.updates_per_epoch + state.updates_of_epoch - state.update
    if shift:
        state.schedule = lambda update: schedule(update + shift)
