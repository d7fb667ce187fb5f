"""A process that is watched, without Paddle: it makes two steps and then what the arguments say."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path

from ppcls.runtime.failures import Failures, Launch
from ppcls.runtime.progress import Progress
from ppcls.runtime.watchdog import guarded


def work(progress: Progress) -> None:
    while True:
        progress.tell("evaluation")
        time.sleep(0.05)


TROUBLE = {
    "sleep": lambda progress: time.sleep(3600),
    "read with Python's lock": lambda progress: ctypes.PyDLL(None).read(
        os.pipe()[0], ctypes.create_string_buffer(1), 1
    ),
    "stop": lambda progress: os.kill(os.getpid(), signal.SIGSTOP),
    "die": lambda progress: os.kill(os.getpid(), signal.SIGKILL),
    "work": work,
    "end": lambda progress: None,
}

if __name__ == "__main__":
    folder, rank, world, timeout, trouble = json.loads(sys.argv[1])
    failures = Failures(
        Path(folder), Launch(rank, world, "host_1", Path(folder) / "workerlog.0" if rank else None)
    )
    with failures.shown(), guarded(timeout, failures, Path(folder) / "train.log") as progress:
        for batch in (1, 2):
            progress.place(1, batch, batch - 1)
            progress.tell("forward")
            progress.stepped()
        progress.tell("backward")
        TROUBLE[trouble](progress)
