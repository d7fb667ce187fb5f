"""Compares the free disk space with the checkpoints that a run will keep, before it trains for days."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

from ppcls.engine.core.settings import CheckpointSettings
from ppcls.engine.core.state import TrainState

_FLOAT = 4  # bytes; weights are saved as float32


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
    weights = sum(math.prod(tensor.shape) for tensor in state.model.state_dict().values())
    trained = sum(math.prod(tensor.shape) for tensor in state.model.parameters() if not tensor.stop_gradient)
    # The optimizer has one value or more per weight that is trained.
    size = _FLOAT * (weights * (1 if state.ema is None else 2) + trained)
    count = settings.keep_best + -(-epochs // settings.save_interval) + 2
    existing = next(folder for folder in (output_dir, *output_dir.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if free >= count * size:
        return []
    return [
        f"warning: {output_dir}: {free / 1e9:.1f} GB are free, but up to {count} checkpoints of at least "
        f"{size / 1e9:.1f} GB will be kept; free some space, or increase Global.save_interval (now "
        f"{settings.save_interval})"
    ]
