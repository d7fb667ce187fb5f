"""tools/train.py for a linear model, on machines that aren't what they should be.

``KILL=update,rank,what,mark`` loses a rank before an update, once: ``what`` is its ``worker`` or the whole
``host``, and the file ``mark`` says that it is done. Until then a process without another one waits: its
launcher will start it again, once there are two. ``ODD=rank:override`` gives a rank another config.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import linear_run  # noqa: F401 - registers the model

from ppcls.cli import train as cli
from ppcls.engine import execution


def kill_once(update: int, rank: int, what: str, mark: Path) -> None:
    whole = execution.train_step

    def step(state: Any, *rest: Any) -> Any:
        if (state.update, state.runtime.rank) == (update, rank) and not mark.exists():
            mark.touch()
            if what == "host":
                os.kill(os.getppid(), signal.SIGKILL)  # the launcher
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(state, *rest)

    execution.train_step = step


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if wanted := os.environ.get("KILL"):
        update, rank, what, mark = wanted.split(",")
        while os.environ["PADDLE_TRAINERS_NUM"] == "1" and not Path(mark).exists():
            time.sleep(0.1)
        kill_once(int(update), int(rank), what, Path(mark))
    if wanted := os.environ.get("ODD"):
        rank, override = wanted.split(":", 1)
        if rank == os.environ["PADDLE_TRAINER_ID"]:
            arguments += ["-o", override]
    sys.exit(cli.train(arguments))
