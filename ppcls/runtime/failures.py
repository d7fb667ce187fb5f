"""Reports failed ranks, so that the terminal shows the first failure and not the errors that it caused.

The launcher shows only the output of its first process. When a process fails, the other processes fail
shortly after it with connection errors. Each rank therefore writes a report to a common folder, and the first
report is marked. If the launcher does not show the process that failed first, its report is copied to the
terminal.
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

_UNEXPECTED = 1  # exit code of Python after an exception
_CAUSE_TIMEOUT = 1.0  # seconds to wait for the report of the process that caused an error on this rank


class FailureReports:
    """Failure reports of a launch: one file ``failures/NAME/rank_1.txt`` per rank, and a link ``first.txt``.

    Args:
        output_dir: Output folder of the run, on a disk that all ranks share.
        launch: The launch.
    """

    def __init__(self, output_dir: Path, launch: Launch) -> None:
        self.output_dir = output_dir
        self.launch = launch
        self.folder = output_dir / "failures" / launch.name
        self.hang_marker = self.folder / "hang"  # this file exists if a rank is stuck
        self._first = self.folder / "first.txt"

    def path(self, rank: int) -> Path:
        """Returns the path of the report of a rank."""
        return self.folder / f"rank_{rank}.txt"

    def clear(self) -> None:
        """Removes the report of this rank from an earlier launch with the same name."""
        path = self.path(self.launch.rank)
        with suppress(OSError):
            if self._first.samefile(path):
                self._first.unlink()
        for stale in (path, self.hang_marker):
            with suppress(OSError):
                stale.unlink()

    def write(self, summary: str, text: str, code: int) -> bool:
        """Writes the report of this rank.

        Args:
            summary: Summary of the failure, one line.
            text: Complete report.
            code: Exit code for ranks that fail because of this failure.

        Returns:
            Whether this is the first report of the launch. Also True if the report can't be written, so that
            the error is shown in any case.
        """
        path = self.path(self.launch.rank)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, f"{summary}\nexit code {code}\n\n{text}\n")
        except OSError:
            return True
        try:
            os.link(path, self._first)
        except OSError as error:
            return not isinstance(error, FileExistsError)
        return True

    def read(self, rank: int) -> str | None:
        """Returns the report of a rank without its summary; None if it does not exist."""
        try:
            text = self.path(rank).read_text(encoding="utf-8")
        except OSError:
            return None
        return text.partition("\n\n")[2].rstrip()

    def first(self) -> tuple[str, int]:
        """Returns the summary of the first report, and the exit code in it. The report must exist."""
        with self._first.open(encoding="utf-8") as file:
            summary, code = (file.readline().rstrip() for _ in range(2))
        return summary, int(code.rpartition(" ")[2])

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Returns a context that reports an error of the block.

        The terminal shows the error if this rank failed first.

        Raises:
            UserError: Another rank failed first. The message contains its summary, and the exit code is that
                of its failure. The launcher exits with the code of the process that ends first, which can be
                any of them.
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
            code = error.code if isinstance(error, UserError) else _UNEXPECTED
            if self.write(f"{process} failed first: {text.splitlines()[-1]}", text, code):
                self.launch.show_on_terminal(f"\n{process} failed first:\n{text}\n")
                raise
            rank = self.launch.rank
            first, code = self.first()
            consequence = UserError(f"{first}\nRank {rank} then failed too; see {self.path(rank)}")
            consequence.code = code
            raise consequence from None

    def _wait_for_cause(self) -> None:
        deadline = time.monotonic() + _CAUSE_TIMEOUT
        while time.monotonic() < deadline and not self._first.exists():
            time.sleep(0.05)


def describe_process(rank: int, process: int) -> str:
    """Returns the rank, process id and machine of a process as text."""
    return f"rank {rank} (process {process} on {socket.gethostname()})"
