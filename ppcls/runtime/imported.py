"""Paddle's import: it happens once a process, and what Paddle reads then holds for each of its runs."""

from __future__ import annotations

import contextlib
import io
import signal
import sys
import threading
from dataclasses import dataclass

from ppcls.config.sections.run import Global
from ppcls.errors import UserError
from ppcls.runtime.hardware import Card
from ppcls.runtime.memory import Asked, Budget


def import_paddle() -> None:
    """Imports Paddle, quiet about what is on purpose: threads. SIGTERM goes on to do what it did.

    By itself Paddle has it print a stack, instead of what the process meant it to do.
    """
    said, before = io.StringIO(), signal.getsignal(signal.SIGTERM)
    with contextlib.redirect_stderr(said):
        import paddle  # noqa: F401
    if before is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)
    for line in said.getvalue().splitlines():
        if "OMP_NUM_THREADS" not in line:
            print(line, file=sys.stderr)  # noqa: T201


@dataclass(frozen=True)
class Imported:
    """What this process's Paddle was imported with.

    Attributes:
        threads: Its CPU threads.
        deterministic: Whether it, cuDNN, cuBLAS and MKL compute the same bits in each run.
        by_run: Whether a run imported it, and so settled all this; else somebody did before.
        asked: How that run wanted the GPU's memory divided; None where none did, and Paddle has no limit.
        card: The GPU whose memory is divided; None where it is not.
        budget: How it is divided; None where it is not.
    """

    threads: int
    deterministic: bool
    by_run: bool = False
    asked: Asked | None = None
    card: Card | None = None
    budget: Budget | None = None

    def refuse_other(self, settings: Global, asked: Asked | None) -> None:
        """Refuses what a run asks for and Paddle no longer takes.

        Args:
            settings: The run's.
            asked: How it wants the GPU's memory divided; None where it takes it as it is.

        Raises:
            UserError: It asks for other threads, for determinism or for another share of the GPU's memory.
        """
        if settings.cpu_threads not in (None, self.threads):
            raise self._too_late(
                f"Global.cpu_threads {settings.cpu_threads}", f"computes with {self.threads}"
            )
        if settings.deterministic and not self.deterministic:
            raise self._too_late("Global.deterministic True", "computes without it")
        if asked is None or asked.fraction is None:
            return
        has = self.asked.fraction if self.asked is not None else None
        if asked.fraction != has:
            share = "no limit" if has is None else f"{has:g}"
            raise self._too_late(f"{asked.setting} {asked.fraction:g}", f"has {share}")

    def describe(self, cores: int) -> str:
        """Returns what to know of an import that no run settled; empty where all is as a run has it."""
        early = not self.by_run and self.threads < cores
        return " (Paddle was imported before ppcls could set more)" if early else ""

    def _too_late(self, setting: str, found: str) -> UserError:
        who = "this process's first run imported it" if self.by_run else "it was imported, before ppcls could"
        cure = "" if self.by_run else ", without `import paddle` before the first run"
        return UserError(
            f"{setting}: Paddle {found}, which was fixed when {who}; start a new process (in a notebook: "
            f"restart the kernel){cure}, or leave the setting as it is"
        )
