"""HTTP endpoints: two pages, /predict, /explain, /search, /models, /live, /ready, /health and /metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import anyio
import numpy as np
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from ppcls.deploy.image_index import ImageIndex
from ppcls.errors import UserError
from ppcls.postprocess.results import Classification, Embedding, NearestImages, Prediction
from ppcls.serve.limits import AdmissionLimit, BusyError, RequestError, RequestLimits
from ppcls.serve.middleware import EscapedJSONResponse, RejectAmbiguousLength, error_response
from ppcls.serve.models import ServedModels
from ppcls.serve.pools import TimedPool
from ppcls.serve.service import InferenceService
from ppcls.serve.uploads import read_images
from ppcls.version import __version__

_MAX_BODIES = 16  # memory for the bodies of all requests, as a multiple of the largest body
_THREADS = 2  # that search an index and encode heat maps
_CLIENT_GONE = 499  # nginx's status for a client that closed its connection; the log and the metrics show it
Answer = Callable[[], Awaitable[Response]]
_FILE = {"type": "string", "format": "binary"}
_MODEL = {"name": "model", "in": "query", "schema": {"type": "string"}, "required": False}
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {"schema": {"type": "object", "additionalProperties": _FILE}},
            "image/*": {"schema": _FILE},
        },
    },
    "parameters": [
        {"name": "topk", "in": "query", "schema": {"type": "integer", "minimum": 1}, "required": False},
        _MODEL,
    ],
}
_NEAREST = {"name": "nearest", "in": "query", "schema": {"type": "integer", "minimum": 1}, "required": False}
_CLASS_ID = {"name": "class_id", "in": "query", "schema": {"type": "integer", "minimum": 0}, "required": True}
_EXPLAIN_BODY = {"requestBody": _BODY["requestBody"], "parameters": [_CLASS_ID, _MODEL]}
_SEARCH_BODY = {"requestBody": _BODY["requestBody"], "parameters": [_NEAREST]}
_ERRORS = {
    400: "the request contains no image, or the form or a parameter is invalid",
    401: "the API key is missing or invalid",
    404: "the model does not exist",
    408: "the body was not received within the time limit",
    413: "the request is too large, or contains too many images",
    415: "the content type is not supported",
    422: "images cannot be decoded (the response lists them), or topk exceeds the number of classes",
    503: "the server is busy; try again later",
    504: "the request was not answered within the time limit",
}
_NO_MODELS: dict[int | str, dict[str, Any]] = {
    403: {"description": "the server was started without --models-folder"},
    404: {"description": "the model does not exist"},
    409: {"description": "the last model cannot be unloaded"},
    422: {"description": "the model cannot be loaded"},
}
# The pages load nothing from other servers. With this policy, browsers enforce that.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def build_app(models: ServedModels, limits: RequestLimits, index: ImageIndex | None = None) -> FastAPI:
    """Returns the ASGI application of the server.

    Args:
        models: Models, which are started and stopped together with the application.
        limits: Limits of each request.
        index: Index that /search searches with embeddings of the first model; None for a server without
            /search.
    """

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        # for `asyncio.to_thread`, which would start threads when requests need them, see `TimedPool`
        asyncio.get_running_loop().set_default_executor(TimedPool(_THREADS, "answer"))
        models.start()
        yield
        await models.stop()

    # FastAPI's own documentation pages load scripts from other servers.
    app = FastAPI(
        title="ppcls",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        default_response_class=EscapedJSONResponse,
    )
    app.add_middleware(RejectAmbiguousLength)
    bodies = AdmissionLimit(_MAX_BODIES * limits.max_bytes, "bytes")
    responses: dict[int | str, dict[str, Any]] = {
        status: {"description": text} for status, text in _ERRORS.items()
    }

    async def measure(answer: Answer) -> Response:
        start = time.perf_counter()
        status = 500
        try:
            response = await _respond(answer, limits.timeout)
            status = response.status_code
            return response
        finally:
            models.metrics.requests.labels(status).inc()
            models.metrics.seconds.observe(time.perf_counter() - start)

    @app.post("/predict", responses=responses, openapi_extra=_BODY)
    async def predict(request: Request) -> Response:
        """Returns the `topk` classes with the highest scores, or the embedding, of each image."""

        async def answer() -> Response:
            service = models.find(request.query_params.get("model"))
            topk = _read_topk(request.query_params.getlist("topk"), service)
            return _results(service, await _predict(request, service, limits, bodies, topk))

        return await measure(answer)

    @app.post("/explain", responses=responses, openapi_extra=_EXPLAIN_BODY)
    async def explain(request: Request) -> Response:
        """Returns the image with a heat map of the pixels that support the class `class_id`, as PNG."""

        async def answer() -> Response:
            service = models.find(request.query_params.get("model"))
            class_id = _read_class(request.query_params.getlist("class_id"), service)
            with ExitStack() as held:
                images = await _read(request, limits, bodies, held)
                if len(images) > 1:
                    raise RequestError(400, f"expected one image, got {len(images)}")
                with anyio.fail_after(limits.timeout):
                    return Response(
                        await service.explain(images[0], class_id, _client(request)), media_type="image/png"
                    )

        return await measure(answer)

    if index is not None:

        @app.post("/search", responses=responses, openapi_extra=_SEARCH_BODY)
        async def search(request: Request) -> Response:
            """Returns, for each image, the `nearest` most similar images in the index, by default 5."""

            async def answer() -> Response:
                service = models.find(None)
                count = _read_count("nearest", request.query_params.getlist("nearest")) or 5
                results = await _predict(request, service, limits, bodies)
                queries = np.stack([item.vector for item in results if isinstance(item, Embedding)])
                return _results(service, await asyncio.to_thread(index.nearest, queries, count))

            return await measure(answer)

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def page() -> Response:
        return _page("index.html")

    @app.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    async def documentation() -> Response:
        return _page("docs.html")

    @app.get("/live")
    async def live() -> dict[str, str]:
        """Responds with status 200 while the process runs."""
        return {"status": "ok"}

    @app.get("/ready", responses={503: {"description": "the server does not accept requests"}})
    async def ready() -> Response:
        """Responds with status 200 if the server accepts requests, otherwise with status 503."""
        return (
            EscapedJSONResponse({"status": "ok"})
            if models.ready
            else error_response(503, "the server does not accept requests yet, or is shutting down")
        )

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Returns a description of the first model and the limits of a request."""
        return {
            "status": "ok",
            **_describe(models.find(None)),
            "max_bytes": limits.max_bytes,
            "max_images": limits.max_images,
            "timeout": limits.timeout,
        }

    @app.get("/models")
    async def list_models() -> dict[str, Any]:
        """Returns descriptions of all loaded models."""
        return {"models": [{"name": name, **_describe(item)} for name, item in models.services.items()]}

    @app.put("/models/{name}", responses=_NO_MODELS)
    async def load_model(name: str) -> dict[str, Any]:
        """Loads or replaces the model in the subfolder `name` of --models-folder."""
        return {"name": name, **_describe(await models.load(name))}

    @app.delete("/models/{name}", responses=_NO_MODELS)
    async def unload_model(name: str) -> dict[str, Any]:
        """Unloads a model after all its accepted requests are answered."""
        await models.unload(name)
        return {"status": "ok"}

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Returns metrics in the text format of Prometheus."""
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return Response(models.metrics.as_text(), media_type=kind)

    @app.exception_handler(HTTPException)
    async def report_httperror_response(_request: Request, error: HTTPException) -> Response:
        response = error_response(error.status_code, str(error.detail))
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(RequestError)
    async def report_request_error(_request: Request, error: RequestError) -> Response:
        return error_response(error.status, error.reason, error.images)

    @app.exception_handler(MemoryError)  # for example of a model that is loaded
    async def report_memory_error(_request: Request, _failure: MemoryError) -> Response:
        return _no_memory()

    @app.exception_handler(Exception)
    async def report_failure(_request: Request, _failure: Exception) -> Response:
        # uvicorn closes the connection, because the error is raised again for the log.
        close = {"Connection": "close"}
        return error_response(500, "internal error; see the log of the server", headers=close)

    return app


def _no_memory() -> Response:
    return error_response(
        503, "the server has not enough memory for the request; try again later", headers={"Retry-After": "1"}
    )


async def _respond(answer: Answer, timeout: float) -> Response:
    try:
        return await answer()
    except RequestError as error:
        return error_response(error.status, error.reason, error.images)
    except BusyError as error:
        return error_response(503, str(error), headers={"Retry-After": "1"})
    except MemoryError:
        return _no_memory()
    except TimeoutError:
        return error_response(504, f"the request was not answered within {timeout:g} s")
    except UserError as error:
        return error_response(500, str(error))
    except ClientDisconnect:
        return Response(status_code=_CLIENT_GONE)


async def _predict(
    request: Request,
    service: InferenceService,
    limits: RequestLimits,
    bodies: AdmissionLimit,
    topk: int | None = None,
) -> list[Prediction]:
    with ExitStack() as held:
        images = await _read(request, limits, bodies, held)
        with anyio.fail_after(limits.timeout):
            return await service.predict(images, topk, _client(request))


async def _read(
    request: Request, limits: RequestLimits, bodies: AdmissionLimit, held: ExitStack
) -> list[bytes]:
    """Returns the images of a request. Their memory is reserved until ``held`` is closed."""

    def acquire(count: int) -> None:
        held.enter_context(bodies.acquire(count, _client(request)))

    return await read_images(request.headers, request.stream(), limits, acquire)


def _client(request: Request) -> str:
    """Returns the address of the client."""
    return request.client.host if request.client is not None else ""


def _results(service: InferenceService, answers: Sequence[Prediction | NearestImages]) -> Response:
    model = service.predictor.description.Global.model_name
    return EscapedJSONResponse({"model": model, "results": [_as_json(answer) for answer in answers]})


def _read_count(name: str, values: list[str]) -> int | None:
    """Returns the value of a parameter that is an integer > 0; None if it is not set."""
    if not values:
        return None
    (text, *more) = values
    if more or not (text.isascii() and text.isdecimal()) or len(text) > 6 or int(text) == 0:
        raise RequestError(400, f"{name}: expected one integer > 0, got {', '.join(values)[:80]!r}")
    return int(text)


def _read_topk(values: list[str], service: InferenceService) -> int | None:
    """Returns the value of the parameter ``topk``; None if it is not set."""
    topk = _read_count("topk", values)
    if topk is None:
        return None
    if service.predictor.embeds:
        raise RequestError(400, "topk: expected no value, because this model returns embeddings, not classes")
    classes = service.predictor.description.width
    if topk > classes:
        raise RequestError(422, f"topk: expected at most {classes}, the number of classes, got {topk}")
    return topk


def _read_class(values: list[str], service: InferenceService) -> int:
    """Returns the value of the parameter ``class_id`` for a heat map."""
    if not service.explains:
        raise RequestError(
            422, "this model does not support heat maps; serve a checkpoint of a classifier instead"
        )
    (text, *more) = values or ("",)
    classes = service.predictor.description.width
    if more or not (text.isascii() and text.isdecimal()) or len(text) > 6 or int(text) >= classes:
        raise RequestError(400, f"class_id: expected one integer from 0 to {classes - 1}, got {text[:80]!r}")
    return int(text)


def _as_json(answer: Prediction | NearestImages) -> dict[str, Any]:
    if not isinstance(answer, Classification):
        tree = answer.as_tree()
        if isinstance(answer, NearestImages):  # file names may contain invalid UTF-8
            tree["nearest"] = [name.encode("utf-8", "backslashreplace").decode() for name in tree["nearest"]]
        return tree
    names = answer.names or (None,) * len(answer.class_ids)
    rows = zip(answer.class_ids, names, answer.scores, strict=True)
    predictions = [{"class_id": index, "name": name, "score": score} for index, name, score in rows]
    unknown: dict[str, Any] = {}
    if answer.unknown is not None:
        unknown = {"unknown": answer.unknown, "known_score": answer.known_score}
    return {"predictions": predictions, **unknown}


def _describe(service: InferenceService) -> dict[str, Any]:
    description = service.predictor.description
    embeds = service.predictor.embeds
    return {
        "model": description.Global.model_name,
        "embedding_size" if embeds else "classes": description.width if description.width > 0 else None,
        "heat_maps": service.explains,
    }


def _page(name: str) -> Response:
    headers = {"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff"}
    return HTMLResponse(_read_page(name), headers=headers)


@cache
def _read_page(name: str) -> str:
    return Path(__file__).with_name("page").joinpath(name).read_text(encoding="utf-8")
