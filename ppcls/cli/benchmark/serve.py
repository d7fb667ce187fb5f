"""``ppcls benchmark serve``."""

from __future__ import annotations

import argparse
from pathlib import Path

from ppcls.bench.measure.runner import Measurements
from ppcls.bench.results.schema import Results, new_results
from ppcls.bench.serve import servers
from ppcls.cli.benchmark.results import add_effort, add_out, check_out, measure_and_report, read_effort
from ppcls.cli.options import Subcommands, add_subcommand, positive_int


def add_serve(commands: Subcommands) -> None:
    """Adds ``serve``."""
    parser = add_subcommand(
        commands,
        "serve",
        "measure servers under load: latency and images/s by number of clients",
        (
            "ppcls benchmark serve --model onnx",
            "ppcls benchmark serve --model onnx --clients 1 8 64 --images photos --out serve",
        ),
        "Measure ppcls serve with and without batching, and a plain FastAPI server that processes each "
        "request separately. All servers and clients run on this machine.",
    )
    parser.add_argument(
        "--model", required=True, type=Path, metavar="PATH", help="exported folder or checkpoint folder"
    )
    parser.add_argument(
        "--clients",
        nargs="+",
        type=positive_int,
        default=[1, 8, 64],
        metavar="N",
        help="numbers of clients that send requests at the same time (1 8 64)",
    )
    parser.add_argument(
        "--images",
        nargs="+",
        type=Path,
        default=[],
        metavar="PATH",
        help="images to send: files, folders or patterns (default: generated JPEGs of 500x375 pixels)",
    )
    add_effort(parser, "requests", servers.EFFORT)
    add_out(parser)
    parser.set_defaults(measure=_serve)


def _serve(arguments: argparse.Namespace) -> None:
    from ppcls.bench.infer.requests import inspect_machine
    from ppcls.deploy.models.source import find_source

    servers.need_server_packages()
    source = find_source(arguments.model)
    check_out(arguments)
    machine = inspect_machine(arguments.model, ())
    images, effort = servers.read_images(arguments.images), read_effort(arguments)
    name, clients = source.description.Global.model_name, list(dict.fromkeys(arguments.clients))
    empty = new_results("serve", source.description.as_yaml(), machine["machine"], machine["versions"])

    def make_results(measured: list[Measurements[servers.ServerLoad]]) -> Results:
        rows, conclusions = servers.make_rows(measured), servers.find_conclusions(measured)
        return empty.filled(rows, servers.make_charts(), conclusions)

    limits = ["--max-connections", str(max(512, 4 * max(clients))), "--max-waiting", str(max(256, *clients))]
    with servers.RunningServers(arguments.model, limits) as running:
        candidates = servers.make_candidates(running, name, clients, images, effort)
        measure_and_report(arguments, candidates, effort.rounds, make_results)
