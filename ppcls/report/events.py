"""What happened in a run, line by line, also before it was resumed: a resume, a bad image, a skipped step."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from ppcls.files import append
from ppcls.report.record import EvalRecord, StepRecord


@dataclass(frozen=True)
class Event:
    """One message of a run.

    Attributes:
        time: Local, such as ``2026-01-31 23:59:59``.
        update: Optimizer updates at the record before it.
        text: For people.
    """

    time: str
    update: int
    text: str


def read_events(path: Path, last: int) -> list[Event]:
    """Returns the ``last`` events of the file ``path``, none where there is none; cut lines are left out."""
    if not path.exists():
        return []
    events = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines()[-last:]:
        try:
            events.append(Event(**json.loads(line)))
        except (ValueError, TypeError):  # a crash cut it
            continue
    return events


class Events:
    """Appends each message to the file ``path`` as a line of JSON, and flushes it.

    Args:
        path: The file.
        update: Optimizer updates that the run goes on from.
    """

    def __init__(self, path: Path, update: int = 0) -> None:
        self._file, self._update = path.open("a+", encoding="utf-8"), update
        self._end_cut_line(path)

    def message(self, text: str) -> None:
        """Appends an event."""
        now = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S")
        append(self._file, json.dumps(asdict(Event(now, self._update, text))) + "\n")

    def train(self, record: StepRecord) -> None:
        """Notes how far the run is."""
        self._update = record.update

    def evaluation(self, record: EvalRecord) -> None:
        """Notes how far the run is."""
        self._update = record.update

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _end_cut_line(self, path: Path) -> None:
        if (text := path.read_bytes()) and not text.endswith(b"\n"):
            self._file.write("\n")
