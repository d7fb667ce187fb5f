"""``ppcls benchmark serve``: measures the latency and throughput of HTTP servers under load."""

from __future__ import annotations

import argparse
from pathlib import Path

from ppcls.bench.results.schema import new_results
from ppcls.bench.serve import servers
from ppcls.cli import options
from ppcls.cli.benchmark import common


def add_serve(commands: options.Subcommands) -> None:
    """Adds the subcommand ``serve``."""
    parser = options.add_subcommand(
        commands,
        "serve",
        "measure the latency and images/s of HTTP servers for several numbers of clients",
        (
            "ppcls benchmark serve --model onnx",
            "ppcls benchmark serve --model onnx --clients 1 8 64 --images photos --out serve",
        ),
        "Measure ppcls serve with and without batching, and a plain FastAPI server that processes each "
        "request separately. All servers and clients run on this machine.",
    )
    text = "checkpoint folder, or folder written by ppcls export"
    parser.add_argument("--model", required=True, type=Path, metavar="PATH", help=text)
    text = "numbers of clients that send requests at the same time (default: 1 8 64)"
    common.add_numbers(parser, "--clients", text, default=[1, 8, 64])
    text = "images to send: files, folders or patterns (default: generated JPEG images of 500x375 pixels)"
    parser.add_argument("--images", nargs="+", type=Path, default=[], metavar="PATH", help=text)
    common.add_effort(parser, "requests", servers.EFFORT)
    common.add_out(parser, _serve)


def _serve(arguments: argparse.Namespace) -> None:
    from ppcls.bench.infer.requests import inspect_machine
    from ppcls.deploy.models.source import find_source

    description = find_source(arguments.model).description
    common.check_out(arguments)
    machine = inspect_machine(arguments.model, ())
    images, clients = servers.read_images(arguments.images), list(dict.fromkeys(arguments.clients))
    empty = new_results("serve", description.as_yaml(), machine["machine"], machine["versions"])
    with servers.RunningServers(servers.server_commands(arguments.model, clients)) as running:
        name = description.Global.model_name
        candidates = servers.make_candidates(running, name, clients, images, common.read_effort(arguments))
        common.measure_and_report(arguments, empty, candidates, lambda: servers.compare_servers(candidates))
