"""How the failure of one process of several reaches the terminal: the first one's, not its echoes.

The launcher shows only the first process's output, and a process that dies takes the others with it: they
fail a moment later, with errors of the connection. So each leaves its last words in one folder, the first
of them is marked, and those of another process than the launcher shows are written where it shows them.
"""

from __future__ import annotations

import os
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ppcls.errors import SignalExit, UserError
from ppcls.files import write_text

FOLDER = "failures"
_FIRST = "first.txt"
_ECHO = 1.0  # seconds in which the process that caused an error elsewhere has said so


@dataclass(frozen=True)
class Launch:
    """What the launcher tells one of its processes.

    Attributes:
        rank: Of the process, from 0.
        world: Number of processes.
        name: The same in all processes of a launch, another in every launch.
        shown: File that the launcher shows on its terminal; None where that is this process's own output.
    """

    rank: int
    world: int
    name: str
    shown: Path | None = None

    def show(self, text: str) -> None:
        """Writes lines on this process's own output, and on the terminal."""
        print(text, file=sys.stderr, flush=True)  # noqa: T201
        self.show_elsewhere(text)

    def show_elsewhere(self, text: str) -> None:
        """Writes lines on the terminal where it is not this process's own output."""
        if self.shown is not None:
            with suppress(OSError), self.shown.open("a", encoding="utf-8") as file:
                file.write(text + "\n")


class Failures:
    """The last words of the processes of one launch: ``failures/NAME/rank_1.txt``, and ``first.txt``.

    Args:
        output_dir: Folder of the run, which all processes see.
        launch: This process.
    """

    def __init__(self, output_dir: Path, launch: Launch) -> None:
        self.output_dir, self.launch = output_dir, launch
        self.folder = output_dir / FOLDER / launch.name
        self.hang = self.folder / "hang"  # is there once a process is stuck
        self._first = self.folder / _FIRST

    def file(self, rank: int) -> Path:
        """Returns where a rank's last words are."""
        return self.folder / f"rank_{rank}.txt"

    def forget(self) -> None:
        """Removes what an earlier launch of the same name left of this rank."""
        own = self.file(self.launch.rank)
        with suppress(OSError):
            if self._first.samefile(own):
                self._first.unlink()
        for left in (own, self.hang):
            with suppress(OSError):
                left.unlink()

    def claim(self, summary: str, text: str) -> bool:
        """Keeps this rank's last words, one line and all; returns whether they are the launch's first.

        Words that can't be kept count as the first: better shown twice than never.
        """
        own = self.file(self.launch.rank)
        try:
            own.parent.mkdir(parents=True, exist_ok=True)
            write_text(own, f"{summary}\n\n{text}\n")
        except OSError:
            return True
        try:
            os.link(own, self._first)
        except OSError as error:
            return not isinstance(error, FileExistsError)
        return True

    def first(self) -> str:
        """Returns one line on what failed first; there must be one."""
        with self._first.open(encoding="utf-8") as file:
            return file.readline().rstrip()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Has an error of the block shown where the user looks, unless it is the echo of another rank's.

        Raises:
            UserError: In the place of an echo, naming the rank that failed first.
        """
        self.forget()
        try:
            yield
        except SignalExit:
            raise
        except Exception as error:
            if self.launch.world == 1:
                raise
            if not isinstance(error, UserError):
                self._wait_for_another()
            own = f"error: {error}" if isinstance(error, UserError) else traceback.format_exc().rstrip()
            who = headline(self.launch.rank, os.getpid())
            if self.claim(f"{who} failed first: {own.splitlines()[-1]}", own):
                self.launch.show_elsewhere(f"\n{who} failed first:\n{own}\n")
                raise
            raise UserError(
                f"{self.first()}\nThat took rank {self.launch.rank} with it: "
                f"{self.file(self.launch.rank)} has what it made of it"
            ) from None

    def _wait_for_another(self) -> None:
        until = time.monotonic() + _ECHO
        while time.monotonic() < until and not self._first.exists():
            time.sleep(0.05)


def headline(rank: int, process: int) -> str:
    """Returns which process of a run one is, in words."""
    return f"rank {rank} (process {process} on {socket.gethostname()})"
