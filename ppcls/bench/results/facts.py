"""Facts about a measurement, for the titles of charts and for results.txt."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any

from ppcls.bench.results.schema import Quantity, Results, label_text
from ppcls.config.base.yaml import parse_yaml

BATCH_SIZE = "batch size"
_SIZES = {  # keys of samplers, and what they count
    "global_batch_size": "over all processes",
    "batch_size": "per process",
    "first_bs": "at first",
}


def describe_facts(results: Results, quantities: Iterable[Quantity] | None = None) -> list[str]:
    """Returns two lines: benchmark and config or model; device, batch size, rounds and date.

    Args:
        results: Results of any benchmark.
        quantities: Quantities that are shown; None for all of the results.
    """
    if quantities is None:
        quantities = [metric for row in results.rows for metric in row.metrics.values()]
    date = results.written.partition("T")[0]
    return [
        f"{results.benchmark}: {results.subject or shlex.join(results.command)}",
        f"{_device(results)}, batch size: {_batch_sizes(results)}, {_rounds(quantities)}, {date}",
    ]


def _device(results: Results) -> str:
    device = results.machine.get("Device", "")
    if device != "CPU":  # a GPU, with its name
        return device or results.machine.get("Processor", "unknown device")
    cores = results.machine.get("Cores per process")
    suffix = f" ({cores} cores)" if cores else ""
    return f"CPU: {results.machine.get('Processor', 'unknown')}{suffix}"


def _batch_sizes(results: Results) -> str:
    """Returns the batch sizes of the rows or, if they have none, of the config's training."""
    sizes = dict.fromkeys(row.labels[BATCH_SIZE] for row in results.rows if row.labels.get(BATCH_SIZE))
    if sizes:
        return ", ".join(label_text(size) for size in sizes)
    config: Any = parse_yaml(results.config, "config of the results")
    for name in ("DataLoader", "Train", "sampler"):
        config = config.get(name) if isinstance(config, dict) else None
    if isinstance(config, dict):
        for name, meaning in _SIZES.items():
            if config.get(name):
                return f"{config[name]} {meaning}"
    return "chosen by the server" if results.benchmark == "serve" else "unknown"


def _rounds(quantities: Iterable[Quantity]) -> str:
    counts = sorted({len(quantity.values) for quantity in quantities})
    if not counts:
        return "no rounds"
    if counts == [1]:
        return "1 round"
    return f"{counts[0]} rounds" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} rounds"
