"""``tools/benchmark.py infer``, and ``compare`` of any benchmarks' results."""

from __future__ import annotations

import argparse
import sys
from datetime import datetime
from pathlib import Path

import yaml

from ppcls.bench.infer.infer import (
    Length,
    Request,
    charts_of,
    find_models,
    findings_of,
    look_at,
    requests_of,
    rows_of,
    runner,
)
from ppcls.bench.measure.turns import Measured, take_turns
from ppcls.bench.results.compare import compare_results
from ppcls.bench.results.comparison_table import render
from ppcls.bench.results.results import Results, read_results
from ppcls.cli.benchmark_results import add_length, add_out, claim_out, finish, keep, terminal_width
from ppcls.cli.command import write_output
from ppcls.cli.options import Subcommands, add_override, positive_int


def add_infer(commands: Subcommands) -> None:
    """Adds the command."""
    made = commands.add_parser(
        "infer",
        help="predictions: latency and images/s of a model by batch size and threads",
        description="Measures requests one after the other: a batch in the host's memory to scores there.",
    )
    made.add_argument(
        "--model",
        nargs="+",
        required=True,
        type=Path,
        metavar="PATH",
        help="folders that tools/export.py wrote, for Paddle or as ONNX, or checkpoint folders",
    )
    add_override(made, "of Global, such as Global.device=cpu")
    made.add_argument(
        "--batch-size", nargs="+", type=positive_int, default=[1, 8, 32], metavar="N", help="(%(default)s)"
    )
    made.add_argument(
        "--threads",
        nargs="+",
        type=positive_int,
        metavar="N",
        help="CPU threads of the model; by default all cores",
    )
    add_length(made, "requests", Length())
    add_out(made)
    made.set_defaults(measure=_infer)


def _infer(arguments: argparse.Namespace) -> None:
    models = find_models(arguments.model, arguments.override)
    claim_out(arguments)
    look = look_at(arguments.model[0], arguments.override)
    length = Length(
        arguments.rounds, arguments.warm_up, arguments.requests, arguments.seconds, arguments.timeout
    )
    requests = requests_of(models, look["device"], arguments.threads or [look["cores"]], arguments.batch_size)
    write_output(
        f"{look['machine']['Device']}: kinds of requests: {len(requests)}, rounds: {length.rounds}\n"
    )
    described = {str(path): source.description.model_dump(mode="json") for path, source in models}

    def results(measured: list[Measured[Request]]) -> Results:
        return Results(
            benchmark="infer",
            command=tuple(sys.argv),
            written=datetime.now().astimezone().isoformat(timespec="seconds"),
            machine=look["machine"],
            versions=look["versions"],
            config=yaml.safe_dump(described, sort_keys=False, allow_unicode=True),
            rows=tuple(rows_of(measured)),
            charts=tuple(charts_of(measured)),
            findings=tuple(findings_of(measured)),
        )

    taken = take_turns(
        requests,
        length.rounds,
        runner(arguments.override, length),
        lambda line: write_output(f"{line}\n"),
        lambda measured: keep(arguments, results(measured)),
    )
    finish(arguments, results(taken.measured))
    if taken.interrupt is not None:
        raise taken.interrupt


def add_compare(commands: Subcommands) -> None:
    """Adds the command."""
    made = commands.add_parser(
        "compare",
        help="two results: ratios, and which are within noise",
        description="Shows B over A for each row that both have, with the range that its spread allows.",
    )
    made.add_argument("first", type=Path, metavar="A", help="results.json, or the folder of --out")
    made.add_argument("second", type=Path, metavar="B", help="the same of another run")
    made.set_defaults(measure=_compare)


def _compare(arguments: argparse.Namespace) -> None:
    sides = [read_results(each) for each in (arguments.first, arguments.second)]
    names = str(arguments.first), str(arguments.second)
    write_output(render(compare_results(*sides), names, terminal_width()))
