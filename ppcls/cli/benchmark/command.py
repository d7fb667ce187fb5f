"""``ppcls benchmark``: subcommands that measure models and servers, or compare two results.

`loader` and `train` contain further subcommands.
"""

from __future__ import annotations

import argparse

from ppcls.bench.results.schema import new_results, read_results
from ppcls.cli.benchmark import loader, train
from ppcls.cli.benchmark.common import check_out, measure_and_report, read_effort, report, terminal_width
from ppcls.cli.command import Arguments, command, write_output
from ppcls.cli.options import build_parser


@command
def main(argv: Arguments = None) -> None:
    """Measures speed on this machine, or compares two results."""
    arguments = build_parser("benchmark").parse_args(argv)
    commands = {
        "loader": loader.measure_loader,
        "containers": loader.measure_containers,
        "train": train.measure_train,
        "run": train.measure_run,
        "infer": _infer,
        "serve": _serve,
        "compare": _compare,
    }
    commands[arguments.command](arguments)


def _infer(arguments: argparse.Namespace) -> None:
    from ppcls.bench.infer.requests import find_latencies, find_models, inspect_machine, make_candidates
    from ppcls.config.base.yaml import dump_yaml

    models = find_models(arguments.model, arguments.override)
    check_out(arguments)
    machine = inspect_machine(arguments.model[0], arguments.override)
    effort = read_effort(arguments)
    axes = (arguments.threads or [machine["cores"]], arguments.batch_size)
    candidates = make_candidates(models, machine["device"], axes, arguments.override, effort)
    device = machine["machine"]["Device"]
    report(f"{device}: variants: {len(candidates)}, rounds: {effort.rounds}")
    described = {str(path): source.description.model_dump(mode="json") for path, source in models}
    config = dump_yaml(described)
    empty = new_results("infer", config, machine["machine"], machine["versions"])
    measure_and_report(arguments, empty, candidates, lambda: find_latencies(candidates))


def _serve(arguments: argparse.Namespace) -> None:
    from ppcls.bench.infer.requests import inspect_machine
    from ppcls.bench.serve import servers
    from ppcls.deploy.models.source import find_source

    description = find_source(arguments.model).description
    check_out(arguments)
    machine = inspect_machine(arguments.model, ())
    images = servers.read_images(arguments.images)
    clients = list(dict.fromkeys(arguments.clients))
    empty = new_results("serve", description.as_yaml(), machine["machine"], machine["versions"])
    with servers.RunningServers(servers.server_commands(arguments.model, clients)) as running:
        name = description.Global.model_name
        candidates = servers.make_candidates(running, name, clients, images, read_effort(arguments))
        measure_and_report(arguments, empty, candidates, lambda: servers.compare_servers(candidates))


def _compare(arguments: argparse.Namespace) -> None:
    from ppcls.bench.results.compare import compare_results
    from ppcls.bench.results.tables import render_comparison

    comparison = compare_results(read_results(arguments.first), read_results(arguments.second))
    names = (str(arguments.first), str(arguments.second))
    write_output(render_comparison(comparison, names, terminal_width()))
