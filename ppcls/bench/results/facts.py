"""Facts about a measurement, for the titles of charts and for results.txt."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from ppcls.bench.results.schema import Quantity, Results, label_text
from ppcls.errors import counted
from ppcls.report.summary.facts import describe_device, read_batch_size

BATCH_SIZE = "batch size"


def describe_facts(results: Results, quantities: Iterable[Quantity] | None = None) -> list[str]:
    """Returns two lines: benchmark and config or model; device, batch size, rounds and date.

    Args:
        results: Results of any benchmark.
        quantities: Quantities that are shown; None for all of the results.
    """
    if quantities is None:
        quantities = [metric for row in results.rows for metric in row.metrics.values()]
    date = results.written.partition("T")[0]
    sizes = f"batch size: {_batch_sizes(results)}"
    return [
        f"{results.benchmark}: {results.subject or shlex.join(results.command)}",
        ", ".join([describe_device(results.machine), sizes, _rounds(quantities), date]),
    ]


def _batch_sizes(results: Results) -> str:
    """Returns the batch sizes of the rows or, if they have none, of the config's training."""
    sizes = dict.fromkeys(row.labels[BATCH_SIZE] for row in results.rows if row.labels.get(BATCH_SIZE))
    if sizes:
        return ", ".join(label_text(size) for size in sizes)
    unknown = "chosen by the server" if results.benchmark == "serve" else "unknown"
    return read_batch_size(results.config) or unknown


def _rounds(quantities: Iterable[Quantity]) -> str:
    counts = sorted({len(quantity.values) for quantity in quantities})
    if not counts:
        return "no rounds"
    last = counted(counts[-1], "round")
    return last if len(counts) == 1 else f"{counts[0]} to {last}"
