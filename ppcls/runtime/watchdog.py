"""Ends a run in which a process is stuck, and says where each one was.

A process that waits in C++, be it with Python's lock, can't watch itself. So each has a watcher, a small
process of its own, which sees its progress in shared memory, has its stacks written by a signal that
Python need not handle, and kills it.
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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import ppcls
from ppcls.files import LogWriter
from ppcls.runtime.failures import Failures, Launch, headline
from ppcls.runtime.progress import SIZE, Progress, Seen, read

PATIENCE = 3  # times as long may take what is no plain step
_MOST_RESERVE = 30.0  # seconds
_STACKS = signal.SIGRTMAX
# Sent to a group of processes, these are for the run: its watcher ends when the run does.
_NOT_MEANT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from ppcls.runtime.watchdog import main; main()"


@contextmanager
def guarded(timeout: float | None, failures: Failures, log: Path | None) -> Iterator[Progress]:
    """Has this process watched while the block runs, by what it tells the `Progress` that is lent.

    Args:
        timeout: ``Global.hang_timeout`` in seconds; None for no watcher.
        failures: Where the last words of all processes go.
        log: File of the run's log, for the watcher of rank 0; None where it has none.
    """
    if timeout is None:
        yield Progress()
        return
    memory, stacks = os.memfd_create("progress"), os.memfd_create("stacks")
    os.ftruncate(memory, SIZE)
    progress = Progress(memory)
    with os.fdopen(stacks, "w") as file:
        faulthandler.register(_STACKS, file)
        launch = failures.launch
        told = {
            "timeout": timeout,
            "output_dir": str(failures.output_dir),
            "log": log and str(log),
            "launch": [launch.rank, launch.world, launch.name, launch.shown and str(launch.shown)],
            "process": os.getpid(),
            "memory": memory,
            "stacks": stacks,
        }
        root = str(Path(ppcls.__file__).parents[1])
        command = [sys.executable, "-S", "-c", _START, root, json.dumps(told)]
        watcher = subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=(memory, stacks)
        )
        try:
            yield progress
        finally:
            watcher.kill()
            watcher.wait()
            faulthandler.unregister(_STACKS)
            os.close(memory)


class Stillness:
    """How long a process has told nothing new, in seconds that the watcher itself was awake for.

    Where both slept, be it a laptop that was closed or a job stopped by Ctrl-Z, nothing is stuck.

    Args:
        most: Seconds that may lie between two looks; what is more, the watcher slept.
        now: Seconds of a clock.
        seen: What the process has told.
    """

    def __init__(self, most: float, now: float, seen: Seen) -> None:
        self._most, self._now, self.seen = most, now, seen
        self.seconds = 0.0

    def look(self, now: float, seen: Seen) -> None:
        """Takes what is seen ``now``."""
        passed = min(now - self._now, self._most)
        self.seconds = self.seconds + passed if seen.count == self.seen.count else 0.0
        self._now, self.seen = now, seen

    def lasts(self, limit: float, reserve: float) -> bool:
        """Whether all but the last ``reserve`` seconds of the time that the process has are over."""
        return self.seconds >= limit * (PATIENCE if self.seen.patient else 1) - reserve


class Watcher:
    """Watches one process from another one.

    Args:
        timeout: Seconds without progress after which the process has ended.
        failures: Where the last words of all processes go; of the watched process's launch.
        log: File of the run's log; None where it has none.
        process: The one that is watched, this one's parent.
        memory: Descriptor of its progress.
        stacks: Descriptor of the file into which it writes its stacks when it gets the signal.
    """

    def __init__(
        self,
        timeout: float,
        failures: Failures,
        log: Path | None,
        process: int,
        memory: int,
        stacks: int,
    ) -> None:
        self._timeout, self._failures, self._log = timeout, failures, log
        self._process, self._memory, self._stacks = process, memory, stacks
        # The last part of the time is for the reports, and for the launcher to notice.
        self._reserve = min(timeout / 4, _MOST_RESERVE)
        self._poll = min(self._reserve / 10, 0.5)
        self._called = threading.Event()
        try:
            self._end_of_process: int | None = os.pidfd_open(process)
        except OSError:  # Linux before 5.3
            self._end_of_process = None

    def watch(self) -> NoReturn:
        """Waits until the process is stuck, another one is, or it is gone, and does what is due then."""
        threading.Thread(target=self._listen, daemon=True).start()
        still = Stillness(2 * self._poll, time.monotonic(), read(self._memory))
        while not self._called.is_set() and not still.lasts(self._timeout, self._reserve):
            if self._gone():
                self._tell_gone(still.seen)
            still.look(time.monotonic(), read(self._memory))
        self._end(still)

    def _gone(self) -> bool:
        """Waits a moment for the process to end; returns whether it has."""
        if self._end_of_process is not None:
            return bool(select.select([self._end_of_process], [], [], self._poll)[0])
        time.sleep(self._poll)
        return os.getppid() != self._process

    def _listen(self) -> None:
        """Hears of another process that is stuck; in a thread, for the disk may be what is stuck."""
        while not os.path.exists(self._failures.hang):  # noqa: PTH110 - False, too, where it can't be looked
            time.sleep(self._poll)
        self._called.set()

    def _end(self, still: Stillness) -> NoReturn:
        """Reports, has rank 0 show what all report, and kills the process: rank 0 first, for it shows."""
        deadline = threading.Timer(2 / 3 * self._reserve, self._kill)  # also where nothing can be written
        deadline.daemon = True
        deadline.start()
        with suppress(OSError):
            self._failures.folder.mkdir(parents=True, exist_ok=True)
            self._failures.hang.touch()
        launch = self._failures.launch
        summary = f"{headline(launch.rank, self._process)}: no step for {still.seconds:.0f} s; {still.seen}"
        report = f"{summary}\n{self._dumped()}"
        if launch.rank == 0:
            report = f"Global.hang_timeout is {self._timeout:g} s: the run is stuck, and ends here\n{report}"
        print(report, file=sys.stderr, flush=True)  # noqa: T201
        self._failures.claim(summary, report)
        others = self._others()
        if launch.rank > 0:
            time.sleep(self._reserve / 6)
            self._kill()
        for text in others:
            print(text, file=sys.stderr, flush=True)  # noqa: T201
        if self._log is not None:
            with suppress(OSError):
                LogWriter(self._log).message("\n".join([report, *others]))
        self._kill()

    def _dumped(self) -> str:
        """Returns the stacks of all Python threads of the process."""
        os.kill(self._process, _STACKS)
        until, size = time.monotonic() + self._reserve / 6, 0
        while time.monotonic() < until and (not size or size != os.fstat(self._stacks).st_size):
            size = os.fstat(self._stacks).st_size
            time.sleep(0.05)
        text = os.pread(self._stacks, 1 << 20, 0).decode(errors="replace").rstrip()
        return text or "no stacks: the process does not even take a signal"

    def _others(self) -> list[str]:
        """Returns the reports of the other ranks, as many as come in time."""
        files = [self._failures.file(rank) for rank in range(self._failures.launch.world)]
        until = time.monotonic() + self._reserve / 6
        while time.monotonic() < until and not all(file.exists() for file in files):
            time.sleep(0.05)
        return [
            file.read_text(encoding="utf-8").partition("\n\n")[2].rstrip()
            if file.exists()
            else f"{file}: no report"
            for rank, file in enumerate(files)
            if rank != self._failures.launch.rank
        ]

    def _tell_gone(self, seen: Seen) -> NoReturn:
        """Names the process of several that went without a word, or what took this one with it.

        What such a process itself writes, if anything, is an error of the connection to the first one.
        """
        launch = self._failures.launch
        if launch.world > 1:
            summary = (
                f"{headline(launch.rank, self._process)} was killed or crashed, with no error of Python's; "
                f"{seen}. If memory was short, the kernel's log (dmesg) names it"
            )
            if self._failures.claim(summary, ""):
                launch.show(summary)
            else:
                print(f"{self._failures.first()}\nThat took rank {launch.rank} with it", file=sys.stderr)  # noqa: T201
        os._exit(1)

    def _kill(self) -> NoReturn:
        with suppress(ProcessLookupError):
            os.kill(self._process, signal.SIGKILL)
        os._exit(1)


def main() -> None:
    """Watches the process that started this one, as it says on the command line."""
    for number in _NOT_MEANT:
        signal.signal(number, signal.SIG_IGN)
    told: dict[str, Any] = json.loads(sys.argv[1])
    rank, world, name, shown = told.pop("launch")
    launch = Launch(rank, world, name, Path(shown) if shown else None)
    failures = Failures(Path(told.pop("output_dir")), launch)
    log = told.pop("log")
    Watcher(failures=failures, log=Path(log) if log else None, **told).watch()
