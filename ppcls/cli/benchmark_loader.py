"""``tools/benchmark.py loader``: how fast data loaders are, what limits them, and the setting to use."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress

from ppcls.cli.benchmark_results import add_out, claim_out, finish, keep, made_results, start
from ppcls.cli.command import write_output
from ppcls.cli.options import Subcommands, add_config_options, non_negative_int, positive_int, within
from ppcls.config.schema import Config
from ppcls.errors import UserError
from ppcls.runtime.start import Runtime

if TYPE_CHECKING:  # else every command would import what one needs
    from ppcls.bench.loader.contender import Contender, Wanted
    from ppcls.bench.loader.subject import Subject
    from ppcls.bench.loader.sweep import Effort, Measured, Plan
    from ppcls.bench.loader.timing import Speed
    from ppcls.bench.results.results import Results

_BACKENDS = {
    "read": "read only",
    "bare": "bare DALI",
    "paddle": "paddle.io",
    "dali-cpu": "DALI CPU",
    "dali-gpu": "DALI GPU",
}
_CHAINS = ("read", "decode", "crop", "config")
_VARIED = ("workers", "prefetch", "decoder")
_ROUNDS, _QUICK_ROUNDS = 3, 5


def add_subcommand(commands: Subcommands) -> None:
    """Adds the command."""
    made = commands.add_parser(
        "loader",
        help="data loaders: DALI, paddle.io, a bare DALI pipeline; what limits them, and the setting to use",
        description="Sweeps the settings of the data loaders, and says what limits them and which to use.",
    )
    add_config_options(made)
    made.add_argument(
        "--quick",
        action="store_true",
        help="in short: ratios of our DALI loader, a bare one, paddle.io",
    )
    made.add_argument(
        "--rounds", type=positive_int, help=f"runs of each ({_ROUNDS}; epochs with --quick: {_QUICK_ROUNDS})"
    )
    made.add_argument(
        "--seconds", type=within(float, gt=0, le=3600), default=2.0, help="that count of a run (%(default)s)"
    )
    made.add_argument(
        "--images", type=positive_int, default=8192, metavar="N", help="the most that are used (%(default)s)"
    )
    made.add_argument(
        "--cold", action="store_true", help="also with the images read from the disk, not from memory"
    )
    made.add_argument("--backends", nargs="+", choices=_BACKENDS, default=list(_BACKENDS), help="only these")
    made.add_argument("--chains", nargs="+", choices=_CHAINS, default=list(_CHAINS), help="only these")
    made.add_argument(
        "--vary", nargs="+", choices=_VARIED, default=list(_VARIED), help="only these settings (all)"
    )
    made.add_argument(
        "--threads", type=positive_int, nargs="+", metavar="N", help="of DALI (1, 2, 4, … to the cores)"
    )
    made.add_argument(
        "--workers",
        type=non_negative_int,
        nargs="+",
        metavar="N",
        help="of paddle.io (0, 1, 2, 4, …; --quick: 2)",
    )
    made.add_argument(
        "--prefetch",
        type=positive_int,
        nargs="+",
        metavar="N",
        help="batches that DALI makes ahead (1 2 4 8)",
    )
    made.add_argument("--mixup", action="store_true", help="with --quick: our DALI loader with Mixup, too")
    made.add_argument(
        "--write-config", type=Path, metavar="FILE", help="write a copy of the config with the setting to use"
    )
    add_out(made)
    made.set_defaults(measure=_measure)


def _measure(arguments: argparse.Namespace) -> None:
    _check(arguments)
    if arguments.print_config:
        start(arguments)
        return
    claim_out(arguments)
    if arguments.write_config is not None:
        from ppcls.bench.loader.write_config import claim

        claim(arguments.write_config)
    if (started := start(arguments)) is None:
        return
    (_quick if arguments.quick else _sweep)(arguments, *started)


def _check(arguments: argparse.Namespace) -> None:
    """Refuses options that don't go together."""
    if arguments.mixup and not arguments.quick:
        raise UserError("--mixup goes with --quick")
    if not arguments.quick:
        return
    for name in ("cold", "write_config", "threads", "prefetch"):
        if getattr(arguments, name):
            raise UserError(f"--{name.replace('_', '-')} does not go with --quick")


def _quick(arguments: argparse.Namespace, config: Config, run: Runtime) -> None:
    from ppcls.bench.loader.quick import benchmark_loaders
    from ppcls.bench.loader.results import QUICK_CHARTS, quick_rows

    rounds, workers = arguments.rounds or _QUICK_ROUNDS, arguments.workers or [2]

    def results(speeds: Sequence[Speed]) -> Results:
        rows = quick_rows(speeds)
        return made_results("loader in short", config, run, rows, QUICK_CHARTS, _gains(speeds))

    compared = benchmark_loaders(
        config, run, workers, rounds, mixup=arguments.mixup, keep=lambda it: keep(arguments, results(it))
    )
    lines = [speed.describe() for speed in compared.speeds]
    write_output("".join(f"{line}\n" for line in [*lines, *_gains(compared.speeds)]))
    finish(arguments, results(compared.speeds), shown=False)
    if compared.interrupt is not None:
        raise compared.interrupt


def _gains(speeds: Sequence[Speed]) -> list[str]:
    """Returns how many times our DALI loader, the second, is as fast as those behind it, a sentence each."""
    dali, findings = speeds[1], list[str]()
    for other in speeds[2:]:
        gain = statistics.median(a / b for a, b in zip(dali.rates, other.rates, strict=True))
        findings.append(f"{dali.name} is {gain:.2f} times {other.name}")
    return findings


def _sweep(arguments: argparse.Namespace, config: Config, run: Runtime) -> None:
    from ppcls.bench.loader.results import charts, conclude, rows, warn_of_noise
    from ppcls.bench.loader.subject import read_subject
    from ppcls.bench.loader.sweep import Effort, make_plan

    subject = read_subject(config, run, arguments.images)
    effort = Effort(arguments.rounds or _ROUNDS, arguments.seconds)
    plan = make_plan(subject, _wanted(arguments, run), effort)
    _say_plan(plan, subject, effort)

    def results(measured: Measured, findings: Sequence[str]) -> Results:
        return made_results("loader", config, run, rows(measured, subject), charts(measured), findings)

    measured = _with_bar(plan, subject, effort, lambda known: keep(arguments, results(known, plan.remarks)))
    setting, sentences = conclude(measured)
    findings = [*plan.remarks, *warn_of_noise(measured), *sentences]
    finish(arguments, results(measured, findings))
    if measured.interrupted:
        raise KeyboardInterrupt
    if arguments.write_config is not None:
        _write(arguments, setting)


def _wanted(arguments: argparse.Namespace, run: Runtime) -> Wanted:
    from ppcls.bench.loader.contender import Wanted, counts

    threads = tuple(sorted(set(arguments.threads or counts(run.cores))))
    workers = arguments.workers if arguments.workers is not None else (0, *counts(run.cores))
    return Wanted(
        backends=tuple(_BACKENDS[name] for name in dict.fromkeys(arguments.backends)),  # type: ignore[misc]
        chains=tuple(dict.fromkeys(arguments.chains)),
        varied=tuple(dict.fromkeys(arguments.vary)),
        threads=threads,
        workers=tuple(sorted(set(workers))),
        prefetch=tuple(sorted(set(arguments.prefetch or (1, 2, 4, 8)))),
        cold=arguments.cold,
    )


def _say_plan(plan: Plan, subject: Subject, effort: Effort) -> None:
    for remark in plan.remarks:
        write_output(f"{remark}\n")
    minutes = plan.seconds / 60
    write_output(
        f"{subject.images} images of {subject.image_bytes / 1000:.0f} KB, batches of {subject.batch_size}. "
        f"{len(plan.contenders)} settings x {effort.rounds} runs of {effort.seconds:g} s, then the best "
        f"against the present one, and each stage alone: about {minutes:.0f} min. Fewer --chains, "
        "--backends, --threads, --vary or --rounds take less; --quick takes the least.\n"
    )


def _with_bar(plan: Plan, subject: Subject, effort: Effort, swept: Callable[[Measured], None]) -> Measured:
    from ppcls.bench.loader.sweep import measure, run_count

    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("runs", total=run_count(plan, effort))
        return measure(plan, subject, effort, lambda: bar.advance(task), swept)


def _write(arguments: argparse.Namespace, setting: Contender | None) -> None:
    from ppcls.bench.loader.choice import values_of
    from ppcls.bench.loader.write_config import write_config

    if setting is None:
        raise UserError(f"--write-config {arguments.write_config}: nothing to write, see above")
    write_config(Path(arguments.config), arguments.write_config, values_of(setting))
    overrides = "; what -o has set is not in it" if arguments.override else ""
    write_output(f"{arguments.write_config}: {arguments.config} with {setting.describe()}{overrides}\n")
