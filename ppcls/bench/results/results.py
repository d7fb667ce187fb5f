"""What a benchmark found, as data: rows of repeated values, and all that is needed to judge or repeat them.

It is saved as JSON, which `read_results` reads back, and as CSV for other programs.
"""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import from_json

from ppcls.errors import UserError
from ppcls.files import write_text

if TYPE_CHECKING:
    from ppcls.runtime.start import Runtime

JSON, CSV = "results.json", "results.csv"
_FORMAT, _VERSION = "ppcls benchmark results", 1
_EXACT = ConfigDict(extra="forbid", strict=True)

Label: TypeAlias = str | int | float | bool
Better: TypeAlias = Literal["more", "less", "neither"]


@dataclass(frozen=True)
class Metric:
    """One quantity, measured once a round.

    Attributes:
        values: In the order of the rounds; at least one, all finite.
        unit: Such as ``images/s``; empty for a plain number.
        better: Which way is better.

    Raises:
        ValueError: There is no value, or one is not finite.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _EXACT

    values: tuple[float, ...]
    unit: str
    better: Better = "more"

    def __post_init__(self) -> None:
        if not self.values or not all(map(math.isfinite, self.values)):
            raise ValueError(f"expected finite values, at least one, got {list(self.values)}")

    @property
    def median(self) -> float:
        """Returns the value that stands for all."""
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        """Returns the least value."""
        return min(self.values)

    @property
    def high(self) -> float:
        """Returns the greatest value."""
        return max(self.values)

    @property
    def spread(self) -> float:
        """Returns the range as a share of the median; 0 for a single value, infinity around 0."""
        if self.low == self.high:
            return 0.0
        return (self.high - self.low) / abs(self.median) if self.median else math.inf


@dataclass(frozen=True)
class Row:
    """What was measured of one contender.

    Attributes:
        labels: What it is, by name: equal in two files where the same thing was measured.
        metrics: By name; empty where nothing could be measured.
        note: What else is to be said, such as why nothing was.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _EXACT

    labels: dict[str, Label]
    metrics: dict[str, Metric]
    note: str = ""


@dataclass(frozen=True)
class Chart:
    """A picture of some rows.

    Attributes:
        title: Above it.
        metric: What is drawn upwards.
        x: Label drawn to the right: as a line where it is a number in all rows, else as bars.
        series: Labels by whose values the rows become lines, or bars of their own.
        where: Labels that a row must have with these values to be drawn.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _EXACT

    title: str
    metric: str
    x: str
    series: tuple[str, ...] = ()
    where: dict[str, Label] = field(default_factory=dict)


@dataclass(frozen=True)
class Results:
    """A benchmark's outcome.

    Attributes:
        benchmark: Which: ``loader``, ``train``, …
        command: As it was typed, word by word.
        written: When, as ISO 8601.
        machine: CPU, cores, GPU, memory: what to what.
        versions: Package to version.
        config: YAML, every default filled in.
        rows: What was measured.
        charts: How to draw it.
        findings: What follows from it, a sentence each.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _EXACT

    benchmark: str
    command: tuple[str, ...]
    written: str
    machine: dict[str, str]
    versions: dict[str, str]
    config: str
    rows: tuple[Row, ...]
    charts: tuple[Chart, ...] = ()
    findings: tuple[str, ...] = ()


def results_of(
    benchmark: str,
    command: Sequence[str],
    runtime: Runtime,
    config: str,
    rows: Sequence[Row],
    charts: Sequence[Chart] = (),
    findings: Sequence[str] = (),
) -> Results:
    """Returns results of now, on this machine; for the arguments see `Results`."""
    from ppcls.report.environment import read_hardware, read_versions

    return Results(
        benchmark=benchmark,
        command=tuple(command),
        written=datetime.now().astimezone().isoformat(timespec="seconds"),
        machine=read_hardware(runtime),
        versions=read_versions(),
        config=config,
        rows=tuple(rows),
        charts=tuple(charts),
        findings=tuple(findings),
    )


def write_results(folder: Path, results: Results) -> None:
    """Writes ``results.json`` and ``results.csv`` into a folder, which is made; each atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / JSON, to_json(results))
    write_text(folder / CSV, to_csv(results))


def to_json(results: Results) -> str:
    """Returns the text that `read_results` reads."""
    envelope = {"format": _FORMAT, "version": _VERSION, "results": results}
    return TypeAdapter(dict[str, Any]).dump_json(envelope, indent=1).decode() + "\n"


def to_csv(results: Results) -> str:
    """Returns a table with one line for each value: the row's labels, metric, unit, round and value."""
    labels = label_names(results.rows)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*labels, "metric", "unit", "round", "value"])
    for row in results.rows:
        shown = [row.labels.get(name, "") for name in labels]
        for name, metric in row.metrics.items():
            for number, value in enumerate(metric.values, start=1):
                table.writerow([*shown, name, metric.unit, number, value])
    return text.getvalue()


def label_names(rows: Sequence[Row]) -> list[str]:
    """Returns the names of all labels, in the order in which they first come."""
    return list(dict.fromkeys(name for row in rows for name in row.labels))


def metric_names(rows: Sequence[Row]) -> list[str]:
    """Returns the names of all metrics, in the order in which they first come."""
    return list(dict.fromkeys(name for row in rows for name in row.metrics))


def read_results(path: Path) -> Results:
    """Reads a benchmark's results.

    Args:
        path: ``results.json``, or the folder that holds it.

    Raises:
        UserError: It can't be read, is another kind of file, damaged, or of a newer version.
    """
    if path.is_dir():
        path = path / JSON
    try:
        tree = from_json(path.read_bytes())
    except FileNotFoundError:
        raise UserError(
            f"{path}: no such file; expected a {JSON} that tools/benchmark.py wrote with --out"
        ) from None
    except OSError as error:
        raise UserError(f"{path}: can't be read: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{path}: damaged, or no benchmark's results: not JSON: {error}") from None
    if not isinstance(tree, dict) or tree.get("format") != _FORMAT:
        raise UserError(f"{path}: no benchmark's results; expected a {JSON} that tools/benchmark.py wrote")
    if tree.get("version") != _VERSION:
        raise UserError(
            f"{path}: results of version {tree.get('version')}, and this ppcls reads version {_VERSION}; "
            "read them with the ppcls that wrote them, or measure again"
        )
    try:
        return _adapter().validate_json(TypeAdapter(Any).dump_json(tree.get("results")))
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(["results", *map(str, wrong["loc"])])
        raise UserError(f"{path}: damaged: {place}: {wrong['msg']}") from None


@cache
def _adapter() -> TypeAdapter[Results]:
    return TypeAdapter(Results)
