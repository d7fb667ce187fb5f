"""Runs a process with a watchdog, without Paddle: it reports two steps and then performs the given action."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path

from ppcls.runtime.failures import FailureReports
from ppcls.runtime.launch import Launch
from ppcls.runtime.progress import Progress
from ppcls.runtime.watchdog import watch_for_hangs


def work(progress: Progress) -> None:
    while True:
        progress.report("evaluation")
        time.sleep(0.05)


ACTIONS = {
    "sleep": lambda progress: time.sleep(3600),
    "hang with the interpreter lock": lambda progress: ctypes.PyDLL(None).read(
        os.pipe()[0], ctypes.create_string_buffer(1), 1
    ),
    "stop": lambda progress: os.kill(os.getpid(), signal.SIGSTOP),
    "die": lambda progress: os.kill(os.getpid(), signal.SIGKILL),
    "work": work,
    "end": lambda progress: None,
}

if __name__ == "__main__":
    folder, rank, world_size, timeout, action = json.loads(sys.argv[1])
    terminal_log = Path(folder) / "workerlog.0" if rank else None
    failures = FailureReports(Path(folder), Launch(rank, world_size, "host_1", terminal_log))
    with failures.reporting(), watch_for_hangs(timeout, failures, Path(folder) / "train.log") as progress:
        for batch in (1, 2):
            progress.set_position(1, batch, batch - 1)
            progress.report("forward")
            progress.mark_first_step()
        progress.report("backward")
        ACTIONS[action](progress)
