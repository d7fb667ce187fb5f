"""``ppcls benchmark``: subcommands that measure models and servers, or compare two results.

`loader` and `train` contain further subcommands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ppcls.cli.benchmark import loader, train
from ppcls.cli.benchmark.common import (
    RequestOptions,
    check_out,
    measure_and_report,
    out_option,
    report,
    terminal_width,
)
from ppcls.cli.command import CommandGroup, command, write_output
from ppcls.cli.options import argument, option, required
from ppcls.cli.shared_options import trust_option


@dataclass(frozen=True, kw_only=True)
class InferBenchmarkOptions(RequestOptions):
    """Measure the latency and images/s of a model for several batch sizes and numbers of threads.

    Predicts one batch after another. The time of a batch is measured from its images in host memory to its
    scores in host memory.
    """

    examples: ClassVar[Sequence[str]] = (
        "ppcls benchmark infer --model runs/pets/best_model",
        "ppcls benchmark infer --model inference onnx/inference.onnx --batch-size 1 32 --out infer",
    )

    model: tuple[Path, ...] = required(
        "one or more models: checkpoint folders, or folders written by ppcls export", metavar="PATH"
    )
    override: tuple[str, ...] = option(
        (), "set values of Global, such as Global.device=cpu", names=["-o"], metavar="KEY=VALUE"
    )
    batch_size: tuple[int, ...] = option((1, 8, 32), "images per batch", gt=0)
    threads: tuple[int, ...] = option(
        (), "numbers of CPU threads for the model (default: number of cores)", gt=0
    )
    trust: bool = trust_option()
    out: Path | None = out_option()


@dataclass(frozen=True, kw_only=True)
class ServeBenchmarkOptions(RequestOptions):
    """Measure the latency and images/s of HTTP servers for several numbers of clients.

    Measures ppcls serve with and without batching, and a plain FastAPI server that processes each request
    separately. All servers and clients run on this machine.
    """

    examples: ClassVar[Sequence[str]] = (
        "ppcls benchmark serve --model onnx",
        "ppcls benchmark serve --model onnx --clients 1 8 64 --images photos --out serve",
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


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Compare two results, and show which differences are within the noise.

    Prints the ratio B / A and its confidence interval for each row that is in both results.
    """

    examples: ClassVar[Sequence[str]] = (
        "ppcls benchmark compare before after",
        "ppcls benchmark compare before/results.json after/results.json",
    )

    first: Path = argument("first result: results.json, or the folder that contains it", metavar="A")
    second: Path = argument("second result: results.json, or the folder that contains it", metavar="B")


@command("infer", InferBenchmarkOptions)
def _infer(options: InferBenchmarkOptions) -> None:
    from ppcls.bench.infer.requests import find_latencies, find_models, inspect_machine, make_candidates
    from ppcls.bench.results.schema import new_results
    from ppcls.config.base.yaml import dump_yaml

    models = find_models(options.model, options.override, trust=options.trust)
    check_out(options.out)
    machine = inspect_machine(options.model[0], options.override, trust=options.trust)
    effort = options.effort(options.requests)
    axes = (options.threads or (machine["cores"],), options.batch_size)
    candidates = make_candidates(models, machine["device"], axes, options.override, effort)
    device = machine["machine"]["Device"]
    report(f"{device}: variants: {len(candidates)}, rounds: {effort.rounds}")
    described = {str(path): source.description.model_dump(mode="json") for path, source in models}
    config = dump_yaml(described)
    empty = new_results("infer", config, machine["machine"], machine["versions"])
    measure_and_report(options.out, effort.rounds, empty, candidates, lambda: find_latencies(candidates))


@command("serve", ServeBenchmarkOptions)
def _serve(options: ServeBenchmarkOptions) -> None:
    from ppcls.bench.infer.requests import inspect_machine
    from ppcls.bench.results.schema import new_results
    from ppcls.bench.serve import servers
    from ppcls.deploy.models.source import find_source

    description = find_source(options.model, trust=options.trust).description
    check_out(options.out)
    machine = inspect_machine(options.model, (), trust=options.trust)
    images = servers.read_images(options.images)
    clients = list(dict.fromkeys(options.clients))
    empty = new_results("serve", description.as_yaml(), machine["machine"], machine["versions"])
    effort = options.effort(options.requests)
    with servers.RunningServers(
        servers.server_commands(options.model, clients, trust=options.trust)
    ) as running:
        name = description.Global.model_name
        candidates = servers.make_candidates(running, name, clients, images, effort)
        measure_and_report(
            options.out, effort.rounds, empty, candidates, lambda: servers.compare_servers(candidates)
        )


@command("compare", CompareOptions)
def _compare(options: CompareOptions) -> None:
    from ppcls.bench.results.compare import compare_results
    from ppcls.bench.results.schema import read_results
    from ppcls.bench.results.tables import render_comparison

    comparison = compare_results(read_results(options.first), read_results(options.second))
    names = (str(options.first), str(options.second))
    write_output(render_comparison(comparison, names, terminal_width()))


main = CommandGroup(
    "benchmark",
    "Measure speed on this machine, or compare two results.",
    (
        "ppcls benchmark loader -c configs/ResNet50_photos.yaml --quick",
        "ppcls benchmark train -c configs/ResNet50_photos.yaml --out tour",
        "ppcls benchmark infer --model runs/pets/best_model",
    ),
    (
        loader.measure_loader,
        loader.measure_containers,
        train.measure_train,
        train.measure_run,
        _infer,
        _serve,
        _compare,
    ),
)
