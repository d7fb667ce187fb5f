"""Quick loader benchmark: our loaders against a bare DALI pipeline and paddle.io."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from ppcls.bench.loader.advice import dali_setting
from ppcls.bench.loader.bare import need_tutorial_chain, read_files
from ppcls.bench.loader.runners import BatchTimer, batch_candidate, load_batches
from ppcls.bench.loader.settings import LoaderSetting
from ppcls.bench.loader.workload import LoaderWorkload
from ppcls.bench.measure.runner import Candidate, Measurements
from ppcls.bench.results.schema import ChartSpec, ResultRow

CHARTS = (ChartSpec("Each loader", "throughput", "loader"),)
_BARE, _OURS = "bare DALI pipeline", "ppcls, DALI"


def quick_candidates(
    workload: LoaderWorkload, workers: Sequence[int], timer: BatchTimer, *, mixup: bool = False
) -> list[Candidate[str]]:
    """Returns the bare pipeline, our DALI loader, and our paddle.io loader with some worker counts.

    Args:
        workload: Images; the chain must be decode, random crop, flip, normalize.
        workers: Worker counts of paddle.io.
        timer: Timer of batches.
        mixup: Whether to add our DALI loader with Mixup, which needs an even batch size.

    Raises:
        UserError: The images are not files, or the chain is another one.
    """
    need_tutorial_chain(workload)
    read_files(workload)
    dali = dali_setting(workload)
    settings = {_BARE: replace(dali, backend="bare DALI"), _OURS: dali}
    if mixup:
        settings["ppcls, DALI + Mixup"] = replace(dali, mixup=True)
    for count in workers:
        settings[f"ppcls, paddle.io, {count} workers"] = LoaderSetting("paddle.io", "config", count)
    return [
        batch_candidate(name, name, partial(load_batches, setting, workload), timer, setting.skipped_batches)
        for name, setting in settings.items()
    ]


def make_rows(measured: Sequence[Measurements[str]]) -> list[ResultRow]:
    """Returns one row per loader, with its ratio to the bare pipeline."""
    rows = []
    for row in measured:
        metrics = {"throughput": row.rate()} if row.samples else {}
        if row.samples and measured[0].samples:
            metrics[f"of {_BARE}"] = row.ratio(measured[0])
        rows.append(ResultRow({"loader": row.key}, metrics, row.note))
    return rows


def find_conclusions(measured: Sequence[Measurements[str]]) -> Iterator[str]:
    """Yields how many times faster our DALI loader is than our other loaders, one sentence each."""
    ours = next(measurement for measurement in measured if measurement.key == _OURS)
    for measurement in measured[2:]:
        if ours.samples and measurement.samples:
            yield f"{_OURS} is {ours.ratio(measurement).median:.2f} times as fast as {measurement.key}"
