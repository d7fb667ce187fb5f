"""The phases of a training step, as the step and the loop tell them to who measures.

`Phases` itself listens and does nothing, so a step that nobody measures costs nothing more.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

from ppcls.errors import UserError
from ppcls.runtime.progress import Progress

Phase = Literal["data wait", "forward", "backward", "all-reduce", "optimizer"]
_NOTHING = nullcontext()


class Phases:
    """Is told what a run does. A step is an optimizer update: one batch, or ``update_freq`` of them.

    Attributes:
        exchange_after: Whether ranks are to exchange gradients after the backward pass of the present step,
            as a phase of its own, instead of during it.
        timed: Whether the present step's phases are measured, so that it must be made of them; any other one
            may be replayed as a whole.
    """

    exchange_after = False
    timed = False

    def __call__(self, phase: Phase) -> AbstractContextManager[None]:
        """Returns the context of one phase of the present step."""
        return _NOTHING

    def begin_batch(self) -> None:
        """Is told that the loop turns to its next batch."""

    def end_batch(self, update: bool) -> None:
        """Is told that all that a batch caused is done, logging and saving included.

        Args:
            update: Whether the step ended with it.
        """

    def close(self) -> None:
        """Is told that the run ends, well or not."""


UNTIMED = Phases()


class Told(Phases):
    """Hands a step's phases on, and tells a process's progress by them.

    Args:
        phases: Who else listens.
        progress: Is told.
        world: Number of processes.
    """

    def __init__(self, phases: Phases, progress: Progress, world: int) -> None:
        self._phases, self._progress = phases, progress
        self._words = {"data wait": "waiting for data"}
        if world > 1 and not phases.exchange_after:
            self._words["backward"] = "backward and all-reduce"

    @property
    def exchange_after(self) -> bool:  # type: ignore[override]
        """That of who else listens."""
        return self._phases.exchange_after

    @property
    def timed(self) -> bool:  # type: ignore[override]
        """That of who else listens."""
        return self._phases.timed

    def __call__(self, phase: Phase) -> AbstractContextManager[None]:
        """Returns the other's context of the phase."""
        self._progress.report(self._words.get(phase, phase))
        return self._phases(phase)

    def begin_batch(self) -> None:
        """Hands it on."""
        self._phases.begin_batch()

    def end_batch(self, update: bool) -> None:
        """Hands it on; the step is done."""
        self._progress.mark_first_step()
        self._phases.end_batch(update)

    def close(self) -> None:
        """Hands it on."""
        self._phases.close()


@dataclass(frozen=True)
class Window:
    """The steps ``[start, stop)``, counted from 0 where the run starts or goes on.

    Attributes:
        start: First step; 0..stop-1.
        stop: First step after them.
    """

    start: int
    stop: int

    def __str__(self) -> str:
        return f"{self.start}:{self.stop}"


def read_window(text: str) -> Window:
    """Reads ``START:STOP``.

    Raises:
        UserError: It is no window.
    """
    found = re.fullmatch(r"(\d+):(\d+)", text, re.ASCII)
    window = Window(int(found[1]), int(found[2])) if found else None
    if window is None or window.start >= window.stop:
        raise UserError(
            f"--profile: expected START:STOP, two whole numbers with START < STOP, got '{text}'; "
            "--profile 10:20 measures ten steps after the first ten"
        )
    return window
