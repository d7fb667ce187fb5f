"""Shows records as text: a live progress bar on a terminal, plain lines elsewhere, and a log file."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ppcls.errors import counted
from ppcls.files import LogWriter, for_terminal, lossy, print_error
from ppcls.report.record import EvalRecord, Record, Reporter, StepPosition, StepRecord

if TYPE_CHECKING:
    from rich.console import Console

# time between two texts about steps: plain lines, live bar
_PLAIN_SECONDS = 15.0
_LIVE_SECONDS = 0.25
_FIRST = " (loss and metrics follow)"


def clock(seconds: float) -> str:
    """Formats a duration as ``h:mm:ss``, or ``?`` if ``seconds`` is NaN, infinite or negative."""
    if not math.isfinite(seconds) or seconds < 0:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def _format_measures(loss: float, metrics: dict[str, float]) -> str:
    """Returns loss and metrics, such as ``loss 0.1234 top1 0.9876``. Large values have an exponent."""
    return " ".join(
        f"{name} {value:.4f}" if abs(value) < 10_000 else f"{name} {value:.4g}"
        for name, value in {"loss": loss, **metrics}.items()
    )


def format_measures(record: StepRecord) -> str:
    """Returns the values of a record, such as ``loss 0.1234 top1 0.9876 lr 0.00123 1234 img/s data 3%``."""
    speed = f"{record.images_per_second:.{0 if record.images_per_second >= 10 else 1}f} img/s"
    measures = _format_measures(record.loss, record.metrics)
    return f"{measures} lr {record.learning_rate:.4g} {speed} data {record.data_wait:.0%}"


def format_record(record: Record) -> str:
    """Returns the record as one line.

    Examples: ``[Train] epoch 3/20 step 40/90 loss 0.1234 top1 0.9876 lr 0.00123 1234 img/s data 3% eta
    0:01:12`` and ``[Eval] epoch 3 loss 0.1200 top1 0.9861 360 images 1.2 s (best)``.
    """
    if isinstance(record, StepRecord):
        return (
            f"[Train] epoch {record.epoch}/{record.epochs} step {record.step}/{record.steps_per_epoch} "
            f"{format_measures(record)} eta {clock(record.eta_seconds)}"
        )
    return (
        f"[Eval] epoch {record.epoch} {_format_measures(record.loss, record.metrics)} "
        f"{counted(record.images, 'image')} {record.seconds:.1f} s{' (best)' if record.best else ''}"
    )


class StepClock:
    """Measures the speed of steps on the host, and limits the number of texts about them.

    Args:
        seconds: Minimum time between two texts, in seconds.
    """

    def __init__(self, seconds: float) -> None:
        self._interval = seconds
        self._shown = time.monotonic()
        self.reset()

    def reset(self) -> None:
        """Restarts the measurement, after a record or an evaluation."""
        self._start = time.monotonic()
        self._images = 0
        self._steps = 0
        self._shown = self._start

    def is_due(self) -> bool:
        """Returns whether it is time to show a text. If so, the next text is due after the interval."""
        now = time.monotonic()
        due = now - self._shown >= self._interval
        self._shown = now if due else self._shown
        return due

    def add(self, position: StepPosition) -> tuple[str, str] | None:
        """Adds a step.

        Returns:
            The speed and the remaining time as text if it is time to show them, else None.
        """
        self._images = self._images + position.images
        self._steps = self._steps + 1
        if not self.is_due():
            return None
        seconds = self._shown - self._start
        return f"{self._images / seconds:.1f} img/s", clock(position.eta(seconds / self._steps))


class LogFile(Reporter):
    """Appends each message and record to a file, with the local time.

    Args:
        path: The file, such as ``train.log``.
    """

    def __init__(self, path: Path) -> None:
        self._writer = LogWriter(path)

    def message(self, text: str, update: int | None = None) -> None:  # noqa: ARG002
        """Appends ``text``, with a timestamp on each of its lines."""
        self._writer.message(text)

    def record(self, record: Record) -> None:
        """Appends the line of the record."""
        self._writer.message(format_record(record))

    def close(self) -> None:
        """Closes the file."""
        self._writer.close()


class PlainConsole(Reporter):
    """Writes one line per message or record, and flushes it. For pipes, files and batch systems."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._clock = StepClock(_PLAIN_SECONDS)

    def message(self, text: str, update: int | None = None) -> None:  # noqa: ARG002
        """Writes ``text`` as a line, and flushes it."""
        self._stream.write(for_terminal(text) + "\n")
        self._stream.flush()

    def record(self, record: Record) -> None:
        """Writes the line of the record."""
        self.message(format_record(record))
        self._clock.reset()

    def advance(self, position: StepPosition) -> None:
        """Writes a line if the last one was at least 15 seconds ago."""
        if (measures := self._clock.add(position)) is not None:
            step = f"step {position.step}/{position.steps_per_epoch}"
            self.message(f"epoch {position.epoch}/{position.epochs} {step} {measures[0]} eta {measures[1]}")

    def advance_evaluation(self, batch: int, batches: int) -> None:
        """Writes a line if the last one was at least 15 seconds ago."""
        if self._clock.is_due():
            self.message(f"evaluation: batch {batch}/{batches}")


class LiveConsole(Reporter):
    """Shows a progress bar and the values of the current epoch. Other lines scroll above them.

    Args:
        console: Terminal to draw on; None for standard output.
    """

    def __init__(self, console: Console | None = None) -> None:
        # Imported here because only a terminal needs rich.
        from rich.console import Console as RichConsole
        from rich.live import Live
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.text import Text

        self._console = console or RichConsole(file=lossy(sys.stdout))
        fields = TextColumn("{task.fields[step]}"), TextColumn("{task.fields[eta]}")
        columns = TextColumn("{task.description}"), BarColumn(bar_width=None), *fields
        self._bar = Progress(*columns, console=self._console, expand=True)
        self._task = self._bar.add_task("", total=None, step="", eta="")
        self._measures = Text(style="dim")
        # The calling thread draws the bar, so that no other thread competes with the training loop.
        self._live = Live(console=self._console, auto_refresh=False)
        self._clock = StepClock(_LIVE_SECONDS)
        self._epoch: dict[str, Any] = {}  # fields of the bar for the current epoch
        self._complete = False  # whether the last step of the run is finished

    def message(self, text: str, update: int | None = None) -> None:  # noqa: ARG002
        """Prints ``text`` above the bar."""
        self._console.print(for_terminal(text), markup=False, highlight=False, soft_wrap=True)

    def record(self, record: Record) -> None:
        """Updates the bar, or prints the line of an evaluation above the bar."""
        self._clock.reset()
        if isinstance(record, EvalRecord):
            self._bar.update(self._task, **self._epoch)
            if self._complete:  # the last lines of a run are printed below the bar
                self.close()
            self.message(format_record(record))
            return
        self._measures.plain = format_measures(record)
        self._show_epoch(record, clock(record.eta_seconds))

    def advance(self, position: StepPosition) -> None:
        """Updates the bar, at most four times per second."""
        if (measures := self._clock.add(position)) is None:
            return
        if not self._measures.plain or self._measures.plain.endswith(_FIRST):
            self._measures.plain = measures[0] + _FIRST
        self._show_epoch(position, measures[1])

    def advance_evaluation(self, batch: int, batches: int) -> None:
        """Shows the progress of an evaluation in the bar, at most four times per second."""
        if self._clock.is_due():
            step = f"{batch}/{batches}"
            self._show(description="evaluation", completed=batch, total=batches, step=step, eta="")

    def _show_epoch(self, position: StepRecord | StepPosition, eta: str) -> None:
        self._epoch = {
            "description": f"epoch {position.epoch}/{position.epochs}",
            "completed": position.step,
            "total": position.steps_per_epoch,
            "step": f"{position.step}/{position.steps_per_epoch}",
            "eta": f"eta {eta}",
        }
        self._complete = (position.epoch, position.step) == (position.epochs, position.steps_per_epoch)
        self._show(**self._epoch)

    def _show(self, **fields: Any) -> None:
        from rich.console import Group

        self._bar.update(self._task, **fields)
        self._live.start()
        self._live.update(Group(self._bar, self._measures), refresh=True)

    def close(self) -> None:
        """Stops updating the bar. It stays on the screen, and the cursor moves below it."""
        self._live.stop()


@contextmanager
def count_batches(text: str, batches: int) -> Iterator[Callable[[], None]]:
    """Shows the number of finished batches on standard error.

    On a terminal this is a progress bar, otherwise a line every 15 seconds.

    Args:
        text: Name of the work, which is shown before the number.
        batches: Number of all batches.

    Yields:
        A function to call after each batch.
    """
    if sys.stderr.isatty():
        from rich.console import Console as RichConsole
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = TextColumn(text), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        with Progress(*columns, console=RichConsole(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=batches)
            yield lambda: bar.advance(task)
        return
    lines = StepClock(_PLAIN_SECONDS)
    done = count(1)

    def write_line() -> None:
        batch = next(done)
        if lines.is_due():
            print_error(f"{text}: batch {batch}/{batches}")

    yield write_line


def build_console() -> Reporter:
    """Returns a live console if standard output is a terminal, otherwise a plain console.

    If nothing reads standard output, for example because a terminal or pager is paused, lines are dropped, so
    that training continues. ``train.log`` has all lines.
    """
    stream: TextIO | None = sys.stdout  # None in a process without standard output
    return LiveConsole() if stream is not None and stream.isatty() else PlainConsole(lossy(stream))
