"""Ends a run in which a process is stuck, and reports the stacks of all processes.

A thread with `faulthandler` could not do this. If a process is stopped, or waits for a disk in the kernel,
none of its threads run. A killed process can't report its end. And all ranks must end together. Each process
therefore has a watchdog: a small process that reads the progress of the watched process from shared memory,
makes faulthandler write its stacks, and kills it.
"""

from __future__ import annotations

import faulthandler
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from ppcls.errors import TryAgainError
from ppcls.files import LogWriter, print_error
from ppcls.runtime.failures import FailureReports, describe_process
from ppcls.runtime.launch import Launch
from ppcls.runtime.progress import SIZE, Progress, ProgressSnapshot, read_progress

HEARTBEAT = "PPCLS_HEARTBEAT_FILE"  # variable with the path of a file that is touched while there is progress
SLOW_FACTOR = 3  # ratio of the timeouts of a slow activity, such as saving, and of a step
_MAX_RESERVE = 30.0  # seconds
_END = signal.SIGALRM  # ends a stuck process, unless it has a handler
_END_SECONDS = 2.0  # until a process that does not react is killed
_STACKS = signal.SIGRTMAX  # signal that makes the watched process write its stacks
# A terminal or launcher sends these signals to the whole process group. The run handles them. The watchdog
# ends when the run ends.
_BLOCKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from ppcls.runtime.watchdog import main; main()"


@contextmanager
def watch_for_hangs(timeout: float | None, failures: FailureReports, log: Path | None) -> Iterator[Progress]:
    """Runs a watchdog for this process within the block.

    Args:
        timeout: ``Global.hang_timeout`` in seconds; None for no watchdog.
        failures: Failure reports of the launch.
        log: Log file of the run, to which rank 0 writes a report on a stuck process; None for no log.

    Yields:
        The `Progress` to which the process must report its activities.
    """
    if timeout is None:
        yield Progress()
        return
    memory = os.memfd_create("progress")
    stacks = os.memfd_create("stacks")
    os.ftruncate(memory, SIZE)
    progress = Progress(memory)
    with os.fdopen(stacks, "w") as file:
        faulthandler.register(_STACKS, file)
        launch = failures.launch
        settings = {
            "timeout": timeout,
            "output_dir": str(failures.output_dir),
            "log": log and str(log),
            "launch": [launch.rank, launch.world_size, launch.name],
            "terminal_log": launch.terminal_log and str(launch.terminal_log),
            "process": os.getpid(),
            "memory": memory,
            "stacks": stacks,
        }
        root = str(Path(__file__).resolve().parents[2])
        previous = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)  # the watchdog inherits the mask
        try:
            watchdog = subprocess.Popen(  # noqa: S603
                [sys.executable, "-S", "-c", _START, root, json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(memory, stacks),
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous)
        try:
            yield progress
        finally:
            watchdog.kill()
            watchdog.wait()
            faulthandler.unregister(_STACKS)
            os.close(memory)


class StallClock:
    """Counts the seconds since the last progress. Does not count time in which the watchdog did not run.

    If a laptop is closed or Ctrl-Z stops the job, neither process runs, and the run is not stuck.

    Args:
        longest: Maximum number of seconds to count between two calls of `update`. If more time passed, the
            watchdog did not run all the time.
        now: Current time in seconds.
        progress: Current progress.

    Attributes:
        seconds: Counted seconds since the last progress.
        progress: Progress at the last call of `update`.
    """

    def __init__(self, longest: float, now: float, progress: ProgressSnapshot) -> None:
        self._longest = longest
        self._now = now
        self.progress = progress
        self.seconds = 0.0

    def update(self, now: float, progress: ProgressSnapshot) -> None:
        """Adds the time until ``now``, or restarts at 0 if there was progress."""
        elapsed = min(now - self._now, self._longest)
        self.seconds = self.seconds + elapsed if progress.count == self.progress.count else 0.0
        self._now = now
        self.progress = progress

    def expired(self, timeout: float, reserve: float) -> bool:
        """Returns whether at most ``reserve`` seconds of the timeout are left.

        Args:
            timeout: Timeout of a step in seconds.
            reserve: Part of the timeout in seconds that is reserved for the reports.
        """
        return self.seconds >= timeout * (SLOW_FACTOR if self.progress.slow else 1) - reserve


class Watchdog:
    """Watches the process that started this process.

    Args:
        failures: Failure reports of the launch of the watched process.
        settings: ``timeout``, ``log``, ``process``, and the descriptors ``memory`` and ``stacks``; see
            `watch_for_hangs`.
    """

    def __init__(self, failures: FailureReports, settings: dict[str, Any]) -> None:
        self._failures = failures
        self._launch = failures.launch
        self._log: str | None = settings["log"]
        self._timeout: float = settings["timeout"]
        self._process: int = settings["process"]
        self._memory: int = settings["memory"]
        self._stacks: int = settings["stacks"]
        # The last part of the timeout is reserved for the reports, and for the launcher to react.
        self._reserve = min(self._timeout / 4, _MAX_RESERVE)
        self._poll = min(self._reserve / 10, 0.5)
        try:
            self._ended = [os.pidfd_open(self._process)]  # becomes readable when the process ends
        except (OSError, AttributeError):  # the process has ended, or the kernel or Python is too old
            self._ended = []
        self._other_hang = threading.Event()
        first = os.environ.get("PADDLE_LOCAL_RANK", "0") == "0"  # of this machine
        self._heartbeat = os.environ.get(HEARTBEAT) if first else None

    def watch(self) -> NoReturn:
        """Waits until a process of the run is stuck, or the watched process ends.

        If a process is stuck, reports the state of the watched process and kills it.
        """
        threading.Thread(target=self._watch_others, daemon=True).start()
        clock = StallClock(2 * self._poll, time.monotonic(), read_progress(self._memory))
        while not self._other_hang.is_set() and not clock.expired(self._timeout, self._reserve):
            # Returns as soon as the process ends. Other processes fail as a consequence, and must not be
            # reported first.
            select.select(self._ended, [], [], self._poll)
            if os.getppid() != self._process:  # the process has ended
                self._report_death(read_progress(self._memory))  # newer than the last poll
            before = clock.progress.count
            clock.update(time.monotonic(), read_progress(self._memory))
            if self._heartbeat and clock.progress.count != before:
                with suppress(OSError):  # a full disk must not end the watchdog
                    Path(self._heartbeat).touch()
        self._report_hang(clock)

    def _watch_others(self) -> None:
        """Waits until another process is stuck. Runs in a thread, because access to the disk may block."""
        # Unlike Path.exists, this returns False if the folder can't be read.
        while not os.path.exists(self._failures.hang_marker):  # noqa: PTH110
            time.sleep(self._poll)
        self._other_hang.set()

    def _report_hang(self, clock: StallClock) -> NoReturn:
        """Writes a report on the watched process and kills it. Rank 0 also prints the reports of all ranks.

        Watchdogs of other ranks wait before they kill their process, because the launcher ends rank 0 as soon
        as another rank ends.
        """
        deadline = threading.Timer(2 / 3 * self._reserve, self._kill)  # in case writing blocks
        deadline.daemon = True
        deadline.start()
        with suppress(OSError):
            self._failures.folder.mkdir(parents=True, exist_ok=True)
            self._failures.hang_marker.touch()
        process = describe_process(self._launch.rank, self._process)
        summary = f"{process}: no progress for {clock.seconds:.0f} s; {clock.progress}"
        report = f"{summary}\n{self._read_stacks()}"
        if self._launch.rank == 0:
            report = f"the run is stuck and is stopped (Global.hang_timeout: {self._timeout:g} s)\n{report}"
        _print_error(report)
        self._failures.write(summary, report, TryAgainError.code)
        ranks = [rank for rank in range(self._launch.world_size) if rank != self._launch.rank]
        self._wait(lambda: all(self._failures.path(rank).exists() for rank in ranks))
        if self._launch.rank > 0:
            time.sleep(self._reserve / 6)
            self._kill()
        others = [self._failures.read(rank) or f"{self._failures.path(rank)}: no report" for rank in ranks]
        for text in others:
            _print_error(text)
        if self._log is not None:
            with suppress(OSError):
                LogWriter(Path(self._log)).message("\n".join([report, *others]))
        self._kill()

    def _read_stacks(self) -> str:
        """Returns the stacks of all Python threads of the watched process as text."""
        os.kill(self._process, _STACKS)
        sizes = [0, 0]  # the stacks are complete when their size no longer changes

        def complete() -> bool:
            sizes[:] = sizes[1], os.fstat(self._stacks).st_size
            return 0 < sizes[0] == sizes[1]

        self._wait(complete)
        text = os.pread(self._stacks, 1 << 20, 0).decode(errors="replace").rstrip()
        return text or "no stacks: the process does not respond to signals"

    def _wait(self, condition: Callable[[], bool]) -> None:
        """Waits until the condition is True, for at most a sixth of the reserve."""
        deadline = time.monotonic() + self._reserve / 6
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.05)

    def _report_death(self, progress: ProgressSnapshot) -> NoReturn:
        """Reports that the process ended without a Python error: it was killed, or crashed in C++."""
        if self._launch.world_size > 1:
            summary = (
                f"{describe_process(self._launch.rank, self._process)} was killed or crashed without a "
                f"Python error; {progress}. If the memory was exhausted, the kernel's log (dmesg) lists the "
                "process"
            )
            if self._failures.write(summary, "", TryAgainError.code):
                self._launch.show(summary)
            else:
                _print_error(f"{self._failures.first()[0]}\nRank {self._launch.rank} then failed too")
        os._exit(1)

    def _kill(self) -> NoReturn:
        """Ends the process by a signal that nothing else uses, so its exit code 142 means that it was stuck.

        137 is the exit code of a process that the system kills. A process that is stopped does not react.
        """
        with suppress(ProcessLookupError):
            os.kill(self._process, _END)
            select.select(self._ended, [], [], _END_SECONDS)
            if os.getppid() == self._process:
                os.kill(self._process, signal.SIGKILL)
        os._exit(1)


def _print_error(text: str) -> None:
    print_error(text)


def main() -> None:
    """Watches the process that started this process, with the settings on the command line."""
    settings: dict[str, Any] = json.loads(sys.argv[1])
    terminal_log = settings["terminal_log"]
    rank, world_size, name = settings["launch"]
    launch = Launch(rank, world_size, name, Path(terminal_log) if terminal_log else None)
    Watchdog(FailureReports(Path(settings["output_dir"]), launch), settings).watch()
