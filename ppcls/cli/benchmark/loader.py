"""``ppcls benchmark loader``: measures data loaders and finds the bottleneck."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from ppcls.cli.arguments.options import option
from ppcls.cli.benchmark import common
from ppcls.cli.command import command
from ppcls.cli.shared_options import RequiredConfigOptions, read_config
from ppcls.errors import UserError, counted

if TYPE_CHECKING:  # not needed for --help
    from ppcls.bench.loader.runners import BatchTimer, Loaders
    from ppcls.bench.loader.workload import LoaderWorkload
    from ppcls.bench.results.schema import Results

_ROUNDS = 3
_QUICK_ROUNDS = 5
_RUN_SECONDS = 1.0  # approximate time to start and end a loader


@dataclass(frozen=True, kw_only=True)
class LoadingOptions(RequiredConfigOptions):
    """Options of a benchmark that loads the images of a config."""

    seconds: float = option(2.0, "duration of one run in seconds", gt=0, le=3600)
    images: int = option(8192, "maximum number of images to use", gt=0)
    out: Path | None = common.out_option()


@dataclass(frozen=True, kw_only=True)
class LoaderOptions(LoadingOptions):
    """Measure the speed of DALI, paddle.io and a bare DALI pipeline as data loaders.

    Measures many settings, and reports the bottleneck and the best setting.
    """

    examples: ClassVar[Sequence[str]] = (
        "ppcls benchmark loader -c configs/ResNet50_photos.yaml --write-config best.yaml",
        "ppcls benchmark loader -c configs/cells.yaml --improvement --threads 1 2 4 --out cells",
        "ppcls benchmark loader -c configs/ResNet50_photos.yaml --data /hdd/photos /ssd/photos",
    )

    quick: bool = option(
        False,
        "only compare three loaders with the config's settings: ppcls's DALI loader, a bare DALI pipeline "
        "and paddle.io",
    )
    rounds: int | None = option(
        None,
        f"number of runs of each setting (default: {_ROUNDS}; with --quick: {_QUICK_ROUNDS})",
        gt=0,
    )
    threads: tuple[int, ...] = option(
        (),
        "numbers of DALI threads (default: powers of two up to the number of cores)",
        gt=0,
    )
    workers: tuple[int, ...] = option(
        (),
        "numbers of paddle.io workers (default: 0 and powers of two up to the number of cores; with --quick: "
        "2)",
        ge=0,
    )
    improvement: bool = option(
        False,
        "only compare DALI with paddle.io: seconds per epoch and the time that is saved, for reading only "
        "and for all transforms, over the numbers of --threads",
    )
    data: tuple[Path, ...] = option(
        (),
        "folders on different disks with copies of the images: only compare these folders, cold (not in "
        "memory) and in memory, and name the bottleneck of each",
        metavar="FOLDER",
    )
    mixup: bool = option(False, "with --quick: also measure ppcls's DALI loader with Mixup")
    write_config: Path | None = option(
        None, "write a copy of the config with the best setting to the new file FILE", metavar="FILE"
    )

    @property
    def effective_rounds(self) -> int:
        """Number of runs of each setting."""
        return self.rounds or (_QUICK_ROUNDS if self.quick else _ROUNDS)


def start_benchmark(
    options: LoadingOptions, benchmark: str
) -> tuple[LoaderWorkload, BatchTimer, Results] | None:
    """Returns workload, timer and results without rows, or None if ``--print-config`` printed the config."""
    config = read_config(options)
    if config is None:
        return None
    common.check_out(options.out)
    from ppcls.runtime import start as runtime

    run = runtime.start(config.Global)
    common.report(run.describe())
    from ppcls.bench.loader.runners import make_timer
    from ppcls.bench.loader.workload import read_workload
    from ppcls.bench.results.schema import new_results
    from ppcls.recipe.load import dump_config
    from ppcls.report.summary.environment import read_hardware, read_versions

    split = config.DataLoader.need_train()
    workload = read_workload(split, config.Arch, config.Global, run, options.images)
    results = new_results(benchmark, options.config, dump_config(config), read_hardware(run), read_versions())
    return workload, make_timer(workload, options.seconds), results


@command("loader", LoaderOptions)
def measure_loader(options: LoaderOptions) -> None:
    """Measures data loaders, and finds the bottleneck."""
    if options.mixup and not options.quick:
        raise UserError("--mixup needs --quick")
    if options.quick and (options.write_config or options.threads):
        name = "--write-config" if options.write_config else "--threads"
        raise UserError(f"{name} cannot be used with --quick")
    if options.data and (options.quick or options.write_config or options.workers or options.threads):
        raise UserError("--data cannot be used with --quick, --write-config, --workers or --threads")
    if options.write_config is not None:
        from ppcls.bench.loader.write_config import check_new_file

        check_new_file(options.write_config)
    if options.improvement and (options.quick or options.data or options.write_config or options.workers):
        raise UserError("--improvement cannot be used with --quick, --data, --write-config or --workers")
    if options.data:
        name, measure = "storage", _compare_storages
    elif options.improvement:
        name, measure = "loader improvement", _compare_with_framework
    else:
        name, measure = ("quick loader", _quick) if options.quick else ("loader", _sweep)
    if (started := start_benchmark(options, name)) is not None:
        measure(options, *started)


def _compare_storages(
    options: LoaderOptions, workload: LoaderWorkload, timer: BatchTimer, empty: Results
) -> None:
    from ppcls.bench.loader.storage import explain_storages, list_storages, with_folder
    from ppcls.bench.measure.runner import run_rounds

    storages = list_storages([with_folder(workload, folder) for folder in options.data], timer)

    def results() -> Results:
        return empty.filled([storage.row() for storage in storages], explain_storages(storages))

    interrupt = run_rounds(
        [candidate for storage in storages for candidate in storage.candidates],
        options.effective_rounds,
        common.report,
        lambda: common.keep(options.out, results()),
    )
    common.finish(options.out, results(), interrupt)


def _compare_with_framework(
    options: LoaderOptions, workload: LoaderWorkload, timer: BatchTimer, empty: Results
) -> None:
    from ppcls.bench.loader.improvement import explain_improvements, list_improvements
    from ppcls.bench.measure.runner import powers_of_two

    counts = sorted(set(options.threads or powers_of_two(workload.runtime.cores)))
    pairs = list_improvements(workload, counts, timer)
    for position in workload.positions.tolist():
        workload.index.read(position)  # loads the file into the page cache, for equal conditions
    common.measure_and_report(
        options.out,
        options.effective_rounds,
        empty,
        [candidate for pair in pairs for candidate in (pair.framework, pair.dali)],
        lambda: explain_improvements(pairs),
        lambda: [row for pair in pairs for row in pair.rows()],
    )


def _quick(options: LoaderOptions, workload: LoaderWorkload, timer: BatchTimer, empty: Results) -> None:
    from ppcls.bench.loader.sweep import compare_loaders, quick_candidates

    candidates = quick_candidates(workload, options.workers or (2,), timer, mixup=options.mixup)
    common.measure_and_report(
        options.out, options.effective_rounds, empty, candidates, lambda: compare_loaders(candidates)
    )


def _sweep(options: LoaderOptions, workload: LoaderWorkload, timer: BatchTimer, empty: Results) -> None:
    from ppcls.bench.loader.advice import config_values
    from ppcls.bench.loader.sweep import LoaderSweep
    from ppcls.bench.loader.write_config import write_config
    from ppcls.bench.measure.runner import find_conclusions, powers_of_two, run_rounds

    counts = powers_of_two(workload.runtime.cores)
    rounds = options.effective_rounds
    threads = sorted(set(options.threads or counts))
    workers = sorted(set(options.workers or (0, *counts)))
    kinds = len(workers) + len(threads) * (2 if workload.on_gpu else 1) + 12  # approximately
    common.report(
        f"{counted(workload.images, 'image')} of {workload.image_bytes / 1000:.0f} KB, batches of "
        f"{workload.batch_size}. About {kinds} settings x {counted(rounds, 'run')} of {options.seconds:g} s: "
        f"at least {kinds * rounds * (options.seconds + _RUN_SECONDS) / 60:.0f} min. To save time, use fewer "
        "--threads, --workers, --rounds or --seconds, or --quick."
    )

    def results(findings: Sequence[str] = ()) -> Results:
        rows = [each.row() for each in sweep.candidates if each.samples or each.reason]
        return empty.filled(rows, findings)

    def measure(candidates: Loaders) -> None:
        interrupt = run_rounds(candidates, rounds, common.report, lambda: common.keep(options.out, results()))
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
    common.finish(options.out, results(findings), interrupt)
    if (target := options.write_config) is None:
        return
    if setting is None:
        raise UserError(
            f"--write-config {target}: not written, because no setting is recommended (see above)"
        )
    write_config(Path(options.config), target, config_values(setting))
    overrides = "; values of -o are not included" if options.override else ""
    common.report(f"wrote {target}: {options.config} with {setting.describe()}{overrides}")
