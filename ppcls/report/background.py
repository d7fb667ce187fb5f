"""Sends the records of a run to experiment trackers. No failure of a tracker ends or delays the run.

A tracker that waits for a server runs in a thread. All others are called directly.
"""

from __future__ import annotations

import importlib
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

from ppcls.errors import UserError
from ppcls.files import print_error
from ppcls.report.record import EvalRecord, Record, Reporter
from ppcls.report.trackers import Logger, TrackedRun, Tracker
from ppcls.report.visualdl import scalars

_MAX_WAITING = 10_000  # maximum number of records in the queue; further records are dropped
# Duration of one call after which the end of the run does not wait for a tracker. The process of Weights &
# Biases needs more than two seconds to start on a busy machine, and a short run lost its log.
_CALL_SECONDS = 10.0


class DirectLogger(Reporter):
    """Sends records to a tracker that does not wait for a server.

    A failure is reported once on standard error.

    Args:
        name: Name of the tracker for messages.
        start: Function that starts the tracker.
    """

    def __init__(self, name: str, start: Callable[[], Tracker]) -> None:
        self._name = name
        self._tracker: Tracker | None = None
        with self._report_failure():
            self._tracker = start()

    def record(self, record: Record) -> None:
        """Sends a record, unless the tracker has failed."""
        if self._tracker is not None:
            with self._report_failure():
                self._tracker.log(scalars(record), record.update)

    def close(self) -> None:
        """Ends the log of the tracker."""
        tracker = self._tracker
        self._tracker = None
        if tracker is not None:
            with self._report_failure():
                tracker.finish(failed=_is_failing())

    @contextmanager
    def _report_failure(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a tracker must never end a run
            self._tracker = None
            _report_error(self._name, error)


class BackgroundLogger(Reporter):
    """Sends records to a tracker from a separate thread. A failure is reported once on standard error.

    Args:
        name: Name of the tracker for messages.
        start: Function that starts the tracker. It is called in the thread.
        abandon: Function to call if the tracker hangs at the end of the run: `Logger.abandon`.
    """

    def __init__(self, name: str, start: Callable[[], Tracker], abandon: Callable[[], None]) -> None:
        self._name = name
        self._start = start
        self._abandon = abandon
        self._queue: queue.Queue[Record | bool] = queue.Queue(_MAX_WAITING)
        self._closed = False
        self._call_began = time.monotonic()
        # A daemon: Python does not wait for this thread when the process ends.
        self._thread = threading.Thread(target=self._run, name=f"logger {name}", daemon=True)
        self._thread.start()

    def record(self, record: Record) -> None:
        """Queues a record. Drops it if the tracker has failed or the queue is full."""
        if isinstance(record, EvalRecord):
            record = replace(record, outcomes=None)
        if self._thread.is_alive():
            with suppress(queue.Full):
                self._queue.put_nowait(record)

    def close(self) -> None:
        """Waits for a tracker that still receives records, but not for one that hangs.

        A tracker hangs if one of its calls takes longer than ten seconds. If this call began before the end
        of the run, `close` does not wait at all.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self._queue.put_nowait(_is_failing())
        except queue.Full:  # the tracker is too slow to finish now
            self._give_up()
            return
        while self._thread.is_alive():
            rest = self._call_began + _CALL_SECONDS - time.monotonic()
            if rest <= 0:
                self._give_up()
                return
            self._thread.join(rest)

    def _run(self) -> None:
        try:
            tracker = self._start()
            while True:
                item = self._next()
                if isinstance(item, bool):
                    tracker.finish(failed=item)
                    return
                tracker.log(scalars(item), item.update)
        except Exception as error:  # noqa: BLE001 - a tracker must never end a run
            _report_error(self._name, error)

    def _next(self) -> Record | bool:
        """Returns the next item of the queue. The tracker's next call begins now."""
        item = self._queue.get()
        self._call_began = time.monotonic()
        return item

    def _give_up(self) -> None:
        with suppress(Exception):  # a tracker must never end a run
            self._abandon()
        _report(
            self._name,
            "did not receive all records before the end of the run, so its log may be incomplete; "
            "metrics.jsonl in the output folder has all of them",
        )


def _is_failing() -> bool:
    """Returns whether the run ends with an error. Reporters are closed while this error propagates."""
    return sys.exc_info()[0] is not None


def _report_error(name: str, error: Exception) -> None:
    reason = " ".join(str(error).split()) or type(error).__name__
    _report(name, f"{reason}; the run continues without this logger")


def _report(name: str, text: str) -> None:
    print_error(f"Global.loggers: {name}: {text}")


def start_loggers(loggers: Sequence[Logger], run: TrackedRun) -> list[Reporter]:
    """Starts the trackers of a run, and returns their reporters.

    Raises:
        UserError: The package of a tracker is not installed. Other failures of a tracker do not end the run.
    """
    for logger in loggers:
        if not logger.package:
            continue
        try:
            importlib.import_module(logger.package)
        except ImportError as error:
            install = f"'.[{logger.extra}]' in the folder of ppcls" if logger.extra else logger.package
            raise UserError(
                f"Global.loggers: {logger.kind} needs the package {logger.package} ({error}); "
                f"pip install {install}, or remove {logger.kind}"
            ) from None
    return [_start_logger(logger, run) for logger in loggers]


def _start_logger(logger: Logger, run: TrackedRun) -> Reporter:
    start = partial(logger.build, run)
    if logger.blocks:
        return BackgroundLogger(logger.kind, start, logger.abandon)
    return DirectLogger(logger.kind, start)
