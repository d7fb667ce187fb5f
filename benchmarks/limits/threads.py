"""Measures the CPU time of the threads of this process, and their wait for a core or the interpreter."""

from __future__ import annotations

import os
import statistics
import threading
import time
from dataclasses import dataclass
from pathlib import Path

TRAINING = "training thread"
DECODING = "threads of DALI"
EXECUTORS = "executors of DALI"
OTHERS = "other threads"
GROUPS = (TRAINING, DECODING, EXECUTORS, OTHERS)
_PROBE_SECONDS = 0.001  # pause of the thread that probes the interpreter lock


@dataclass(frozen=True)
class ThreadTime:
    """Times of a thread since its start.

    Attributes:
        group: Group of the thread, one of `GROUPS`.
        running: Seconds on a core.
        waiting: Seconds in which the thread was ready, but another thread used the core; 0 if the system does
            not report it.
    """

    group: str
    running: float
    waiting: float


@dataclass(frozen=True)
class GroupTime:
    """Times of a group of threads within a measurement.

    Attributes:
        threads: Number of threads that ran.
        running: Seconds on a core, of all threads together.
        waiting: Seconds of waiting for a core, of all threads together.
    """

    threads: int
    running: float
    waiting: float


def read_threads(folder: Path = Path("/proc/self/task")) -> dict[int, ThreadTime]:
    """Returns the times of the threads of this process, keyed by the number of the thread.

    Args:
        folder: Folder with one subfolder per thread.
    """
    times = {}
    for entry in folder.iterdir():
        try:
            status = (entry / "stat").read_text()
            running, waiting = _read_seconds(entry, status)
        except (OSError, ValueError):
            continue  # the thread has just ended
        name = status[status.index("(") + 1 : status.rindex(")")]
        times[int(entry.name)] = ThreadTime(_group_of(name, int(entry.name)), running, waiting)
    return times


def _read_seconds(entry: Path, status: str) -> tuple[float, float]:
    """Returns the seconds for which a thread ran, and for which it waited for a core."""
    try:
        running, waiting, _ = map(int, (entry / "schedstat").read_text().split())
    except (OSError, ValueError):
        running = waiting = 0
    if running:
        return running / 1e9, waiting / 1e9
    user, system = map(int, status[status.rindex(")") + 2 :].split()[11:13])
    return (user + system) / os.sysconf("SC_CLK_TCK"), 0.0


def _group_of(name: str, thread: int) -> str:
    if thread == os.getpid():
        return TRAINING
    if name.startswith("[DALI]"):
        # The kernel shortens names to 15 characters: "[DALI] Executor", but "[DALI][TP0]Exec".
        return EXECUTORS if name.startswith("[DALI] Exec") else DECODING
    return OTHERS


def compare(before: dict[int, ThreadTime], after: dict[int, ThreadTime]) -> dict[str, GroupTime]:
    """Returns the times of each group between two calls of `read_threads`, for all `GROUPS`."""
    groups = dict.fromkeys(GROUPS, GroupTime(0, 0.0, 0.0))
    for thread, now in after.items():
        then = before.get(thread, ThreadTime(now.group, 0.0, 0.0))
        total = groups[now.group]
        ran = now.running - then.running
        waited = now.waiting - then.waiting
        groups[now.group] = GroupTime(total.threads + (ran > 0), total.running + ran, total.waiting + waited)
    return groups


class LockProbe:
    """Measures the wait for the interpreter lock, with a thread that wakes up every millisecond.

    The delay after each pause includes the wait for a core, and about 0.1 ms of the timer.
    """

    def __init__(self) -> None:
        self._delays: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="probe", daemon=True)
        self._thread.start()

    def stop(self) -> tuple[float, float]:
        """Ends the thread, and returns the median and the 99th percentile of the delays in seconds."""
        self._stop.set()
        self._thread.join()
        delays = self._delays
        return statistics.median(delays), statistics.quantiles(delays, n=100)[98]

    def _run(self) -> None:
        while not self._stop.is_set() or len(self._delays) < 2:
            start = time.perf_counter()
            time.sleep(_PROBE_SECONDS)
            self._delays.append(time.perf_counter() - start - _PROBE_SECONDS)
