"""Runs Paddle's launcher, and ends it if its machines do not find each other within a time limit.

Paddle's launcher waits without limit: for the launcher of the first machine, for those of the other machines,
and for the first one again if that has just ended. A thread of the same process therefore watches whether it
has started its processes.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
import time
from pathlib import Path

import psutil

from ppcls.errors import TryAgainError
from ppcls.files import print_error

TIMEOUT = "PPCLS_MASTER_TIMEOUT"  # variable with the seconds to wait for the other machines
_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from ppcls.engine.launcher import main; main()"
_POLL = 1.0  # seconds


def launcher_command(options: list[str], program: list[str], seconds: int | None) -> list[str]:
    """Returns the command that runs Paddle's launcher.

    Args:
        options: Options of the launcher.
        program: Words of the program that it starts.
        seconds: Time limit until the launcher starts its processes; None for no limit.
    """
    words = [*options, *program]
    if seconds is None:
        return [sys.executable, "-m", "paddle.distributed.launch", *words]
    root = str(Path(__file__).resolve().parents[2])
    return [sys.executable, "-c", _START, root, str(seconds), program[0], *words]


def main() -> None:
    """Runs the launcher. Its arguments follow the time limit in seconds and the path of the program."""
    seconds = int(sys.argv.pop(1))
    program = sys.argv.pop(1)
    sys.path.pop(0)  # processes of the launcher must not import ppcls from another place
    threading.Thread(target=_limit_start, args=(seconds, program), daemon=True).start()
    runpy.run_module("paddle.distributed.launch", run_name="__main__", alter_sys=True)


def _limit_start(seconds: int, program: str) -> None:
    """Ends this process if it has not started the program within the time limit."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if _runs(program):
            return
        time.sleep(_POLL)
    if _runs(program):
        return
    print_error(
        f"error: the launchers of all machines did not find each other within {seconds} s. Start the missing "
        f"ones, and check the address in --master, --nnodes, the port and the firewall; {TIMEOUT} sets the "
        "limit in seconds"
    )
    os._exit(TryAgainError.code)


def _runs(program: str) -> bool:
    """Returns whether a child of this process runs the program."""
    for child in psutil.Process().children():
        try:
            if program in child.cmdline():
                return True
        except psutil.NoSuchProcess:  # it has just ended
            continue
    return False
