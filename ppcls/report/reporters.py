"""Builds the reporters of a run, and combines several reporters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ppcls.files import check_replaceable, print_error
from ppcls.report.background import start_loggers
from ppcls.report.charts import CurvesPicture
from ppcls.report.console import LogFile, build_console
from ppcls.report.html import HtmlReport, RunInfo
from ppcls.report.jsonlines import EventsFile, MetricsFile, read_history, truncate_after
from ppcls.report.record import Outcomes, Record, Reporter, StepPosition
from ppcls.report.stored_evaluation import EVALUATION_FILE, read_evaluation
from ppcls.report.trackers import Logger, TrackedRun
from ppcls.report.visualdl import VisualDLWriter

_LOG = "train.log"
_EVENTS = "events.jsonl"


class Reporters(Reporter):
    """Forwards all calls to a list of reporters, in order.

    Args:
        reporters: The reporters. Without reporters, nothing is reported.
        is_forgiving: Function that returns whether to continue if a reporter cannot write, for example
            because the disk is full. The problem is then printed on standard error, once per reporter.
        is_stopped: Function that returns whether nothing more may be written, so that no call is forwarded.
    """

    def __init__(
        self,
        reporters: Sequence[Reporter] = (),
        is_forgiving: Callable[[], bool] = lambda: False,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._reporters = tuple(reporters)
        self._is_stopped = is_stopped
        self._is_forgiving = is_forgiving
        self._failed: set[Reporter] = set()

    def message(self, text: str, update: int | None = None) -> None:
        """Forwards a message."""
        self._pass_on(lambda reporter: reporter.message(text, update))

    def record(self, record: Record) -> None:
        """Forwards a record."""
        self._pass_on(lambda reporter: reporter.record(record))

    def advance(self, position: StepPosition) -> None:
        """Forwards a position."""
        self._pass_on(lambda reporter: reporter.advance(position))

    def advance_evaluation(self, batch: int, batches: int) -> None:
        """Forwards the progress of an evaluation."""
        self._pass_on(lambda reporter: reporter.advance_evaluation(batch, batches))

    def finish(self) -> None:
        """Forwards the call."""
        self._pass_on(lambda reporter: reporter.finish())

    def _pass_on(self, call: Callable[[Reporter], None]) -> None:
        if self._is_stopped():
            return
        for reporter in self._reporters:
            with self._forgive(reporter):
                call(reporter)

    def close(self) -> None:
        """Closes all reporters in reverse order, even if one of them raises an error."""
        if self._is_stopped():
            return
        with ExitStack() as stack:
            for reporter in self._reporters:
                stack.enter_context(self._forgive(reporter))
                stack.callback(reporter.close)

    @contextmanager
    def _forgive(self, reporter: Reporter) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not self._is_forgiving():
                raise
            if reporter not in self._failed:
                reason = f"{type(reporter).__name__}: {error.strerror or error}"
                print_error(f"{reason}; the run continues without this report")
            self._failed.add(reporter)


@dataclass(frozen=True)
class FolderChecks:
    """Checks of the output folder of a run during the run.

    Attributes:
        is_forgiving: See `Reporters`. The HTML report is always forgiven.
        is_moved: Function that returns whether the output folder is no longer at its path. Pages and
            pictures, which are written by their path, are then no longer written.
    """

    is_forgiving: Callable[[], bool] = lambda: False
    is_moved: Callable[[], bool] = lambda: False


def build_reporters(
    output_dir: Path,
    use_visualdl: bool,
    resumed_from: int | None,
    checks: FolderChecks | None = None,
    info: RunInfo | None = None,
    loggers: Sequence[Logger] = (),
) -> Reporters:
    """Returns the reporters of rank 0.

    They write to the console, and to the files ``train.log``, ``metrics.jsonl``, ``events.jsonl``,
    ``curves.png``, ``report.html`` and optionally ``visualdl/`` in the output folder.

    Args:
        output_dir: Output folder of the run. It is created if it does not exist.
        use_visualdl: Whether to write files for VisualDL.
        resumed_from: Number of optimizer updates at which the run resumes. Later records are removed. None
            for a new run, which removes all existing records.
        checks: Checks of the output folder; by default, an error of a reporter ends the run.
        info: Properties of the run that the HTML report shows.
        loggers: Settings of experiment trackers.

    Raises:
        UserError: A file of the reports is a folder, a link or a pipe; or the package of a tracker is
            missing.
    """
    info = info or RunInfo(output_dir.name)
    checks = checks or FolderChecks()
    output_dir.mkdir(parents=True, exist_ok=True)
    records, events, page = (output_dir / name for name in ("metrics.jsonl", _EVENTS, "report.html"))
    curves, evaluation = (output_dir / name for name in ("curves.png", EVALUATION_FILE))
    for file in (records, events, page, curves, evaluation, output_dir / _LOG):
        check_replaceable(file)
    notes = []
    if resumed_from is None:
        for file in (records, events, page, evaluation):
            file.unlink(missing_ok=True)
    else:
        notes = truncate_after(records, resumed_from)
    earlier = read_history(records)
    shown = read_evaluation(evaluation)
    known = shown.outcomes.majority if shown is not None and isinstance(shown.outcomes, Outcomes) else None
    reporters: list[Reporter] = [
        build_console(),
        LogFile(output_dir / _LOG),
        MetricsFile(records),
        EventsFile(events, resumed_from or 0),
        Reporters([CurvesPicture(curves, earlier, info.title, known)], is_stopped=checks.is_moved),
        Reporters([HtmlReport(page, events, info, earlier, shown)], lambda: True, checks.is_moved),
    ]
    if use_visualdl:
        reporters.append(VisualDLWriter(output_dir / "visualdl", earlier, info.pictures, info.weights))
    run = TrackedRun(info.name, output_dir, info.config, resumed_from)
    combined = Reporters([*reporters, *start_loggers(loggers, run)], checks.is_forgiving)
    for note in notes:
        combined.message(note, resumed_from)
    return combined


def log_failure(output_dir: Path, update: int, error: BaseException) -> None:
    """Writes the error that ended a run to its log and its events. The caller prints it on the terminal.

    Errors of writing are ignored, because a full disk may be the reason why the run ended.

    Args:
        output_dir: Output folder of the run.
        update: Number of finished optimizer updates.
        error: The exception that ended the run.
    """
    reason = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error) or type(error).__name__
    for sink in (LogFile, EventsFile):
        with suppress(OSError), closing(sink(output_dir / (_LOG if sink is LogFile else _EVENTS))) as file:
            file.message(f"ended by an error: {reason}", update)
