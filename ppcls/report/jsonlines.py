"""A run's records as JSON lines: written by the run, read by curves, people's scripts and resume."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

from ppcls.errors import UserError
from ppcls.files import append, write_text
from ppcls.report.record import EvalRecord, StepRecord

_KINDS: dict[str, type[StepRecord] | type[EvalRecord]] = {"train": StepRecord, "eval": EvalRecord}


def _finite(value: Any) -> Any:
    """Replaces NaN and infinities, which JSON has no words for, by ``None``."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _unknown_as_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _unknown_as_nan(each) for key, each in value.items()}
    return math.nan if value is None else value


def _recorded(kind: type[StepRecord] | type[EvalRecord]) -> list[str]:
    return [each.name for each in fields(kind) if each.compare]


def as_dict(record: StepRecord | EvalRecord) -> dict[str, Any]:
    """Returns the record as plain data, ``"kind"`` first."""
    kind = "train" if isinstance(record, StepRecord) else "eval"
    return {"kind": kind, **{name: getattr(record, name) for name in _recorded(type(record))}}


def to_line(record: StepRecord | EvalRecord) -> str:
    """Returns the record as a line of JSON, ``"kind"`` first; what is not finite becomes ``null``."""
    return json.dumps(_finite(as_dict(record)), allow_nan=False) + "\n"


def from_line(line: str) -> StepRecord | EvalRecord:
    """Reads what `to_line` writes; ``null`` becomes NaN.

    Raises:
        ValueError: ``line`` is no such record.
    """
    tree = json.loads(line)
    if not isinstance(tree, dict) or tree.get("kind") not in _KINDS:
        raise ValueError("expected an object whose 'kind' is 'train' or 'eval'")
    cls = _KINDS[tree.pop("kind")]
    if set(tree) != set(_recorded(cls)):
        raise ValueError(f"expected the fields of {cls.__name__}")
    return cls(**_unknown_as_nan(tree))


def read_records(path: Path) -> list[StepRecord | EvalRecord]:
    """Returns the records of the file ``path``, none where there is no file.

    A last line that a crash has cut is left out.

    Raises:
        UserError: Another line is no record.
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
    """Drops the records of later updates than ``update``, and a cut last line, from the file ``path``.

    So the curves of a run that goes on from ``update`` never go back in time. Atomic.

    Raises:
        UserError: A line other than the last is no record.
    """
    if path.exists():
        write_text(path, "".join(to_line(each) for each in read_records(path) if each.update <= update))


class JsonLines:
    """Appends each record to the file ``path`` and flushes it; messages are not recorded."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def message(self, text: str) -> None:
        """Does nothing: a message is no record."""

    def train(self, record: StepRecord) -> None:
        """Appends the record."""
        self._append(record)

    def evaluation(self, record: EvalRecord) -> None:
        """Appends the record."""
        self._append(record)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _append(self, record: StepRecord | EvalRecord) -> None:
        append(self._file, to_line(record))
