"""``python benchmarks/run.py serve``: measures HTTP servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from benchmarks.common import RequestOptions, charts_of, out_option
from ppcls.cli.arguments.options import option, required
from ppcls.cli.benchmark.common import check_out, measure_and_report
from ppcls.cli.command import command
from ppcls.cli.shared_options import trust_option


@dataclass(frozen=True, kw_only=True)
class ServeBenchmarkOptions(RequestOptions):
    """Measure the latency and images/s of HTTP servers for several numbers of clients.

    Measures ppcls serve with and without batching, and a plain FastAPI server that processes each request
    separately. All servers and clients run on this machine.
    """

    examples: ClassVar[Sequence[str]] = (
        "python benchmarks/run.py serve --model onnx",
        "python benchmarks/run.py serve --model onnx --clients 1 8 64 --images photos --out serve",
    )

    model: Path = required("checkpoint folder, or folder written by ppcls export", metavar="PATH")
    clients: tuple[int, ...] = option(
        (1, 8, 64), "numbers of clients that send requests at the same time", gt=0
    )
    images: tuple[Path, ...] = option(
        (),
        "images to send: files, folders or patterns (default: generated JPEG images of 500x375 pixels)",
        metavar="PATH",
    )
    warm_up: int = option(20, "number of requests before the measurement starts", gt=0)
    trust: bool = trust_option()
    out: Path | None = out_option()


@command("serve", ServeBenchmarkOptions)
def measure_serve(options: ServeBenchmarkOptions) -> None:
    """Measures servers."""
    from benchmarks.infer.requests import inspect_machine
    from benchmarks.serve import servers
    from ppcls.bench.results.schema import new_results
    from ppcls.deploy.models.source import find_source

    description = find_source(options.model, trust=options.trust).description
    check_out(options.out)
    machine = inspect_machine(options.model, (), trust=options.trust)
    images = servers.read_images(options.images)
    clients = list(dict.fromkeys(options.clients))
    empty = new_results(
        "serve", str(options.model), description.as_yaml(), machine["machine"], machine["versions"]
    )
    effort = options.effort(options.requests)
    commands = servers.server_commands(options.model, clients, trust=options.trust)
    with charts_of(options.out), servers.RunningServers(commands) as running:
        name = description.Global.model_name
        candidates = servers.make_candidates(running, name, clients, images, effort)
        measure_and_report(
            options.out, effort.rounds, empty, candidates, lambda: servers.compare_servers(candidates)
        )
