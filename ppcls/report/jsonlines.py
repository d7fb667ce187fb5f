"""Files of JSON lines: ``metrics.jsonl`` with the records of a run, ``events.jsonl`` with its messages."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from ppcls.errors import UserError
from ppcls.files import append_text, write_text
from ppcls.report.record import EvalRecord, Record, Reporter, StepRecord

_KINDS: dict[str, type[StepRecord] | type[EvalRecord]] = {"train": StepRecord, "eval": EvalRecord}


def _replace_nonfinite(value: Any) -> Any:
    """Replaces NaN and infinities, which JSON cannot express, with ``None``."""
    if isinstance(value, dict):
        return {key: _replace_nonfinite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _replace_null(value: Any) -> Any:
    """Replaces ``None`` with NaN."""
    if isinstance(value, dict):
        return {key: _replace_null(item) for key, item in value.items()}
    return math.nan if value is None else value


def _stored_fields(kind: type[StepRecord] | type[EvalRecord]) -> list[str]:
    return [item.name for item in fields(kind) if item.compare]


def as_dict(record: Record) -> dict[str, Any]:
    """Returns the record as plain data, with ``"kind"`` first."""
    kind = "train" if isinstance(record, StepRecord) else "eval"
    return {"kind": kind, **{name: getattr(record, name) for name in _stored_fields(type(record))}}


def to_line(record: Record) -> str:
    """Returns the record as a line of JSON. Non-finite values become ``null``."""
    return json.dumps(_replace_nonfinite(as_dict(record)), allow_nan=False) + "\n"


def from_line(line: str) -> Record:
    """Returns the record of a line that `to_line` wrote. ``null`` becomes NaN.

    Raises:
        ValueError: If ``line`` is not a record.
    """
    tree = json.loads(line)
    if not isinstance(tree, dict) or tree.get("kind") not in _KINDS:
        raise ValueError("expected an object whose 'kind' is 'train' or 'eval'")
    cls = _KINDS[tree.pop("kind")]
    if set(tree) != set(_stored_fields(cls)):
        raise ValueError(f"expected the fields of {cls.__name__}")
    return cls(**_replace_null(tree))


def read_records(path: Path) -> list[Record]:
    """Returns the records of a file, or an empty list if the file does not exist.

    A last line that a crash has cut is ignored.

    Raises:
        UserError: If another line is not a record.
    """
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(from_line(line))
        except ValueError as error:
            if number < len(lines):
                raise UserError(f"{path}:{number}: not a record of a run: {error}") from error
    return records


def truncate_after(path: Path, update: int) -> None:
    """Removes all records after ``update``, and a cut last line, atomically.

    The curves of a resumed run therefore never go back in time.

    Raises:
        UserError: If a line other than the last is not a record.
    """
    if path.exists():
        write_text(path, "".join(to_line(record) for record in read_records(path) if record.update <= update))


class MetricsFile(Reporter):
    """Appends each record to the file ``path`` and flushes it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def record(self, record: Record) -> None:
        """Appends the record."""
        append_text(self._file, to_line(record))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


@dataclass(frozen=True)
class Event:
    """One message of a run.

    Attributes:
        time: Local time, such as ``2026-01-31 23:59:59``.
        update: Number of optimizer updates at that time.
        text: The message.
    """

    time: str
    update: int
    text: str


def read_events(path: Path, last: int) -> list[Event]:
    """Returns the ``last`` events of a file, or none if it does not exist. Ignores lines cut by a crash."""
    if not path.exists():
        return []
    events = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines()[-last:]:
        try:
            events.append(Event(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return events


class EventsFile(Reporter):
    """Appends each message to the file ``path`` as a line of JSON and flushes it.

    Args:
        update: Number of optimizer updates at the start or the resume of the run.
    """

    def __init__(self, path: Path, update: int = 0) -> None:
        self._file, self._update = path.open("a+", encoding="utf-8"), update
        if (content := path.read_bytes()) and not content.endswith(b"\n"):
            self._file.write("\n")  # ends a line that a crash has cut

    def message(self, text: str, update: int | None = None) -> None:
        """Appends an event."""
        now = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S")
        event = Event(now, self._update if update is None else update, text)
        append_text(self._file, json.dumps(asdict(event)) + "\n")

    def record(self, record: Record) -> None:
        """Notes the progress of the run."""
        self._update = record.update

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
