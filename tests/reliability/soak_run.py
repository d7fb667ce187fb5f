"""Runs the command of tools/train.py, and writes the samples of each step to a file: a part of soak.py.

Each start of the run writes its own files, one per rank: ``$SOAK_STEPS/START.RANK``. A line has the times in
seconds at which the step began and ended, the update and the epoch before it, and the positions of its
samples.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from ppcls.cli.train import train
from ppcls.engine import execution
from ppcls.engine.profiling import scaling


def write_steps(path: Path) -> None:
    """Makes each step append a line to a file, also those in which a run measures its scaling."""
    whole = execution.train_step
    file = path.open("a", buffering=1)

    def step(state: Any, batch: Any, *rest: Any, **options: Any) -> Any:
        update, epoch = state.update, state.epoch
        began = time.time()
        loss = whole(state, batch, *rest, **options)
        positions = " ".join(map(str, batch.positions[: batch.valid].tolist()))
        file.write(f"{began:.3f} {time.time():.3f} {update} {epoch}: {positions}\n")
        return loss

    execution.train_step = scaling.train_step = step


if __name__ == "__main__":
    rank = os.environ.get("PADDLE_TRAINER_ID", "0")
    write_steps(Path(os.environ["SOAK_STEPS"] + f".{rank}"))
    sys.exit(train())
