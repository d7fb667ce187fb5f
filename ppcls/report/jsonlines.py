"""Reads and writes JSON lines: records of a run in ``metrics.jsonl``, and messages in ``events.jsonl``."""

from __future__ import annotations

import json
import math
from contextlib import closing
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from ppcls.errors import UserError
from ppcls.files import append_text, open_append, write_text
from ppcls.report.record import EvalRecord, Record, Reporter, StepRecord

_KINDS: dict[str, type[StepRecord] | type[EvalRecord]] = {"train": StepRecord, "eval": EvalRecord}


def _replace_nonfinite(value: Any) -> Any:
    """Returns a copy with ``None`` instead of NaN and infinities, which JSON does not support."""
    if isinstance(value, dict):
        return {key: _replace_nonfinite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _replace_null(value: Any) -> Any:
    """Returns a copy with NaN instead of ``None``."""
    if isinstance(value, dict):
        return {key: _replace_null(item) for key, item in value.items()}
    return math.nan if value is None else value


def _stored_fields(kind: type[StepRecord] | type[EvalRecord]) -> list[str]:
    return [item.name for item in fields(kind) if item.compare]


def as_dict(record: Record) -> dict[str, Any]:
    """Returns the record as a dict. The first key is ``"kind"``, with the value ``"train"`` or ``"eval"``."""
    kind = "train" if isinstance(record, StepRecord) else "eval"
    return {"kind": kind, **{name: getattr(record, name) for name in _stored_fields(type(record))}}


def to_line(record: Record) -> str:
    """Returns the record as a line of JSON. Non-finite values become ``null``."""
    return json.dumps(_replace_nonfinite(as_dict(record)), allow_nan=False) + "\n"


def from_line(line: str) -> Record:
    """Parses a line that `to_line` wrote. ``null`` becomes NaN.

    Raises:
        ValueError: The line is not a record.
    """
    tree = json.loads(line)
    if not isinstance(tree, dict) or tree.get("kind") not in _KINDS:
        raise ValueError("expected an object whose 'kind' is 'train' or 'eval'")
    cls = _KINDS[tree.pop("kind")]
    fields = _stored_fields(cls)
    if set(tree) != set(fields):
        raise ValueError(f"expected the fields {', '.join(fields)}, found {', '.join(tree)}")
    values = _replace_null(tree)
    for name, kind in _field_types(cls).items():
        if not _has_type(values[name], kind):
            raise ValueError(f"{name}: expected {kind}, found {values[name]!r}")
    return cls(**values)


def _field_types(kind: type[StepRecord] | type[EvalRecord]) -> dict[str, str]:
    return {item.name: str(item.type) for item in fields(kind) if item.compare}


def _has_type(value: object, kind: str) -> bool:
    """Returns whether a value of JSON has a type, which is written as in `StepRecord`."""
    match kind:
        case "int":
            return isinstance(value, int) and not isinstance(value, bool)
        case "float":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "bool":
            return isinstance(value, bool)
        case _:  # dict[str, float]
            return isinstance(value, dict) and all(_has_type(item, "float") for item in value.values())


def read_records(path: Path) -> list[Record]:
    """Returns the records of a file; an empty list if the file does not exist.

    An incomplete last line, which a crash can leave, is ignored.

    Raises:
        UserError: Another line is not a record.
    """
    records, damaged = _parse_lines(path)
    for _, problem in damaged:
        raise UserError(problem)
    return records


def truncate_after(path: Path, update: int) -> list[str]:
    """Removes all records after ``update``, and lines that are not records, atomically.

    The records of a resumed run then follow directly. Lines that are not records are moved to another file,
    except an incomplete last line.

    Returns:
        Lines for the log about the moved lines.
    """
    records, damaged = _parse_lines(path)
    if not path.exists():
        return []
    notes = [problem for _, problem in damaged]
    if damaged:
        kept = path.with_name(f"{path.name}.damaged")
        with closing(open_append(kept)) as file:
            append_text(file, "".join(f"{line}\n" for line, _ in damaged))
        notes.append(f"{path}: {len(damaged)} damaged lines are moved to {kept.name}; all others are kept")
    write_text(path, "".join(to_line(record) for record in records if record.update <= update))
    return notes


def _parse_lines(path: Path) -> tuple[list[Record], list[tuple[str, str]]]:
    """Returns the records of a file, and each line that is not a record with an error message.

    Ignores an incomplete last line, which a crash can leave, and a missing file.
    """
    if not path.exists():
        return [], []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    records = []
    damaged = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(from_line(line))
        except ValueError as error:
            if number < len(lines):
                damaged.append((line, f"{path}:{number}: invalid record: {error}"))
    return records, damaged


class MetricsFile(Reporter):
    """Appends each record to a file, and flushes it.

    Args:
        path: The file, such as ``metrics.jsonl``.
    """

    def __init__(self, path: Path) -> None:
        self._file = open_append(path)

    def record(self, record: Record) -> None:
        """Appends the record."""
        append_text(self._file, to_line(record))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


@dataclass(frozen=True)
class Event:
    """A message of a run.

    Attributes:
        time: Local time, such as ``2026-01-31 23:59:59``.
        update: Number of optimizer updates at that time.
        text: Text of the message.
    """

    time: str
    update: int
    text: str


def read_events(path: Path, last: int) -> list[Event]:
    """Returns the latest events of a file; an empty list if the file does not exist.

    Lines that are not events, such as incomplete lines after a crash, are ignored.

    Args:
        path: The file.
        last: Maximum number of events.
    """
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
    """Appends each message to a file as a line of JSON, and flushes it.

    Args:
        path: The file, such as ``events.jsonl``.
        update: Number of optimizer updates when the run starts or resumes.
    """

    def __init__(self, path: Path, update: int = 0) -> None:
        self._file = path.open("a+", encoding="utf-8")
        self._update = update
        if (content := path.read_bytes()) and not content.endswith(b"\n"):
            self._file.write("\n")  # ends an incomplete line that a crash left

    def message(self, text: str, update: int | None = None) -> None:
        """Appends an event."""
        now = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S")
        event = Event(now, self._update if update is None else update, text)
        append_text(self._file, json.dumps(asdict(event)) + "\n")

    def record(self, record: Record) -> None:
        """Stores the number of updates for later messages that do not contain it."""
        self._update = record.update

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
