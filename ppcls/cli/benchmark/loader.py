"""``tools/benchmark.py loader`` and ``containers``: speed and bottleneck of data loaders."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ppcls.bench.measure.runner import Measurements, powers_of_two, run_rounds
from ppcls.bench.results.schema import ResultRow, Results
from ppcls.cli.benchmark.results import (
    add_out,
    check_out,
    empty_results,
    finish,
    keep,
    measure_and_report,
    report,
    start,
)
from ppcls.cli.options import (
    Subcommands,
    add_config_options,
    add_subcommand,
    non_negative_int,
    positive_int,
    within,
)
from ppcls.config.schema import Config
from ppcls.errors import UserError
from ppcls.runtime.start import Runtime

_BACKENDS = {
    "read": "read only",
    "bare": "bare DALI",
    "paddle": "paddle.io",
    "dali-cpu": "DALI CPU",
    "dali-gpu": "DALI GPU",
}
_CHAINS = ("read", "config")
_VARIED = ("workers", "prefetch", "decoder")
_ROUNDS, _QUICK_ROUNDS = 3, 5
_RUN_SECONDS = 1.0  # approximate time to start and end a loader


def add_loader(commands: Subcommands) -> None:
    """Adds the command ``loader``."""
    parser = add_subcommand(
        commands,
        "loader",
        "measure data loaders: DALI, paddle.io, a bare DALI pipeline",
        (
            "ppcls benchmark loader -c configs/ResNet50_photos.yaml --quick",
            "ppcls benchmark loader -c configs/ResNet50_photos.yaml --write-config best.yaml",
        ),
        "Measure data loaders with many settings, and report the bottleneck and the best setting.",
    )
    add_config_options(parser)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="only compare our DALI loader, a bare DALI pipeline and paddle.io, as configured",
    )
    parser.add_argument(
        "--rounds", type=positive_int, help=f"runs of each setting ({_ROUNDS}; with --quick {_QUICK_ROUNDS})"
    )
    _add_duration(parser)
    for name, choices, text in (
        ("--backends", _BACKENDS, "implementations to measure (all)"),
        ("--chains", _CHAINS, "work per image: reading alone, or the config's whole chain (both)"),
        ("--vary", _VARIED, "settings to vary (all)"),
    ):
        parser.add_argument(name, nargs="+", choices=choices, default=list(choices), help=text)
    numbers: dict[str, Any] = {"nargs": "+", "metavar": "N"}
    parser.add_argument(
        "--threads", type=positive_int, **numbers, help="threads of DALI (1, 2, 4, … all cores)"
    )
    parser.add_argument(
        "--workers",
        type=non_negative_int,
        **numbers,
        help="workers of paddle.io (0, 1, 2, 4, …; with --quick 2)",
    )
    parser.add_argument(
        "--prefetch", type=positive_int, **numbers, help="batches that DALI prepares ahead (1 2 4 8)"
    )
    parser.add_argument(
        "--mixup", action="store_true", help="with --quick: also measure our DALI loader with Mixup"
    )
    parser.add_argument(
        "--write-config", type=Path, metavar="FILE", help="write a copy of the config with the best setting"
    )
    add_out(parser)
    parser.set_defaults(measure=_loader)


def _add_duration(parser: argparse.ArgumentParser) -> None:
    seconds = within(float, gt=0, le=3600)
    parser.add_argument(
        "--seconds", type=seconds, default=2.0, help="measured seconds of a run (%(default)s)"
    )
    parser.add_argument(
        "--images",
        type=positive_int,
        default=8192,
        metavar="N",
        help="maximum number of images to use (%(default)s)",
    )


def add_containers(commands: Subcommands) -> None:
    """Adds the command ``containers``."""
    parser = add_subcommand(
        commands,
        "containers",
        "compare reading image files with reading containers of them",
        (
            "ppcls benchmark containers -c configs/ResNet50_photos.yaml",
            "ppcls benchmark containers -c configs/ResNet50_photos.yaml --rounds 9 --out containers",
        ),
    )
    add_config_options(parser)
    parser.add_argument("--rounds", type=positive_int, default=5, help="runs of each reader (%(default)s)")
    _add_duration(parser)
    add_out(parser)
    parser.set_defaults(measure=_containers)


def _loader(arguments: argparse.Namespace) -> None:
    _check_options(arguments)
    if not arguments.print_config:
        check_out(arguments)
        if arguments.write_config is not None:
            from ppcls.bench.loader.write_config import check_new_file

            check_new_file(arguments.write_config)
    if (started := start(arguments)) is not None:
        (_quick if arguments.quick else _sweep)(arguments, *started)


def _check_options(arguments: argparse.Namespace) -> None:
    """Rejects options that cannot be combined."""
    if arguments.mixup and not arguments.quick:
        raise UserError("--mixup needs --quick")
    for name in ("write_config", "threads", "prefetch") if arguments.quick else ():
        if getattr(arguments, name):
            raise UserError(f"--{name.replace('_', '-')} cannot be used with --quick")


def _quick(arguments: argparse.Namespace, config: Config, run: Runtime) -> None:
    from ppcls.bench.loader.quick import CHARTS, find_conclusions, make_rows, quick_candidates
    from ppcls.bench.loader.runners import make_timer
    from ppcls.bench.loader.workload import read_workload

    workload = read_workload(config, run, arguments.images)
    timer = make_timer(workload, arguments.seconds)
    candidates = quick_candidates(workload, arguments.workers or [2], timer, mixup=arguments.mixup)
    empty = empty_results("quick loader", config, run)

    def make_results(measured: list[Measurements[str]]) -> Results:
        return empty.filled(make_rows(measured), CHARTS, find_conclusions(measured))

    measure_and_report(arguments, candidates, arguments.rounds or _QUICK_ROUNDS, make_results)


def _sweep(arguments: argparse.Namespace, config: Config, run: Runtime) -> None:
    from ppcls.bench.loader.advice import config_values
    from ppcls.bench.loader.results import find_conclusions, make_charts, make_rows
    from ppcls.bench.loader.runners import make_timer
    from ppcls.bench.loader.settings import SweepRange
    from ppcls.bench.loader.sweep import SweepResult, SweepRunner, make_plan
    from ppcls.bench.loader.workload import read_workload
    from ppcls.bench.loader.write_config import write_config

    workload, rounds = read_workload(config, run, arguments.images), arguments.rounds or _ROUNDS
    counts = powers_of_two(run.cores)
    workers = (0, *counts) if arguments.workers is None else arguments.workers
    sweep_range = SweepRange(
        backends=tuple(_BACKENDS[name] for name in dict.fromkeys(arguments.backends)),  # type: ignore[misc]
        chains=tuple(dict.fromkeys(arguments.chains)),
        varied=tuple(dict.fromkeys(arguments.vary)),
        threads=tuple(sorted(set(arguments.threads or counts))),
        workers=tuple(sorted(set(workers))),
        prefetch=tuple(sorted(set(arguments.prefetch or (1, 2, 4, 8)))),
    )
    plan = make_plan(workload, sweep_range)
    count = len(plan.settings)
    minutes = (count + 6) * rounds * (arguments.seconds + _RUN_SECONDS) / 60
    for line in plan.remarks:
        report(line)
    report(
        f"{workload.images} images of {workload.image_bytes / 1000:.0f} KB, batches of "
        f"{workload.batch_size}. {count} settings x {rounds} runs of {arguments.seconds:g} s, then the best "
        f"against the present one, and each stage alone: at least {minutes:.0f} min. To save time, use fewer "
        "--chains, --backends, --threads, --vary or --rounds, or --quick."
    )
    empty = empty_results("loader", config, run)

    def make_results(result: SweepResult, findings: list[str]) -> Results:
        rows = make_rows(result, workload.image_bytes)
        return empty.filled(rows, make_charts(), [*plan.remarks, *findings])

    runner = SweepRunner(workload, make_timer(workload, arguments.seconds), rounds, report)
    result = runner.run(plan, lambda known: keep(arguments, make_results(known, [])))
    setting, findings = find_conclusions(result)
    finish(arguments, make_results(result, findings))
    if result.interrupt is not None:
        raise result.interrupt
    target = arguments.write_config
    if target is None:
        return
    if setting is None:
        raise UserError(f"--write-config {target}: no setting is recommended, see above; nothing is written")
    write_config(Path(arguments.config), target, config_values(setting))
    overrides = "; values of -o are not included" if arguments.override else ""
    report(f"{target}: {arguments.config} with {setting.describe()}{overrides}")


def _containers(arguments: argparse.Namespace) -> None:
    check_out(arguments)
    if (started := start(arguments)) is None:
        return
    from ppcls.bench.loader.containers import container_groups, make_rows
    from ppcls.bench.loader.runners import make_timer
    from ppcls.bench.loader.workload import read_workload

    config, run = started
    workload = read_workload(config, run, arguments.images)
    results, rows = empty_results("containers", config, run), list[ResultRow]()
    for candidates in container_groups(workload, make_timer(workload, arguments.seconds)):
        rounds = run_rounds(candidates, arguments.rounds, report)
        rows += make_rows(rounds.measured)
        keep(arguments, results.filled(rows))
        if rounds.interrupt is not None:
            finish(arguments, results.filled(rows))
            raise rounds.interrupt
    finish(arguments, results.filled(rows))
