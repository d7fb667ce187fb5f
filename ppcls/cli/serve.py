"""The command line of ``tools/serve.py``."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from ppcls.cli.command import Arguments, command, write_output
from ppcls.cli.deploy import MODEL, read_source
from ppcls.cli.options import config_parser, within
from ppcls.deploy.models.source import Source
from ppcls.errors import UserError

_MIB = 1 << 20


@command
def serve(argv: Arguments = None) -> None:
    """Serves a model over HTTP until Ctrl-C or SIGTERM."""
    arguments = _parser().parse_args(argv)
    if arguments.max_images > arguments.max_waiting:
        raise UserError(
            f"--max-images {arguments.max_images}: expected at most --max-waiting ({arguments.max_waiting}), "
            "or such a request would never be taken"
        )
    source = read_source(arguments)
    if source is None:
        return
    from ppcls.serve.server import bind

    with bind(arguments.host, arguments.port) as taken, ThreadPoolExecutor(1, "model") as worker:
        _serve(arguments, source, taken, worker)
    write_output("all requests are answered: the end\n")


def _serve(
    arguments: argparse.Namespace, source: Source, taken: socket.socket, worker: ThreadPoolExecutor
) -> None:
    from ppcls.serve.app import build_app
    from ppcls.serve.server import address_of, run
    from ppcls.serve.service import Batching, Service, load
    from ppcls.serve.uploads import Limits

    batching = Batching(arguments.max_batch, arguments.max_wait / 1000, arguments.max_waiting)
    limits = Limits(int(arguments.max_mib * _MIB), arguments.max_images, arguments.timeout)
    predictor = worker.submit(load, source, batching.max_batch).result()
    name, address = predictor.description.Global.model_name, address_of(taken)
    app = build_app(Service(predictor, worker, batching), limits)
    run(
        app,
        taken,
        limits.timeout,
        lambda: write_output(f"{name} is served on {address} until Ctrl-C or SIGTERM\n"),
    )


def _parser() -> argparse.ArgumentParser:
    made = config_parser(
        "Serve a model over HTTP: a page on /, POST /predict, /health and /metrics.", model=MODEL
    )
    made.add_argument("--host", default="127.0.0.1", help="0.0.0.0 for all networks (%(default)s)")

    def number(option: str, read: Callable[[str], float], default: float, text: str, unit: str = "N") -> None:
        made.add_argument(option, type=read, default=default, metavar=unit, help=f"{text} (%(default)s)")

    number("--port", within(int, ge=0, le=65535), 8000, "0 for any")
    number("--max-batch", within(int, ge=1, le=4096), 16, "images at once")
    waits = "milliseconds that an image waits for others to join its batch"
    number("--max-wait", within(float, ge=0, le=1000), 5.0, waits, "MS")
    number("--max-waiting", within(int, ge=1, le=100_000), 256, "images in work at once; 503 beyond")
    number("--max-images", within(int, ge=1, le=10_000), 32, "of a request; 413 beyond")
    number("--max-mib", within(float, ge=0.001, le=1024), 32.0, "MiB of a request; 413 beyond", "MIB")
    arrives = "seconds for a request to arrive (408 beyond), and to be answered (504)"
    number("--timeout", within(float, ge=0.1, le=3600), 30.0, arrives, "S")
    return made
