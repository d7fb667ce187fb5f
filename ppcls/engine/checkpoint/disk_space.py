"""Compares the free disk space with the checkpoints that a run will keep, before it trains for days."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from pathlib import Path

import paddle

from ppcls.engine.core.settings import CheckpointSettings
from ppcls.engine.core.state import TrainState
from ppcls.errors import counted
from ppcls.optimizer.state import MASTER, optimizer_state


def describe_disk_space(
    state: TrainState, settings: CheckpointSettings, output_dir: Path, epochs: int
) -> list[str]:
    """Returns a warning for the log if the disk has not enough space for all checkpoints, else an empty list.

    The run keeps the best models, one checkpoint per ``save_interval`` epochs, the latest one and the one
    that is being written. Links share a checkpoint, so the run may need less.

    Args:
        state: State of the run at its start.
        settings: Checkpoints to keep.
        output_dir: Output folder, which may be missing.
        epochs: Number of epochs that remain.
    """
    size = _checkpoint_size(state)
    count = settings.keep_best + -(-epochs // settings.save_interval) + 2
    existing = next(folder for folder in (output_dir, *output_dir.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if free >= count * size:
        return []
    return [
        f"warning: {output_dir}: {_show(free)} are free, but up to {counted(count, 'checkpoint')} of "
        f"{_show(size)} will be kept; free some space, or increase Global.save_interval (now "
        f"{settings.save_interval})"
    ]


def _show(size: int) -> str:
    """Returns a number of bytes for a message."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def _checkpoint_size(state: TrainState) -> int:
    """Returns the number of bytes of the arrays in a checkpoint, see `snapshot_files`."""
    weights = state.model.state_dict()
    optimizer = optimizer_state(state.optimizer, state.model)
    size = _size(weights, 4)  # as float32, which are the master weights
    size += _size({key: value for key, value in optimizer.items() if not key.endswith(f"/{MASTER}")})
    if state.ema is not None:
        size += _size({**weights, **state.ema.state_dict()})
    return size


def _size(tensors: Mapping[str, paddle.Tensor], float_size: int | None = None) -> int:
    """Returns the number of bytes of tensors.

    Args:
        float_size: Number of bytes of each floating-point number; None for that of its tensor.
    """
    return sum(
        math.prod(tensor.shape)
        * (float_size if float_size and tensor.is_floating_point() else tensor.element_size())
        for tensor in tensors.values()
    )
