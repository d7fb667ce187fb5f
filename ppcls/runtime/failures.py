"""Reports of failed ranks: the terminal shows the rank that failed first, not the errors it caused elsewhere.

The launcher shows only the output of its first process. When a process dies, the others fail a moment later
with connection errors. So each rank writes a report into one folder, and the first report is marked. If the
launcher does not show the process that failed first, its report is copied to the terminal.
"""

from __future__ import annotations

import os
import socket
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ppcls.errors import SignalExit, UserError
from ppcls.files import write_text
from ppcls.runtime.launch import Launch

_CAUSE_TIMEOUT = 1.0  # seconds to wait for the report of the process that caused an error on this rank


class FailureReports:
    """Failure reports of one launch: ``failures/NAME/rank_1.txt`` per rank, and a link ``first.txt``.

    Args:
        output_dir: Output folder of the run, on a disk that all ranks share.
    """

    def __init__(self, output_dir: Path, launch: Launch) -> None:
        self.output_dir, self.launch = output_dir, launch
        self.folder = output_dir / "failures" / launch.name
        self.hang_marker = self.folder / "hang"  # exists once a rank is stuck
        self._first = self.folder / "first.txt"

    def path(self, rank: int) -> Path:
        """Returns the file of a rank's report."""
        return self.folder / f"rank_{rank}.txt"

    def clear(self) -> None:
        """Removes the report that this rank left in an earlier launch of the same name."""
        path = self.path(self.launch.rank)
        with suppress(OSError):
            if self._first.samefile(path):
                self._first.unlink()
        for stale in (path, self.hang_marker):
            with suppress(OSError):
                stale.unlink()

    def write(self, summary: str, text: str) -> bool:
        """Writes the report of this rank; returns whether it is the first one of the launch.

        A report that can't be written counts as the first: an error shown twice is better than one not shown.

        Args:
            summary: One line.
            text: The whole report.
        """
        path = self.path(self.launch.rank)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, f"{summary}\n\n{text}\n")
        except OSError:
            return True
        try:
            os.link(path, self._first)
        except OSError as error:
            return not isinstance(error, FileExistsError)
        return True

    def read(self, rank: int) -> str | None:
        """Returns the report of a rank without its summary; None if there is none."""
        try:
            text = self.path(rank).read_text(encoding="utf-8")
        except OSError:
            return None
        return text.partition("\n\n")[2].rstrip()

    def first_summary(self) -> str:
        """Returns the summary of the first report, which must exist."""
        with self._first.open(encoding="utf-8") as file:
            return file.readline().rstrip()

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Shows an error of the block on the terminal, unless the failure of another rank caused it.

        Raises:
            UserError: Another rank failed first; names that rank.
        """
        self.clear()
        try:
            yield
        except SignalExit:
            raise
        except Exception as error:
            if self.launch.world_size == 1:
                raise
            if not isinstance(error, UserError):
                self._wait_for_cause()
            text = f"error: {error}" if isinstance(error, UserError) else traceback.format_exc().rstrip()
            process = describe_process(self.launch.rank, os.getpid())
            if self.write(f"{process} failed first: {text.splitlines()[-1]}", text):
                self.launch.show_on_terminal(f"\n{process} failed first:\n{text}\n")
                raise
            rank = self.launch.rank
            raise UserError(
                f"{self.first_summary()}\nRank {rank} then failed too; see {self.path(rank)}"
            ) from None

    def _wait_for_cause(self) -> None:
        deadline = time.monotonic() + _CAUSE_TIMEOUT
        while time.monotonic() < deadline and not self._first.exists():
            time.sleep(0.05)


def describe_process(rank: int, process: int) -> str:
    """Returns the rank, process id and machine of a process as text."""
    return f"rank {rank} (process {process} on {socket.gethostname()})"
