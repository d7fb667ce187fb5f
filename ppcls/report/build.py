"""Chooses the reporters of a run."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from ppcls.report.console import build_console
from ppcls.report.curves import Curves
from ppcls.report.events import Events
from ppcls.report.html import About, HtmlReport
from ppcls.report.jsonlines import JsonLines, read_records, truncate_after
from ppcls.report.logfile import LogFile
from ppcls.report.record import EvalRecord, Reporter, StepRecord
from ppcls.report.visualdl import VisualDL

_LOG, _EVENTS = "train.log", "events.jsonl"


class Reporters:
    """Hands everything on to each of ``reporters``, in order; itself a `Reporter`.

    Without any it is silent, as ranks other than 0 are.

    Args:
        reporters: Told one after the other.
        forgiving: Go on where one can't write, such as on a full disk; standard error says so once.
    """

    def __init__(self, reporters: Sequence[Reporter] = (), forgiving: bool = False) -> None:
        self._reporters, self._forgiving = tuple(reporters), forgiving
        self._failed: set[Reporter] = set()

    def message(self, text: str) -> None:
        """Tells one line for people."""
        for reporter in self._reporters:
            with self._forgiven(reporter):
                reporter.message(text)

    def train(self, record: StepRecord) -> None:
        """Tells how training goes."""
        for reporter in self._reporters:
            with self._forgiven(reporter):
                reporter.train(record)

    def evaluation(self, record: EvalRecord) -> None:
        """Tells the result of an evaluation."""
        for reporter in self._reporters:
            with self._forgiven(reporter):
                reporter.evaluation(record)

    def close(self) -> None:
        """Closes all, the last first, also when one of them raises."""
        with ExitStack() as stack:
            for reporter in self._reporters:
                stack.callback(self._close, reporter)

    def _close(self, reporter: Reporter) -> None:
        with self._forgiven(reporter):
            reporter.close()

    @contextmanager
    def _forgiven(self, reporter: Reporter) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not self._forgiving:
                raise
            if reporter not in self._failed:
                said = f"{type(reporter).__name__}: {error.strerror or error}; the run goes on without"
                print(said, file=sys.stderr)  # noqa: T201
            self._failed.add(reporter)


def build_reporters(
    output_dir: Path,
    use_visualdl: bool,
    resumed_from: int | None,
    forgiving: bool = False,
    about: About | None = None,
) -> Reporters:
    """Returns the reporters of rank 0: console, log file, records, curves, report and perhaps VisualDL.

    They write ``train.log``, ``metrics.jsonl``, ``events.jsonl``, ``curves.png``, ``report.html`` and
    ``visualdl/`` into ``output_dir``.

    Args:
        output_dir: Folder of the run; made where it is missing.
        use_visualdl: Whether to write scalars for VisualDL as well.
        resumed_from: Optimizer updates that the run goes on from; the records of later ones are
            dropped. ``None`` for a run from the start: it begins its records anew.
        forgiving: See `Reporters`; of the report always.
        about: What the report says of the run.

    Raises:
        UserError: The run to go on with has records that cannot be read.
    """
    about = about or About(output_dir.name)
    output_dir.mkdir(parents=True, exist_ok=True)
    records, events, page = (output_dir / name for name in ("metrics.jsonl", _EVENTS, "report.html"))
    if resumed_from is None:
        records.unlink(missing_ok=True)
        events.unlink(missing_ok=True)
        page.unlink(missing_ok=True)
    else:
        truncate_after(records, resumed_from)
    reporters: list[Reporter] = [
        build_console(),
        LogFile(output_dir / _LOG),
        JsonLines(records),
        Events(events, resumed_from or 0),
        Curves(records, output_dir / "curves.png"),  # after the records that it draws
    ]
    earlier = read_records(records)
    report = HtmlReport(page, events, about, earlier)
    reporters.append(Reporters([report], forgiving=True))
    if use_visualdl:
        reporters.append(VisualDL(output_dir / "visualdl", earlier, about.pictures, about.weights))
    return Reporters(reporters, forgiving)


def write_down_end(output_dir: Path, update: int, error: BaseException) -> None:
    """Writes into a run's log and events why it ended; the terminal is told by who ends the process.

    A full disk, which may be the very reason, is no further error.

    Args:
        output_dir: Folder of the run.
        update: Optimizer updates made.
        error: That ended it.
    """
    why = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error) or type(error).__name__
    with suppress(OSError), closing(LogFile(output_dir / _LOG)) as log:
        log.message(f"ended by an error: {why}")
    with suppress(OSError), closing(Events(output_dir / _EVENTS, update)) as events:
        events.message(f"ended by an error: {why}")
