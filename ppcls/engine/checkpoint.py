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

from ppcls import __version__
from ppcls.config.load import dump_config
from ppcls.config.schema import Config
from ppcls.engine.state import TrainState
from ppcls.engine.weights import AVERAGE, WEIGHTS, fill_model, read_arrays, write_arrays
from ppcls.errors import UserError
from ppcls.files import new_folder, write_text
from ppcls.optimizer.state import load_optimizer_state, optimizer_state

_FORMAT = 1
_OPTIMIZER = "optimizer.safetensors"
_STATE = "state.json"
_CONFIG = "config.yaml"
LATEST = "latest"
BEST = "best_model"


class Checkpoints:
    """The checkpoints of one output folder.

    Args:
        output_dir: Folder of the run.
        config: Written beside each checkpoint.
    """

    def __init__(self, output_dir: Path, config: Config) -> None:
        self._output_dir, self._config = output_dir, config
        self._folder = output_dir / "checkpoints"

    def save(self, state: TrainState, roles: Iterable[str]) -> None:
        """Writes the state under ``roles`` (link names); only rank 0 writes, the others wait.

        Raises:
            UserError: It can't be written; all earlier checkpoints are as they were.
        """
        if state.runtime.is_main:
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
        if state.runtime.world > 1:
            paddle.distributed.barrier()

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

    def refuse_existing(self) -> None:
        """Raises UserError where the output folder already holds a run that a new one would mix with."""
        if (self._output_dir / LATEST).is_symlink():
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
        with new_folder(folder) as temporary:
            write_arrays(temporary / WEIGHTS, _exact_weights(state, optimizer))
            write_arrays(temporary / _OPTIMIZER, optimizer)
            if state.ema is not None:
                write_arrays(temporary / AVERAGE, _whole_average(state))
            write_text(temporary / _CONFIG, dump_config(self._config))
            write_text(temporary / _STATE, json.dumps(_remember(state), indent=2) + "\n")
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


def _remember(state: TrainState) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "versions": {"ppcls": __version__, "paddle": paddle.__version__},
        "update": state.update,
        "best": state.best,
        "loader": state.loader.state_dict(),
        "precision": state.precision.state_dict(),
    }


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


def resume(state: TrainState, folder: Path) -> None:
    """Puts a run where a checkpoint left it.

    Raises:
        UserError: The checkpoint is damaged, of another model or optimizer, or lies within an epoch
            whose remaining samples can't be kept.
    """
    try:
        remembered = json.loads((folder / _STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / _STATE}: damaged: {error}") from None
    if remembered.get("format") != _FORMAT:
        raise UserError(f"{folder}: format {remembered.get('format')}; this ppcls reads format {_FORMAT}")
    state.loader.load_state_dict(remembered["loader"])
    fill_model(state.model, read_arrays(folder / WEIGHTS), folder / WEIGHTS)
    arrays = {key: paddle.to_tensor(value) for key, value in read_arrays(folder / _OPTIMIZER).items()}
    try:
        load_optimizer_state(state.optimizer, state.model, arrays)
    except ValueError as error:
        raise UserError(f"{folder / _OPTIMIZER}: {error}; is Optimizer the same?") from None
    if state.ema is not None and (folder / AVERAGE).is_file():
        average = read_arrays(folder / AVERAGE)
        state.ema.load_state_dict({key: paddle.to_tensor(value) for key, value in average.items()})
    state.precision.load_state_dict(remembered["precision"])
    state.update, state.best = remembered["update"], remembered["best"]
