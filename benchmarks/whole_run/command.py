"""``python benchmarks/run.py run``: measures whole training runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from benchmarks.common import charts_of, out_option
from ppcls.cli.arguments.options import option
from ppcls.cli.benchmark.common import check_out, measure_and_report
from ppcls.cli.command import command
from ppcls.cli.shared_options import RequiredConfigOptions, read_config


@dataclass(frozen=True, kw_only=True)
class RunBenchmarkOptions(RequiredConfigOptions):
    """Measure a whole training run: start-up, training, data wait, evaluation, checkpoints.

    Starts tools/train.py in a new process, and prints how its wall-clock time is spent.

    The time is divided into start-up (imports, data set and model, until the first batch is requested),
    training, data wait (the device waits for the loader), evaluation, checkpoints, and the rest (end of the
    process). The run uses one process. It writes to a temporary folder, which is deleted at the end. The
    result shows how much a faster training step would speed up a whole run.
    """

    examples: ClassVar[Sequence[str]] = (
        "python benchmarks/run.py run -c configs/quickstart.yaml",
        "python benchmarks/run.py run -c configs/quickstart.yaml --epochs 2 --rounds 3 --out run",
    )

    epochs: int | None = option(None, "number of epochs (default: Global.epochs)", gt=0)
    rounds: int = option(1, "number of runs", gt=0)
    timeout: float = option(86_400.0, "time limit of one run in seconds", gt=0)
    out: Path | None = out_option()


@command("run", RunBenchmarkOptions)
def measure_run(options: RunBenchmarkOptions) -> None:
    """Measures whole training runs."""
    if options.epochs is not None:
        options = replace(options, override=(*options.override, f"Global.epochs={options.epochs}"))
    config = read_config(options)
    if config is None:
        return
    check_out(options.out)
    from benchmarks.whole_run.train_command import make_rows, run_training
    from ppcls.bench.measure.runner import Candidate
    from ppcls.bench.results.schema import new_results
    from ppcls.bench.train.tasks import inspect_machine
    from ppcls.recipe.load import dump_config

    inspection = inspect_machine(Path(options.config), options.override)
    measure = partial(run_training, config, options.config, options.override, options.timeout)
    name = f"{config.Arch.name}, {config.Global.epochs} epochs"
    empty = new_results("run", options.config, dump_config(config), inspection.machine, inspection.versions)
    runs = [Candidate("run", name, measure, {"part": "whole run"})]
    with charts_of(options.out):
        measure_and_report(options.out, options.rounds, empty, runs, make_rows=lambda: make_rows(runs))
