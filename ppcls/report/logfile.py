"""The console's lines in a file, with the time of each."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from ppcls.files import append
from ppcls.report.record import EvalRecord, StepRecord
from ppcls.report.text import describe


class LogFile:
    """Appends lines to the file ``path`` and flushes each, so that ``tail -f`` and a crash show all.

    Each line begins with the local time, as ``2026-01-31 23:59:59``.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def message(self, text: str) -> None:
        """Writes ``text`` with a time stamp on each of its lines."""
        now = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S")
        append(self._file, "".join(f"{now} {line}\n" for line in text.splitlines() or [""]))

    def train(self, record: StepRecord) -> None:
        """Writes the record's line."""
        self.message(describe(record))

    def evaluation(self, record: EvalRecord) -> None:
        """Writes the record's line."""
        self.message(describe(record))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
