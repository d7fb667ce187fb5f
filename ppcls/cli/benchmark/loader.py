"""``ppcls benchmark loader`` and ``containers``: measure data loaders and find the bottleneck."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ppcls.bench.measure.runner import find_conclusions, powers_of_two, run_rounds
from ppcls.bench.results.schema import ResultRow, Results, new_results
from ppcls.cli import options
from ppcls.cli.benchmark import common
from ppcls.config.load import dump_config
from ppcls.errors import UserError

if TYPE_CHECKING:  # they import Paddle and DALI
    from ppcls.bench.loader.runners import BatchTimer, Loaders
    from ppcls.bench.loader.workload import LoaderWorkload

_ROUNDS = 3
_QUICK_ROUNDS = 5
_RUN_SECONDS = 1.0  # approximate time to start and end a loader


def _start(
    arguments: argparse.Namespace, benchmark: str
) -> tuple[LoaderWorkload, BatchTimer, Results] | None:
    """Returns workload, timer and results without rows, or None if ``--print-config`` printed the config."""
    config = options.read_config(arguments)
    if config is None:
        return None
    common.check_out(arguments)
    from ppcls.runtime import start as runtime

    run = runtime.start(config.Global)
    common.report(run.describe())
    from ppcls.bench.loader.runners import make_timer
    from ppcls.bench.loader.workload import read_workload
    from ppcls.report.environment import read_hardware, read_versions

    workload = read_workload(config, run, arguments.images)
    results = new_results(benchmark, dump_config(config), read_hardware(run), read_versions())
    return workload, make_timer(workload, arguments.seconds), results


def measure_loader(arguments: argparse.Namespace) -> None:
    """Measures data loaders, and finds the bottleneck."""
    if arguments.mixup and not arguments.quick:
        raise UserError("--mixup needs --quick")
    for name in ("write_config", "threads") if arguments.quick else ():
        if getattr(arguments, name):
            raise UserError(f"--{name.replace('_', '-')} cannot be used with --quick")
    if arguments.write_config is not None:
        from ppcls.bench.loader.write_config import check_new_file

        check_new_file(arguments.write_config)
    arguments.rounds = arguments.rounds or (_QUICK_ROUNDS if arguments.quick else _ROUNDS)
    if (started := _start(arguments, "quick loader" if arguments.quick else "loader")) is not None:
        (_quick if arguments.quick else _sweep)(arguments, *started)


def _quick(
    arguments: argparse.Namespace, workload: LoaderWorkload, timer: BatchTimer, empty: Results
) -> None:
    from ppcls.bench.loader.sweep import compare_loaders, quick_candidates

    candidates = quick_candidates(workload, arguments.workers or [2], timer, mixup=arguments.mixup)
    common.measure_and_report(arguments, empty, candidates, lambda: compare_loaders(candidates))


def _sweep(
    arguments: argparse.Namespace, workload: LoaderWorkload, timer: BatchTimer, empty: Results
) -> None:
    from ppcls.bench.loader.advice import config_values
    from ppcls.bench.loader.sweep import LoaderSweep
    from ppcls.bench.loader.write_config import write_config

    counts = powers_of_two(workload.runtime.cores)
    rounds = arguments.rounds
    threads = sorted(set(arguments.threads or counts))
    workers = sorted({0, *counts} if arguments.workers is None else set(arguments.workers))
    kinds = len(workers) + len(threads) * (2 if workload.on_gpu else 1) + 12  # approximately
    common.report(
        f"{workload.images} images of {workload.image_bytes / 1000:.0f} KB, batches of "
        f"{workload.batch_size}. About {kinds} settings x {rounds} runs of {arguments.seconds:g} s: at least "
        f"{kinds * rounds * (arguments.seconds + _RUN_SECONDS) / 60:.0f} min. To save time, use fewer "
        "--threads, --workers, --rounds or --seconds, or --quick."
    )

    def results(findings: Sequence[str] = ()) -> Results:
        rows = [each.row() for each in sweep.candidates if each.samples or each.reason]
        return empty.filled(rows, findings)

    def measure(candidates: Loaders) -> None:
        interrupt = run_rounds(candidates, rounds, common.report, lambda: common.keep(arguments, results()))
        if interrupt is not None:
            raise interrupt

    sweep = LoaderSweep(workload, timer, measure)
    setting = None
    interrupt = None
    try:
        setting, findings = sweep.run(threads, workers)
    except KeyboardInterrupt as interrupted:
        if not any(each.samples for each in sweep.candidates):
            raise
        findings = ["Interrupted: the results are incomplete, so no setting is recommended."]
        interrupt = interrupted
    loaders = [each for each in sweep.candidates if "up to" not in each.labels]
    findings = [*find_conclusions(loaders), *findings]
    common.finish(arguments, results(findings), interrupt)
    if (target := arguments.write_config) is None:
        return
    if setting is None:
        raise UserError(
            f"--write-config {target}: not written, because no setting is recommended (see above)"
        )
    write_config(Path(arguments.config), target, config_values(setting))
    overrides = "; values of -o are not included" if arguments.override else ""
    common.report(f"wrote {target}: {arguments.config} with {setting.describe()}{overrides}")


def measure_containers(arguments: argparse.Namespace) -> None:
    """Measures the readers of containers."""
    if (started := _start(arguments, "containers")) is None:
        return
    from ppcls.bench.loader.containers import container_groups

    workload, timer, results = started
    rows = list[ResultRow]()
    interrupt = None
    for candidates in container_groups(workload, timer):
        interrupt = run_rounds(candidates, arguments.rounds, common.report)
        rows += [each.row() for each in candidates]
        common.keep(arguments, results.filled(rows))
        if interrupt is not None:
            break
    common.finish(arguments, results.filled(rows), interrupt)
