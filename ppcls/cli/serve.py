"""The command line of ``tools/serve.py``."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from ppcls.cli.command import Arguments, command, write_output
from ppcls.cli.infer import MODEL_HELP, read_source
from ppcls.cli.options import config_parser, within
from ppcls.deploy.models.source import ModelSource
from ppcls.errors import UserError

_MIB = 1 << 20


@command
def serve(argv: Arguments = None) -> None:
    """Serves a model over HTTP until Ctrl-C or SIGTERM."""
    arguments = _parser().parse_args(argv)
    if arguments.max_images > arguments.max_waiting:
        raise UserError(
            f"--max-images {arguments.max_images}: expected at most --max-waiting ({arguments.max_waiting}), "
            "because larger requests would always be rejected"
        )
    source = read_source(arguments)
    if source is None:
        return
    from ppcls.serve.server import bind

    with bind(arguments.host, arguments.port) as bound, ThreadPoolExecutor(1, "model") as worker:
        _serve(arguments, source, bound, worker)
    write_output("stopped: all requests are answered\n")


def _serve(
    arguments: argparse.Namespace, source: ModelSource, bound: socket.socket, worker: ThreadPoolExecutor
) -> None:
    from ppcls.serve.app import AllowedHosts, build_app
    from ppcls.serve.limits import RequestLimits
    from ppcls.serve.server import address_of, run
    from ppcls.serve.service import BatchingOptions, InferenceService, load

    batching = BatchingOptions(arguments.max_batch, arguments.max_wait / 1000, arguments.max_waiting)
    limits = RequestLimits(int(arguments.max_mib * _MIB), arguments.max_images, arguments.timeout)
    predictor = worker.submit(load, source, batching.max_batch).result()
    name, address = predictor.description.Global.model_name, address_of(bound)
    app = build_app(InferenceService(predictor, worker, batching), limits)
    ready = f"{name} is served on {address} by {predictor.model.engine} until Ctrl-C or SIGTERM\n"
    names = ["localhost", socket.gethostname(), arguments.host, *arguments.allowed_hosts]
    checked = AllowedHosts(app, names)
    run(checked, bound, limits.timeout, arguments.max_connections, lambda: write_output(ready))


def _parser() -> argparse.ArgumentParser:
    options = config_parser(
        "Serve a model over HTTP: a web page on /, POST /predict, /live, /ready, /health and /metrics.",
        (
            "ppcls serve --model runs/pets",
            "ppcls serve --model onnx/inference.onnx --host 0.0.0.0 --port 9000 --max-batch 32",
        ),
        model=MODEL_HELP,
    )
    options.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for all networks (%(default)s)"
    )

    options.add_argument(
        "--allowed-hosts",
        nargs="+",
        default=[],
        metavar="NAME",
        help="names by which requests may address this server, in addition to addresses, localhost and its "
        "host name; * for any",
    )

    def number(option: str, read: Callable[[str], float], default: float, text: str, unit: str = "N") -> None:
        options.add_argument(option, type=read, default=default, metavar=unit, help=f"{text} (%(default)s)")

    number("--port", within(int, ge=0, le=65535), 8000, "port to listen on; 0 for any free one")
    number("--max-batch", within(int, ge=1, le=4096), 16, "maximum number of images per batch")
    waits = "milliseconds that an image waits for others to join its batch"
    number("--max-wait", within(float, ge=0, le=1000), 5.0, waits, "MS")
    opened = "maximum number of connections; one address may have half of them. Further ones are closed"
    number("--max-connections", within(int, ge=1, le=100_000), 512, opened)
    in_work = (
        "maximum number of images that wait or are being predicted; further requests are answered with 503"
    )
    number("--max-waiting", within(int, ge=1, le=100_000), 256, in_work)
    per_request = "maximum number of images per request; larger requests are answered with 413"
    number("--max-images", within(int, ge=1, le=10_000), 32, per_request)
    size = "maximum size of a request in MiB; larger ones are answered with 413"
    number("--max-mib", within(float, ge=0.001, le=1024), 32.0, size, "MIB")
    arrives = "seconds for a request to arrive (then 408), and again for its answer (then 504)"
    number("--timeout", within(float, ge=0.1, le=3600), 30.0, arrives, "S")
    return options
