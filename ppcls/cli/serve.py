"""The command ``ppcls serve``, and its script in tools/."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from ppcls.cli.arguments.options import Exclusive, option
from ppcls.cli.command import command, exit_code, write_status
from ppcls.cli.infer import read_source
from ppcls.cli.shared_options import ConfigOptions, Device, device_option, trust_option
from ppcls.cli.short_options import model_overrides
from ppcls.errors import UserError, counted

if TYPE_CHECKING:  # not needed for --help; some are parts of optional packages
    from starlette.types import ASGIApp

    from ppcls.deploy.image_index import ImageIndex
    from ppcls.deploy.models.source import ModelSource
    from ppcls.deploy.predictor import Predictor
    from ppcls.serve.pools import TimedPool

_MIB = 1 << 20
_NAMED = re.compile(r"([A-Za-z0-9][\w.-]*)=(.+)")  # NAME=PATH
_SOURCE = Exclusive(required=True)


@dataclass(frozen=True, kw_only=True)
class ServeOptions(ConfigOptions):
    """Serve models over HTTP.

    Open / in a browser to try a model, and /docs for the API: POST /predict, /explain and /search, and GET
    /models, /live, /ready, /health and /metrics.
    """

    examples: ClassVar[Sequence[str]] = (
        "ppcls serve --model runs/pets",
        "ppcls serve --model onnx/inference.onnx --host 0.0.0.0 --port 9000 --max-batch 32",
        "ppcls serve --model cats=runs/cats --model dogs=runs/dogs --api-key-file keys.txt",
    )

    config: str | None = option(None, "config file (YAML)", names=["-c"], exclusive=_SOURCE)
    model: tuple[str, ...] = option(
        (),
        "output folder of a run; checkpoint folder; folder, .onnx or .xml file written by ppcls export; or "
        "architecture with published weights. No config is needed. Repeat the option as --model NAME=PATH to "
        "serve several models; a request chooses one with ?model=NAME (default: the first one)",
        metavar="PATH",
        repeated=True,
        exclusive=_SOURCE,
    )
    host: str = option("127.0.0.1", "address to listen on; 0.0.0.0 for all networks")
    allowed_hosts: tuple[str, ...] = option(
        (),
        "host names by which clients may address this server, in addition to IP addresses, localhost and the "
        "name of this machine; * allows any name",
        metavar="NAME",
    )
    api_key_file: Path | None = option(
        None,
        "file of API keys, one per line; requests then need a key in the header 'Authorization: Bearer KEY' "
        "or 'X-API-Key: KEY'",
        metavar="FILE",
    )
    tls_cert: Path | None = option(None, "serve HTTPS with this certificate, in PEM format", metavar="FILE")
    tls_key: Path | None = option(
        None,
        "file with the private key of the certificate, in PEM format (default: the file of --tls-cert)",
        metavar="FILE",
    )
    models_folder: Path | None = option(
        None,
        "let clients load and unload the models in the subfolders of FOLDER, by PUT and DELETE /models/NAME; "
        "needs --api-key-file",
        metavar="FOLDER",
    )
    max_models: int | None = option(
        None,
        "maximum number of loaded models with --models-folder: if another model is loaded, the one that was "
        "not used for the longest time is unloaded, but never the first one (default: no limit)",
        ge=2,
    )
    index: Path | None = option(
        None,
        "index for POST /search, written by ppcls index build with the same model as the first --model",
        metavar="FOLDER",
    )
    verify: bool = option(
        False, "run the golden samples of each bundle first, and do not start if an output differs"
    )
    access_log: bool = option(False, "log one line per request")
    log_format: Literal["text", "json"] = option("text", "format of all lines that the server writes")
    port: int = option(8000, "port to listen on; 0 for any free port", ge=0, le=65_535)
    max_batch: int = option(16, "maximum number of images per batch", ge=1, le=4096)
    workers: int = option(
        1,
        "number of processes, each with its own copy of the models and its share of the CPU cores; each "
        "process applies the other limits separately",
        ge=1,
        le=256,
    )
    max_wait: float = option(
        5.0,
        "maximum time in milliseconds that an image waits for further images of its batch to be decoded",
        metavar="MS",
        ge=0,
        le=1000,
    )
    max_connections: int = option(
        512,
        "maximum number of connections, at most half of them from one address; further ones are closed",
        ge=1,
        le=100_000,
    )
    max_waiting: int = option(
        256,
        "maximum number of images that wait or are being predicted; further requests get status 503",
        ge=1,
        le=100_000,
    )
    max_images: int = option(
        32,
        "maximum number of images per request; larger requests get status 413",
        ge=1,
        le=10_000,
    )
    max_mib: float = option(
        32.0,
        "maximum size of a request in MiB; larger requests get status 413",
        metavar="MIB",
        ge=0.001,
        le=1024,
    )
    timeout: float = option(
        30.0,
        "time limit in seconds for receiving a request, and separately for answering it; late requests get "
        "status 408 or 504",
        metavar="S",
        ge=0.1,
        le=3600,
    )
    device: Device | None = device_option()
    trust: bool = trust_option()


@command("serve", ServeOptions)
def serve(options: ServeOptions) -> None:
    """Serves models over HTTP until Ctrl-C or SIGTERM."""
    if options.max_images > options.max_waiting:
        raise UserError(
            f"--max-images {options.max_images}: expected at most --max-waiting ({options.max_waiting}), "
            "because larger requests would always be rejected"
        )
    is_json = options.log_format == "json"
    if is_json:
        from ppcls.serve.request_log import log_everything_as_json

        log_everything_as_json(options.access_log)
    if not options.print_config:  # whose only output is the config
        _write_status(options, f"loading {', '.join(options.model) or options.config} ...")
    sources = _read_sources(options)
    if not sources:
        return
    if options.verify:
        _verify_bundles(options, sources)
    from ppcls.serve.pools import TimedPool
    from ppcls.serve.server import address_of, bind

    _check_files(options)
    shared = options.workers > 1
    with bind(options.host, options.port, shared) as bound, TimedPool(1, "model") as worker:
        address = address_of(bound, options.tls_cert is not None)
        served = f"{', '.join(sources)} {'is' if len(sources) == 1 else 'are'} served on {address}"
        end = "until Ctrl-C or SIGTERM"
        if shared:
            from ppcls.serve.request_log import configure_log
            from ppcls.serve.workers import WorkerProcesses

            if not is_json:
                configure_log("text", options.access_log)
            port = bound.getsockname()[1]
            workers = WorkerProcesses(_serve_shared, (options, port), options.workers, options.timeout)
            workers.run(
                lambda: _write_status(options, f"{served} by {counted(options.workers, 'worker')} {end}")
            )
        else:
            _serve(
                options,
                sources,
                bound,
                worker,
                lambda engines: _write_status(options, f"{served} by {engines} {end}"),
            )
    _write_status(options, "stopped: all requests were answered")


def _write_status(options: ServeOptions, text: str) -> None:
    """Writes a line to standard output, in the format of the log."""
    if options.log_format == "json":
        from ppcls.serve.request_log import json_record

        text = json.dumps(json_record(time.time(), "info", text))
    write_status(text)


def _serve_shared(options: ServeOptions, port: int, on_ready: Callable[[], None]) -> int:
    """Serves the models in one of several processes, and returns the exit code of this process."""

    def serve_port() -> None:
        from ppcls.serve.pools import TimedPool
        from ppcls.serve.server import bind

        if options.log_format == "json":
            from ppcls.serve.request_log import log_everything_as_json

            log_everything_as_json(options.access_log)
        sources = _read_sources(options)
        with bind(options.host, port, shared=True) as bound, TimedPool(1, "model") as worker:
            _serve(options, sources, bound, worker, lambda _: on_ready())

    return exit_code(serve_port)


def _check_files(options: ServeOptions) -> None:
    """Checks the files of API keys and certificates before any model is loaded."""
    from ppcls.serve.middleware import read_keys
    from ppcls.serve.server import TlsFiles

    keys = read_keys(options.api_key_file) if options.api_key_file else []
    folder = options.models_folder
    if folder is not None and not (keys and folder.is_dir()):
        raise UserError(f"--models-folder {folder}: expected a folder, and --api-key-file to protect it")
    if options.max_models is not None and folder is None:
        raise UserError("--max-models needs --models-folder, the folder of models that can be loaded")
    if options.max_models is not None and len(options.model) > options.max_models:
        raise UserError(
            f"--max-models {options.max_models}: expected at least {len(options.model)}, the number of "
            "models of --model"
        )
    if folder is not None and options.workers > 1:
        raise UserError(
            f"--workers {options.workers}: expected 1 with --models-folder, because a request to load a "
            "model reaches only one worker"
        )
    if options.tls_cert:
        TlsFiles(options.tls_cert, options.tls_key).check()
    elif options.tls_key:
        raise UserError("--tls-key needs --tls-cert, the certificate of this key")


def _read_sources(options: ServeOptions) -> dict[str, ModelSource]:
    """Returns the models, keyed by name; an empty dict if ``--print-config`` printed a config."""
    sources: dict[str, ModelSource] = {}
    overrides = model_overrides(options)
    for text in options.model or (None,):
        name = None
        path = text
        # A path that contains "=" is not a name and a path.
        if text is not None and not Path(text).exists() and (named := _NAMED.fullmatch(text)):
            name = named[1]
            path = named[2]
        source = read_source(options, path, overrides)
        if source is None:
            return {}
        name = name or source.description.Global.model_name
        if name in sources:
            raise UserError(f"--model: two models are named {name}; give each a name: --model NAME=PATH")
        sources[name] = source
    return sources


def _verify_bundles(options: ServeOptions, sources: Mapping[str, ModelSource]) -> None:
    """Runs the golden samples of the bundles.

    Raises:
        UserError: A model is no bundle, or a golden sample differs.
    """
    from ppcls.deploy.bundle.verify import verify_folder

    for name, source in sources.items():
        if source.folder is None:
            raise UserError(f"--verify: {name} is no bundle of ppcls export --format bundle")
        _write_status(options, f"{name}: {verify_folder(source.folder)}")


def _serve(
    options: ServeOptions,
    sources: dict[str, ModelSource],
    bound: socket.socket,
    worker: TimedPool,
    on_ready: Callable[[str], None],
) -> None:
    """Serves on a socket, and calls ``on_ready`` with the names of the inference engines."""
    from ppcls.runtime.hardware import read_driver
    from ppcls.serve.app import build_app
    from ppcls.serve.limits import RequestLimits
    from ppcls.serve.middleware import AllowedHosts, ApiKeys, NoSniffing, SameOrigin, read_keys
    from ppcls.serve.models import LoadableModels, ServedModels
    from ppcls.serve.pools import TimedPool
    from ppcls.serve.request_log import RequestLog, configure_log
    from ppcls.serve.server import TlsFiles, run
    from ppcls.serve.service import BatchingOptions, load

    batching = BatchingOptions(
        options.max_batch, options.max_wait / 1000, options.max_waiting, options.timeout
    )
    limits = RequestLimits(int(options.max_mib * _MIB), options.max_images, options.timeout)
    predictors = {
        name: worker.submit(load, source, batching.max_batch).result() for name, source in sources.items()
    }
    index = _load_index(options, next(iter(predictors.values())), worker)
    loadable = loader = None
    if options.models_folder is not None:
        loader = TimedPool(1, "loader") if read_driver() is None else None
        loadable = LoadableModels(options.models_folder, trust=options.trust, max_models=options.max_models)
    models = ServedModels(predictors, worker, batching, loadable, loader)
    app: ASGIApp = build_app(models, limits, index)
    if options.api_key_file:
        app = ApiKeys(app, read_keys(options.api_key_file))
    hosts = ["localhost", socket.gethostname(), options.host, *options.allowed_hosts]
    app = RequestLog(NoSniffing(AllowedHosts(SameOrigin(app), hosts)))
    if options.log_format == "text":
        configure_log("text", options.access_log)
    engines = ", ".join(dict.fromkeys(predictor.model.engine for predictor in predictors.values()))
    tls = TlsFiles(options.tls_cert, options.tls_key) if options.tls_cert else None
    run(app, bound, limits.timeout, options.max_connections, lambda: on_ready(engines), tls)


def _load_index(options: ServeOptions, predictor: Predictor, worker: TimedPool) -> ImageIndex | None:
    """Returns the index of ``--index``, or None without this option."""
    if options.index is None:
        return None
    from ppcls.deploy.index_folder import load_index

    if options.models_folder is not None:
        raise UserError(
            "--index: cannot be combined with --models-folder, which can replace the index's model"
        )
    if not predictor.embeds:
        raise UserError(f"--index: expected an embedding model, but {predictor.source.file} returns classes")
    index = load_index(options.index)
    worker.submit(index.check_model, predictor).result()
    return index
