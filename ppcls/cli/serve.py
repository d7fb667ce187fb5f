"""The command ``ppcls serve``, and its script in tools/."""

from __future__ import annotations

import argparse
import re
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from ppcls.cli.command import Arguments, command, write_output
from ppcls.cli.infer import read_source
from ppcls.cli.options import parse_model_arguments
from ppcls.deploy.models.source import ModelSource
from ppcls.errors import UserError

if TYPE_CHECKING:  # an optional package
    from starlette.types import ASGIApp

    from ppcls.deploy.image_index import ImageIndex
    from ppcls.deploy.predictor import Predictor

_MIB = 1 << 20
_NAMED = re.compile(r"([A-Za-z0-9][\w.-]*)=(.+)")  # NAME=PATH


@command
def serve(argv: Arguments = None) -> None:
    """Serves models over HTTP until Ctrl-C or SIGTERM."""
    arguments = parse_model_arguments("serve", argv)
    if arguments.max_images > arguments.max_waiting:
        raise UserError(
            f"--max-images {arguments.max_images}: expected at most --max-waiting ({arguments.max_waiting}), "
            "because larger requests would always be rejected"
        )
    sources = _read_sources(arguments)
    if not sources:
        return
    from ppcls.serve.server import address_of, bind

    _check_files(arguments)
    shared = arguments.workers > 1
    with bind(arguments.host, arguments.port, shared) as bound, ThreadPoolExecutor(1, "model") as worker:
        address = address_of(bound, arguments.tls_cert is not None)
        served = f"{', '.join(sources)} {'is' if len(sources) == 1 else 'are'} served on {address}"
        end = "until Ctrl-C or SIGTERM\n"
        if shared:
            from ppcls.serve.request_log import configure_log
            from ppcls.serve.workers import WorkerProcesses

            configure_log(arguments.log_format, arguments.access_log)
            port = bound.getsockname()[1]
            workers = WorkerProcesses(_serve_shared, (arguments, port), arguments.workers, arguments.timeout)
            workers.run(lambda: write_output(f"{served} by {arguments.workers} workers {end}"))
        else:
            _serve(
                arguments,
                sources,
                bound,
                worker,
                lambda engines: write_output(f"{served} by {engines} {end}"),
            )
    write_output("stopped: all requests were answered\n")


def _serve_shared(arguments: argparse.Namespace, port: int, on_ready: Callable[[], None]) -> int:
    """Serves the models in one of several processes, and returns the exit code of this process."""

    @command
    def serve_port(_: Arguments) -> None:
        from ppcls.serve.server import bind

        sources = _read_sources(arguments)
        with bind(arguments.host, port, shared=True) as bound, ThreadPoolExecutor(1, "model") as worker:
            _serve(arguments, sources, bound, worker, lambda _: on_ready())

    return serve_port(None)


def _check_files(arguments: argparse.Namespace) -> None:
    """Checks the files of API keys and certificates before any model is loaded."""
    from ppcls.serve.middleware import read_keys
    from ppcls.serve.server import TlsFiles

    keys = read_keys(arguments.api_key_file) if arguments.api_key_file else []
    folder: Path | None = arguments.models_folder
    if folder is not None and not (keys and folder.is_dir()):
        raise UserError(f"--models-folder {folder}: expected a folder, and --api-key-file to protect it")
    if folder is not None and arguments.workers > 1:
        raise UserError(
            f"--workers {arguments.workers}: expected 1 with --models-folder, because a request to load a "
            "model reaches only one worker"
        )
    if arguments.tls_cert:
        TlsFiles(arguments.tls_cert, arguments.tls_key).check()
    elif arguments.tls_key:
        raise UserError("--tls-key needs --tls-cert, the certificate of this key")


def _read_sources(arguments: argparse.Namespace) -> dict[str, ModelSource]:
    """Returns the models, keyed by name; an empty dict if ``--print-config`` printed a config."""
    sources: dict[str, ModelSource] = {}
    for text in arguments.model or [None]:
        named = _NAMED.fullmatch(text or "")
        name, path = named.groups() if named is not None and not Path(text).exists() else (None, text)
        source = read_source(argparse.Namespace(**{**vars(arguments), "model": path}))
        if source is None:
            return {}
        name = name or source.description.Global.model_name
        if name in sources:
            raise UserError(f"--model: two models are named {name}; give each a name: --model NAME=PATH")
        sources[name] = source
    return sources


def _serve(
    arguments: argparse.Namespace,
    sources: dict[str, ModelSource],
    bound: socket.socket,
    worker: ThreadPoolExecutor,
    on_ready: Callable[[str], None],
) -> None:
    """Serves on a socket, and calls ``on_ready`` with the names of the inference engines."""
    from ppcls.serve.app import build_app
    from ppcls.serve.limits import RequestLimits
    from ppcls.serve.middleware import AllowedHosts, ApiKeys, read_keys
    from ppcls.serve.models import ServedModels
    from ppcls.serve.request_log import RequestLog, configure_log
    from ppcls.serve.server import TlsFiles, run
    from ppcls.serve.service import BatchingOptions, load

    batching = BatchingOptions(arguments.max_batch, arguments.max_wait / 1000, arguments.max_waiting)
    limits = RequestLimits(int(arguments.max_mib * _MIB), arguments.max_images, arguments.timeout)
    predictors = {
        name: worker.submit(load, source, batching.max_batch).result() for name, source in sources.items()
    }
    index = _load_index(arguments, next(iter(predictors.values())), worker)
    models = ServedModels(predictors, worker, batching, arguments.models_folder)
    app: ASGIApp = build_app(models, limits, index)
    if arguments.api_key_file:
        app = ApiKeys(app, read_keys(arguments.api_key_file))
    hosts = ["localhost", socket.gethostname(), arguments.host, *arguments.allowed_hosts]
    app = RequestLog(AllowedHosts(app, hosts))
    configure_log(arguments.log_format, arguments.access_log)
    engines = ", ".join(dict.fromkeys(predictor.model.engine for predictor in predictors.values()))
    tls = TlsFiles(arguments.tls_cert, arguments.tls_key) if arguments.tls_cert else None
    run(app, bound, limits.timeout, arguments.max_connections, lambda: on_ready(engines), tls)


def _load_index(
    arguments: argparse.Namespace, predictor: Predictor, worker: ThreadPoolExecutor
) -> ImageIndex | None:
    """Returns the index of ``--index``, or None without this option."""
    if arguments.index is None:
        return None
    from ppcls.deploy.image_index import load_index

    if arguments.models_folder is not None:
        raise UserError(
            "--index: cannot be combined with --models-folder, which can replace the index's model"
        )
    if not predictor.embeds:
        raise UserError(f"--index: expected an embedding model, but {predictor.source.file} returns classes")
    index = load_index(arguments.index)
    worker.submit(index.check_model, predictor).result()
    return index
