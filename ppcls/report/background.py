"""Runs experiment trackers in threads, so that a slow or unreachable server neither delays nor ends a run."""

from __future__ import annotations

import importlib
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from ppcls.errors import UserError
from ppcls.files import print_error
from ppcls.report.record import EvalRecord, Record, Reporter
from ppcls.report.trackers import Logger, TrackedRun, Tracker
from ppcls.report.visualdl import scalars

_MAX_WAITING = 10_000  # maximum number of records in the queue; further records are dropped
_CLOSE_SECONDS = 60.0


class BackgroundLogger(Reporter):
    """Sends records to a tracker from a separate thread. A failure is reported once on standard error.

    Args:
        name: Name of the tracker for messages.
        start: Function that starts the tracker. It is called in the thread.
    """

    def __init__(self, name: str, start: Callable[[], Tracker]) -> None:
        self._name = name
        self._start = start
        self._queue: queue.Queue[Record | bool] = queue.Queue(_MAX_WAITING)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"logger {name}", daemon=True)
        self._thread.start()

    def record(self, record: Record) -> None:
        """Queues a record. Drops it if the tracker has failed or the queue is full."""
        if isinstance(record, EvalRecord):
            record = replace(record, outcomes=None)
        if self._thread.is_alive() and not self._queue.full():
            self._queue.put(record)

    def close(self) -> None:
        """Waits until the tracker has received all records, for at most 60 seconds."""
        if self._closed:
            return
        self._closed = True
        end = time.monotonic() + _CLOSE_SECONDS
        failed = sys.exc_info()[0] is not None  # close is called while the error of the run propagates
        while self._thread.is_alive() and time.monotonic() < end:
            try:
                self._queue.put(failed, timeout=0.1)
                break
            except queue.Full:
                continue
        self._thread.join(max(0.0, end - time.monotonic()))
        if self._thread.is_alive():
            self._report(f"did not finish within {_CLOSE_SECONDS:.0f} s; its log may be incomplete")

    def _run(self) -> None:
        try:
            tracker = self._start()
            while not isinstance(item := self._queue.get(), bool):
                tracker.log(scalars(item), item.update)
            tracker.finish(failed=item)
        except Exception as error:  # noqa: BLE001 - a tracker must never end a run
            reason = " ".join(str(error).split()) or type(error).__name__
            self._report(f"{reason}; the run continues without this logger")

    def _report(self, text: str) -> None:
        print_error(f"Global.loggers: {self._name}: {text}")


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
    return [BackgroundLogger(logger.kind, partial(logger.build, run)) for logger in loggers]
