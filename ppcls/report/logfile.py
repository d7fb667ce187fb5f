"""The console's lines in a file, with the time of each."""

from __future__ import annotations

from ppcls.files import LogWriter
from ppcls.report.record import EvalRecord, StepRecord
from ppcls.report.text import describe


class LogFile(LogWriter):
    """Reporter that appends each record's line to a log file."""

    def train(self, record: StepRecord) -> None:
        """Writes the record's line."""
        self.message(describe(record))

    def evaluation(self, record: EvalRecord) -> None:
        """Writes the record's line."""
        self.message(describe(record))
