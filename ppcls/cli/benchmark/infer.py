"""``ppcls benchmark infer``: measures the latency and throughput of models."""

from __future__ import annotations

import argparse
from pathlib import Path

import yaml

from ppcls.bench.measure.runner import Effort
from ppcls.bench.results.schema import new_results
from ppcls.cli import options
from ppcls.cli.benchmark import common


def add_infer(commands: options.Subcommands) -> None:
    """Adds the subcommand ``infer``."""
    parser = options.add_subcommand(
        commands,
        "infer",
        "measure the latency and images/s of a model for several batch sizes and numbers of threads",
        (
            "ppcls benchmark infer --model runs/pets/best_model",
            "ppcls benchmark infer --model inference onnx/inference.onnx --batch-size 1 32 --out infer",
        ),
        "Predict one batch after another. The time of a batch is measured from its images in host memory to "
        "its scores in host memory.",
    )
    text = "one or more models: checkpoint folders, or folders written by ppcls export"
    parser.add_argument("--model", nargs="+", required=True, type=Path, metavar="PATH", help=text)
    options.add_override(parser, "set values of Global, such as Global.device=cpu")
    common.add_numbers(parser, "--batch-size", "images per batch (default: 1 8 32)", default=[1, 8, 32])
    common.add_numbers(parser, "--threads", "numbers of CPU threads for the model (default: number of cores)")
    common.add_effort(parser, "requests", Effort(warm_up=10, timeout=600.0))
    common.add_out(parser, _infer)


def _infer(arguments: argparse.Namespace) -> None:
    from ppcls.bench.infer.requests import find_latencies, find_models, inspect_machine, make_candidates

    models = find_models(arguments.model, arguments.override)
    common.check_out(arguments)
    machine = inspect_machine(arguments.model[0], arguments.override)
    effort, axes = (
        common.read_effort(arguments),
        (arguments.threads or [machine["cores"]], arguments.batch_size),
    )
    candidates = make_candidates(models, machine["device"], axes, arguments.override, effort)
    device = machine["machine"]["Device"]
    common.report(f"{device}: variants: {len(candidates)}, rounds: {effort.rounds}")
    described = {str(path): source.description.model_dump(mode="json") for path, source in models}
    config = yaml.safe_dump(described, sort_keys=False, allow_unicode=True)
    empty = new_results("infer", config, machine["machine"], machine["versions"])
    common.measure_and_report(arguments, empty, candidates, lambda: find_latencies(candidates))
