"""Runs tools/train.py with a linear model on several machines, and can simulate faults.

``KILL=update,rank,what,mark`` kills a rank once, before an update. ``what`` is ``worker``, or ``host`` to
kill its launcher, too. The file ``mark`` exists after the kill. Before the kill, a process that is alone
waits until its launcher restarts it together with a second one. ``ODD=rank:override`` gives one rank a
different config.
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
