"""What a run shows: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

from ppcls.report.record import EvalRecord, Reporter, StepRecord
from ppcls.report.text import clock, describe, figures

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


class PlainConsole:
    """One line for each record, at once: for pipes, files and batch systems."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def message(self, text: str) -> None:
        """Writes ``text`` and flushes."""
        self._stream.write(text + "\n")
        self._stream.flush()

    def train(self, record: StepRecord) -> None:
        """Writes the record's line."""
        self.message(describe(record))

    def evaluation(self, record: EvalRecord) -> None:
        """Writes the record's line."""
        self.message(describe(record))

    def close(self) -> None:
        """Leaves the stream open: it is not ours."""


class LiveConsole:
    """A bar for the running epoch and its figures beneath; all other lines scroll by above them.

    Args:
        console: Terminal to draw on; standard output where it is ``None``.
    """

    def __init__(self, console: Console | None = None) -> None:
        # Imported here, for a terminal alone needs it.
        from rich.console import Console as RichConsole
        from rich.live import Live
        from rich.text import Text

        self._console = console or RichConsole()
        self._bar = _epoch_bar(self._console)
        self._task = self._bar.add_task("", total=None, step="", eta="")
        self._figures = Text(style="dim")
        # Drawn when there is news, by the caller's thread: no thread competes with the loop.
        self._live = Live(console=self._console, auto_refresh=False)
        self._started = False

    def message(self, text: str) -> None:
        """Prints ``text`` above the bar."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def train(self, record: StepRecord) -> None:
        """Moves the bar."""
        from rich.console import Group

        self._bar.update(
            self._task,
            description=f"epoch {record.epoch}/{record.epochs}",
            completed=record.step,
            total=record.steps_per_epoch,
            step=f"{record.step}/{record.steps_per_epoch}",
            eta=f"eta {clock(record.eta_seconds)}",
        )
        self._figures.plain = figures(record)
        if not self._started:
            self._started = True
            self._live.start()
        self._live.update(Group(self._bar, self._figures), refresh=True)

    def evaluation(self, record: EvalRecord) -> None:
        """Prints the record's line above the bar."""
        self.message(describe(record))

    def close(self) -> None:
        """Leaves the bar as it stands, and the cursor below it."""
        if self._started:
            self._live.stop()


def _epoch_bar(console: Console) -> Progress:
    from rich.progress import BarColumn, Progress, TextColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[step]}"),
        TextColumn("{task.fields[eta]}"),
        console=console,
        expand=True,
    )


def build_console() -> Reporter:
    """Returns the live console where standard output is a terminal, the plain one elsewhere."""
    return LiveConsole() if sys.stdout.isatty() else PlainConsole(sys.stdout)
