"""``python benchmarks/run.py containers``: compares image files with containers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from benchmarks.common import charts_of, out_option
from ppcls.cli.arguments.options import option
from ppcls.cli.benchmark import common
from ppcls.cli.benchmark.loader import LoadingOptions, start_benchmark
from ppcls.cli.command import command


@dataclass(frozen=True, kw_only=True)
class ContainersOptions(LoadingOptions):
    """Compare the speed of reading image files and containers (WebDataset, TFRecord, RecordIO, LMDB)."""

    examples: ClassVar[Sequence[str]] = (
        "python benchmarks/run.py containers -c configs/ResNet50_photos.yaml",
        "python benchmarks/run.py containers -c configs/ResNet50_photos.yaml --rounds 9 --out containers",
    )

    rounds: int = option(5, "number of runs of each reader", gt=0)
    out: Path | None = out_option()


@command("containers", ContainersOptions)
def measure_containers(options: ContainersOptions) -> None:
    """Measures the readers of containers."""
    if (started := start_benchmark(options, "containers")) is None:
        return
    from benchmarks.containers.readers import container_groups
    from ppcls.bench.measure.runner import run_rounds
    from ppcls.bench.results.schema import ResultRow

    workload, timer, results = started
    rows = list[ResultRow]()
    interrupt = None
    with charts_of(options.out):
        for candidates in container_groups(workload, timer):
            interrupt = run_rounds(candidates, options.rounds, common.report)
            rows += [each.row() for each in candidates]
            common.keep(options.out, results.filled(rows))
            if interrupt is not None:
                break
        common.finish(options.out, results.filled(rows), interrupt)
