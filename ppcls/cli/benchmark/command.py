"""``ppcls benchmark``: one command per thing whose speed can be measured, and comparison of results."""

from __future__ import annotations

import argparse
from pathlib import Path

import yaml

from ppcls.bench.infer.requests import (
    EFFORT,
    Request,
    find_conclusions,
    find_models,
    inspect_machine,
    make_candidates,
    make_charts,
    make_requests,
    make_rows,
)
from ppcls.bench.measure.runner import Measurements
from ppcls.bench.results.schema import Results, new_results, read_results
from ppcls.cli.benchmark import loader, serve, train
from ppcls.cli.benchmark.results import (
    add_effort,
    add_out,
    check_out,
    measure_and_report,
    read_effort,
    terminal_width,
)
from ppcls.cli.command import Arguments, command, write_output
from ppcls.cli.options import Subcommands, add_examples, add_override, add_subcommand, positive_int


@command
def main(argv: Arguments = None) -> None:
    """Measures speed on this machine."""
    parser = argparse.ArgumentParser(description="Measure speed on this machine.")
    add_examples(
        parser,
        "ppcls benchmark loader -c configs/ResNet50_photos.yaml --quick",
        "ppcls benchmark train -c configs/ResNet50_photos.yaml --out tour",
        "ppcls benchmark infer --model runs/pets/best_model",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    loader.add_loader(commands)
    loader.add_containers(commands)
    train.add_train(commands)
    train.add_run(commands)
    _add_infer(commands)
    serve.add_serve(commands)
    _add_compare(commands)
    arguments = parser.parse_args(argv)
    arguments.measure(arguments)


def _add_infer(commands: Subcommands) -> None:
    parser = add_subcommand(
        commands,
        "infer",
        "measure predictions: latency and images/s of a model by batch size and threads",
        (
            "ppcls benchmark infer --model runs/pets/best_model",
            "ppcls benchmark infer --model inference onnx/inference.onnx --batch-size 1 32 --out infer",
        ),
        "Measure requests one after the other, from a batch in host memory to its scores in host memory.",
    )
    parser.add_argument(
        "--model",
        nargs="+",
        required=True,
        type=Path,
        metavar="PATH",
        help="folders written by ppcls export, for Paddle or as ONNX, or checkpoint folders",
    )
    add_override(parser, "set values of Global, such as Global.device=cpu")
    parser.add_argument(
        "--batch-size",
        nargs="+",
        type=positive_int,
        default=[1, 8, 32],
        metavar="N",
        help="images per request (1 8 32)",
    )
    parser.add_argument(
        "--threads",
        nargs="+",
        type=positive_int,
        metavar="N",
        help="CPU threads of the model (default: all cores)",
    )
    add_effort(parser, "requests", EFFORT)
    add_out(parser)
    parser.set_defaults(measure=_infer)


def _infer(arguments: argparse.Namespace) -> None:
    models = find_models(arguments.model, arguments.override)
    check_out(arguments)
    machine = inspect_machine(arguments.model[0], arguments.override)
    effort = read_effort(arguments)
    threads = arguments.threads or [machine["cores"]]
    requests = make_requests(models, machine["device"], threads, arguments.batch_size)
    write_output(
        f"{machine['machine']['Device']}: kinds of requests: {len(requests)}, rounds: {effort.rounds}\n"
    )
    described = {str(path): source.description.model_dump(mode="json") for path, source in models}
    config = yaml.safe_dump(described, sort_keys=False, allow_unicode=True)

    empty = new_results("infer", config, machine["machine"], machine["versions"])

    def make_results(measured: list[Measurements[Request]]) -> Results:
        return empty.filled(make_rows(measured), make_charts(measured), find_conclusions(measured))

    candidates = make_candidates(requests, arguments.override, effort)
    measure_and_report(arguments, candidates, effort.rounds, make_results)


def _add_compare(commands: Subcommands) -> None:
    parser = add_subcommand(
        commands,
        "compare",
        "compare two results, and show which differences are within noise",
        (
            "ppcls benchmark compare before after",
            "ppcls benchmark compare before/results.json after/results.json",
        ),
        "Print the ratio B / A for each row that both results have, with its confidence interval.",
    )
    parser.add_argument(
        "first", type=Path, metavar="A", help="first result: results.json, or the folder of --out"
    )
    parser.add_argument("second", type=Path, metavar="B", help="second result, in the same form")
    parser.set_defaults(measure=_compare)


def _compare(arguments: argparse.Namespace) -> None:
    from ppcls.bench.results.compare import compare_results
    from ppcls.bench.results.tables import render_comparison

    comparison = compare_results(read_results(arguments.first), read_results(arguments.second))
    write_output(
        render_comparison(comparison, (str(arguments.first), str(arguments.second)), terminal_width())
    )
