"""Options and output that several benchmarks share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ppcls.cli.arguments.options import option
from ppcls.cli.benchmark.common import EffortOptions


@dataclass(frozen=True, kw_only=True)
class RequestOptions(EffortOptions):
    """Options for the number and duration of measurements of requests."""

    warm_up: int = option(10, "number of requests before the measurement starts", gt=0)
    timeout: float = option(600.0, "time limit of one measurement in seconds", gt=0)
    requests: int | None = option(
        None,
        "number of requests in one measurement (default: as many as fit into --seconds)",
        gt=0,
    )


def out_option() -> Path | None:
    """Returns the field of ``--out``."""
    return option(
        None,
        "folder for results.txt, results.json, results.csv and charts (default: only print the results)",
        metavar="FOLDER",
    )


@contextmanager
def charts_of(out: Path | None) -> Iterator[None]:
    """Draws charts of the results that are written to a folder, even if the measurement was interrupted."""
    from benchmarks.results.charts import draw_pictures
    from ppcls.bench.results.schema import JSON, read_results

    try:
        yield
    finally:
        if out is not None and (out / JSON).is_file():
            draw_pictures(out, read_results(out))
