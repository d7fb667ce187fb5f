"""Results of a benchmark: rows of repeated measurements, and the command, machine, versions and config.

Results are saved as JSON, which `read_results` reads, and as CSV for other programs.
"""

from __future__ import annotations

import csv
import io
import math
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

from pydantic import ConfigDict, TypeAdapter, ValidationError

from ppcls.errors import UserError
from ppcls.files import write_text

JSON = "results.json"
CSV = "results.csv"
_EXACT = ConfigDict(extra="forbid", strict=True)

Label: TypeAlias = str | int | float | bool
Better: TypeAlias = Literal["more", "less", "neither"]
# Older results use other names of metrics, and contain labels that are dropped if they have these values.
_RENAMED = {"throughput": "images/s"}
_DROPPED: dict[str, tuple[Label, ...]] = {
    "varied": ("workers", "prefetch", "decoder"),
    "chain": ("config",),
    "cudnn search": ("none", "auto"),
    "accumulate": (1,),
}


@dataclass(frozen=True)
class Quantity:
    """Quantity that is measured once per round.

    Attributes:
        values: One finite value per round; at least one.
        unit: Unit, such as ``images/s``; empty for a ratio.
        better: Whether larger or smaller values are better.

    Raises:
        ValueError: There is no value, or a value is not finite.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _EXACT

    values: tuple[float, ...]
    unit: str
    better: Better = "more"

    def __post_init__(self) -> None:
        if not self.values or not all(map(math.isfinite, self.values)):
            raise ValueError(f"expected one or more finite values, got {list(self.values)}")

    @property
    def median(self) -> float:
        """Returns the median over the rounds."""
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        """Returns the smallest value."""
        return min(self.values)

    @property
    def high(self) -> float:
        """Returns the largest value."""
        return max(self.values)

    @property
    def is_ratio(self) -> bool:
        """Whether this is a ratio of two quantities, which has no unit."""
        return not self.unit

    @property
    def spread(self) -> float:
        """Returns the range as a share of the median: 0 for equal values, infinity for the median 0."""
        if self.low == self.high:
            return 0.0
        return (self.high - self.low) / abs(self.median) if self.median else math.inf


@dataclass(frozen=True)
class ResultRow:
    """Result of one candidate.

    Attributes:
        labels: Values by label name. Rows of two files with equal labels can be compared.
        metrics: Quantities by metric name; empty if nothing could be measured.
        note: Remark for the reader, such as the reason of a failure.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _EXACT

    labels: dict[str, Label]
    metrics: dict[str, Quantity]
    note: str = ""


@dataclass(frozen=True)
class Results:
    """Results of a benchmark.

    Attributes:
        benchmark: Name of the benchmark, such as ``loader`` or ``train``.
        command: Words of the command line.
        written: Time of writing, in ISO 8601.
        machine: Values by name, such as CPU, cores, GPU and memory.
        versions: Versions by package name.
        config: Complete config as YAML.
        rows: Results of the candidates.
        charts: Charts in files of older versions. They are ignored, because charts are made from the rows.
        findings: Conclusions, one sentence each.
        subject: What was measured: the path of the config, or of the models. Empty in files of older
            versions.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _EXACT

    benchmark: str
    command: tuple[str, ...]
    written: str
    machine: dict[str, str]
    versions: dict[str, str]
    config: str
    rows: tuple[ResultRow, ...]
    charts: tuple[Any, ...] = ()
    findings: tuple[str, ...] = ()
    subject: str = ""

    def filled(self, rows: Iterable[ResultRow], findings: Iterable[str] = ()) -> Results:
        """Returns a copy with rows and findings."""
        return replace(self, rows=tuple(rows), findings=tuple(findings))


@dataclass(frozen=True)
class _File:
    """Content of ``results.json``."""

    __pydantic_config__: ClassVar[ConfigDict] = _EXACT

    results: Results
    format: Literal["ppcls benchmark results"] = "ppcls benchmark results"
    version: Literal[1] = 1


def new_results(
    benchmark: str, subject: str, config: str, machine: dict[str, str], versions: dict[str, str]
) -> Results:
    """Returns results without rows, with the current command line and time. See `Results`."""
    written = datetime.now().astimezone().isoformat(timespec="seconds")
    program, *options = sys.argv
    # The entry point replaces the program by the words of the command, such as "ppcls benchmark".
    words = program.split() if program.startswith("ppcls ") else [program]
    return Results(benchmark, (*words, *options), written, machine, versions, config, (), subject=subject)


def write_results(folder: Path, results: Results) -> None:
    """Creates a folder and writes ``results.json`` and ``results.csv`` into it, each atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / JSON, to_json(results))
    write_text(folder / CSV, _to_csv(results))


def to_json(results: Results) -> str:
    """Returns the text that `read_results` reads."""
    return TypeAdapter(_File).dump_json(_File(results), indent=1).decode() + "\n"


def _to_csv(results: Results) -> str:
    """Returns CSV text with one line per value: the labels of its row, metric, unit, round and value."""
    labels = label_names(results.rows)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*labels, "metric", "unit", "round", "value"])
    for row in results.rows:
        cells = [row.labels.get(name, "") for name in labels]
        for name, metric in row.metrics.items():
            for number, value in enumerate(metric.values, start=1):
                table.writerow([*cells, name, metric.unit, number, value])
    return text.getvalue()


def label_names(rows: Sequence[ResultRow]) -> list[str]:
    """Returns the names of all labels, in order of first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row.labels))


def varied_labels(rows: Sequence[ResultRow]) -> list[str]:
    """Returns the names of the labels that do not have the same value in all rows."""
    return [name for name in label_names(rows) if len({row.labels.get(name) for row in rows}) > 1]


def kinds_of_rows(rows: Sequence[ResultRow]) -> list[list[ResultRow]]:
    """Returns the rows grouped by the names of their labels, in order of first appearance."""
    kinds: dict[tuple[str, ...], list[ResultRow]] = {}
    for row in rows:
        kinds.setdefault(tuple(row.labels), []).append(row)
    return list(kinds.values())


def label_text(label: Label) -> str:
    """Returns a label's value as text. Floats are rounded to four significant digits."""
    return f"{label:.4g}" if isinstance(label, float) else str(label)


def read_results(path: Path) -> Results:
    """Returns the results of a benchmark in a file or folder, which older versions may have written.

    Raises:
        UserError: The file is missing, unreadable or damaged, or has another format or version.
    """
    path = path / JSON if path.is_dir() else path
    expected = f"expected the {JSON} that ppcls benchmark --out writes"
    try:
        results = TypeAdapter(_File).validate_json(path.read_bytes()).results
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; {expected}") from None
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(map(str, wrong["loc"])) or "JSON"
        reason = f"{place}: {wrong['msg']}"
        raise UserError(f"{path}: damaged, or not the results of a benchmark: {reason}; {expected}") from None
    return results.filled(map(_with_new_names, results.rows), results.findings)


def _with_new_names(row: ResultRow) -> ResultRow:
    labels = {name: value for name, value in row.labels.items() if value not in _DROPPED.get(name, ())}
    metrics = {_RENAMED.get(name, name): metric for name, metric in row.metrics.items()}
    return replace(row, labels=labels, metrics=metrics)
