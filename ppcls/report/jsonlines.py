"""Reads and writes JSON lines: records of a run in ``metrics.jsonl``, and messages in ``events.jsonl``."""

from __future__ import annotations

import json
import math
import os
import re
from contextlib import closing
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from ppcls.errors import UserError, counted
from ppcls.files import append_text, open_append, open_regular, read_regular, write_text
from ppcls.report.history import History
from ppcls.report.record import EvalRecord, Record, Reporter, StepRecord

_LARGE = 16 << 20  # size in bytes of a file from which only a part of the lines is parsed
_BLOCK = 4 << 20  # bytes that are read together
_SAMPLES = 10_000  # number of lines of a large file that are parsed, in addition to the extremes
_SCANNED = 1 << 20  # bytes that are searched line by line
_EVENT_BYTES = 1 << 12  # bytes that are read per event
_SHOWN = 80  # number of bytes of a line that a message quotes
_LOSS = re.compile(rb'"loss": ([0-9.eE+-]+|null)')
_EVALUATION = b'{"kind": "eval"'  # begins the line of an evaluation

_KINDS: dict[str, type[StepRecord] | type[EvalRecord]] = {"train": StepRecord, "eval": EvalRecord}
# Values of fields that files of older versions lack.
_DEFAULTS: dict[type[Record], dict[str, Any]] = {StepRecord: {"images": 0}, EvalRecord: {}}


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
    try:
        tree = json.loads(line)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(tree, dict) or tree.get("kind") not in _KINDS:
        raise ValueError("expected an object whose 'kind' is 'train' or 'eval'")
    cls = _KINDS[tree.pop("kind")]
    fields = _stored_fields(cls)
    if set({**_DEFAULTS[cls], **tree}) != set(fields):
        raise ValueError(f"expected the fields {', '.join(fields)}, found {', '.join(tree)}")
    values = {**_DEFAULTS[cls], **_replace_null(tree)}
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
    if not path.exists():
        return []
    if path.stat().st_size > _LARGE:
        return _truncate_large(path, update)
    records, damaged = _parse_lines(path)
    notes = [problem for _, problem in damaged]
    if damaged:
        notes += _keep_damaged(path, [line for line, _ in damaged])
    write_text(path, "".join(to_line(record) for record in records if record.update <= update))
    return notes


def read_history(path: Path) -> History:
    """Returns the thinned records of a file. Of a file above 16 MiB, only a part of the lines is parsed.

    All evaluations are parsed. Of the lines of training, those with the smallest and the largest loss and
    some others are parsed in each piece of the file, so that the curves show its spikes.

    Raises:
        UserError: A line that is parsed is not a record.
    """
    if not path.exists() or path.stat().st_size <= _LARGE:
        return History(read_records(path))
    history = History()
    with open_regular(path) as file:
        size = path.stat().st_size
        rest = b""
        while block := file.read(_BLOCK):
            block = rest + block
            end = block.rfind(b"\n") + 1
            rest = block[end:]
            _add_block(history, block[:end], max(1, _SAMPLES * _BLOCK // size), path)
    return history


def _add_block(history: History, block: bytes, samples: int, path: Path) -> None:
    """Adds the records of some lines of a file."""
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
    if not len(ends):
        return
    chosen = {*np.linspace(0, len(ends) - 1, samples).astype(int).tolist()}
    losses = _LOSS.findall(block)
    if len(losses) == len(ends):  # otherwise there is a metric with this name, or a damaged line
        values = np.array([math.nan if loss == b"null" else float(loss) for loss in losses])
        if not np.isnan(values).all():
            chosen |= {int(np.nanargmin(values)), int(np.nanargmax(values))}
        chosen |= {*np.flatnonzero(np.isnan(values))[:1].tolist()}
    evaluations = _line_starts(block, _EVALUATION)
    chosen |= {*np.searchsorted(ends, evaluations).tolist()}
    steps = gaps = 0
    for at in sorted(chosen):
        line = block[0 if at == 0 else ends[at - 1] + 1 : ends[at]]
        try:
            record = from_line(line.decode("utf-8", "replace"))
        except ValueError as error:
            raise UserError(f"{path}: invalid record: {error}: {line[:_SHOWN]!r}") from None
        history.add(record)
        if isinstance(record, StepRecord):
            steps += 1
            gaps += not math.isfinite(record.loss)
    history.count_earlier(len(ends) - len(evaluations) - steps, max(0, block.count(b'"loss": null') - gaps))


def _line_starts(block: bytes, beginning: bytes) -> list[int]:
    """Returns where the lines with a beginning start. A regular expression takes ten times as long."""
    starts = [0] if block.startswith(beginning) else []
    at = block.find(b"\n" + beginning)
    while at >= 0:
        starts.append(at + 1)
        at = block.find(b"\n" + beginning, at + 1)
    return starts


def _truncate_large(path: Path, update: int) -> list[str]:
    """Truncates a large file after the last record that is not after ``update``, without parsing all lines.

    Updates ascend, so the place is found by bisection. Damaged lines before it stay in the file.
    """
    with path.open("r+b") as file:
        low = 0  # start of a line; all records before it are kept
        high = file.seek(0, os.SEEK_END)  # no record from here is kept
        while high - low > _SCANNED:
            file.seek((low + high) // 2)
            file.readline()
            start = file.tell()
            record = None
            while record is None and start < high:
                line_start = start
                record = _to_record(file.readline())
                start = file.tell()
            if record is None:
                break
            if record.update <= update:
                low = start
            else:
                high = line_start
        file.seek(low)
        damaged: list[bytes] = []
        while file.tell() < high and (line := file.readline()):
            record = _to_record(line)
            if record is not None and record.update <= update:
                low = file.tell()
                damaged.clear()
            elif record is None and line.endswith(b"\n"):
                damaged.append(line)
        file.truncate(low)
        file.flush()
        os.fsync(file.fileno())
    text = [line.decode("utf-8", "replace").removesuffix("\n") for line in damaged]
    return _keep_damaged(path, text) if text else []


def _to_record(line: bytes) -> Record | None:
    try:
        return from_line(line.decode("utf-8", "replace"))
    except ValueError:
        return None


def _keep_damaged(path: Path, lines: list[str]) -> list[str]:
    """Appends damaged lines to another file, and returns a line for the log."""
    kept = path.with_name(f"{path.name}.damaged")
    with closing(open_append(kept)) as file:
        append_text(file, "".join(f"{line}\n" for line in lines))
    return [
        f"{path}: {counted(len(lines), 'damaged line is', 'damaged lines are')} moved to {kept.name}; all "
        "others are kept"
    ]


def _parse_lines(path: Path) -> tuple[list[Record], list[tuple[str, str]]]:
    """Returns the records of a file, and each line that is not a record with an error message.

    Ignores an incomplete last line, which a crash can leave, and a missing file.
    """
    if not path.exists():
        return [], []
    lines = read_regular(path).decode("utf-8", "replace").splitlines()
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
    if not path.is_file():  # missing, or a pipe, which would wait for its writer
        return []
    events = []
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _EVENT_BYTES * last))
        text = file.read().decode("utf-8", "replace")
    for line in text.splitlines()[-last:]:
        try:
            events.append(Event(**json.loads(line)))
        except (ValueError, TypeError, RecursionError):
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
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            if file.read(1) not in (b"", b"\n"):
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
