"""Processes below a process: who they are, what they computed, and their end. Linux's /proc says so."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_GRACE = 10.0  # seconds to end in


def descendants(pid: int, proc: Path = Path("/proc")) -> list[int]:
    """Returns the processes that a process started, and those that these started."""
    found: list[int] = []
    for task in _listed(proc / str(pid) / "task"):
        for child in _read(task / "children").split():
            found += [int(child), *descendants(int(child), proc)]
    return found


def cpu_seconds(pid: int, proc: Path = Path("/proc")) -> float:
    """Returns the CPU time of a process and all below it that live, those it waited for included."""
    total = 0
    for each in (pid, *descendants(pid, proc)):
        # The name, in parentheses, may hold anything; after it come state, parent and so on.
        fields = _read(proc / str(each) / "stat").rpartition(")")[2].split()
        total += sum(map(int, fields[11:15]))  # own user and system time, that of children waited for
    return total / _TICKS


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and all below it: asks first, for a launcher ends its processes itself."""
    below = descendants(process.pid)
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE)
    for pid in (*below, *([process.pid] if process.poll() is None else [])):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    until = time.monotonic() + _GRACE
    while any(map(alive, below)) and time.monotonic() < until:
        time.sleep(0.01)


def alive(pid: int, proc: Path = Path("/proc")) -> bool:
    """Whether a process has not ended; one that nobody waited for has."""
    state = _read(proc / str(pid) / "stat").rpartition(")")[2].split()[:1]
    return bool(state) and state[0] != "Z"


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:  # it has ended
        return []


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:  # it has ended
        return ""
