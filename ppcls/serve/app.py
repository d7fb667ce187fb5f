"""The HTTP endpoints: /predict, its web page, /live, /ready, /health and /metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import ExitStack, asynccontextmanager
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from ppcls.deploy.results import Embedding, Prediction
from ppcls.errors import UserError
from ppcls.serve.limits import AdmissionLimit, BusyError, RequestError, RequestLimits
from ppcls.serve.service import InferenceService
from ppcls.serve.uploads import read_images
from ppcls.version import __version__

_MAX_BODIES = 16  # largest bodies that all requests together may hold in memory
_CLIENT_GONE = 499
_FILE = {"type": "string", "format": "binary"}
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {"schema": {"type": "object", "additionalProperties": _FILE}},
            "image/*": {"schema": _FILE},
        },
    },
    "parameters": [
        {"name": "topk", "in": "query", "schema": {"type": "integer", "minimum": 1}, "required": False}
    ],
}
_ERRORS = {
    400: "the request has no image, or the form or topk is invalid",
    408: "the body did not arrive in time",
    413: "the request is too large, or has too many images",
    415: "the content type is not supported",
    422: "images cannot be decoded (each is listed with the reason), or topk exceeds the number of classes",
    503: "the server is busy; try again",
    504: "there was no answer in time",
}
# The page loads nothing from elsewhere, and this policy makes the browser enforce it.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def build_app(service: InferenceService, limits: RequestLimits) -> FastAPI:
    """Returns the application of the server.

    Args:
        service: The model. It starts and stops with the application.
        limits: Limits of each request.
    """

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await service.stop()

    # FastAPI's documentation pages load scripts from elsewhere. /openapi.json does not need them.
    app = FastAPI(title="ppcls", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.add_middleware(_RejectAmbiguousLength)
    bodies = AdmissionLimit(_MAX_BODIES * limits.max_bytes, "bytes")
    responses: dict[int | str, dict[str, Any]] = {
        status: {"description": text} for status, text in _ERRORS.items()
    }

    @app.post("/predict", responses=responses, openapi_extra=_BODY)
    async def predict(request: Request) -> Response:
        """Returns the best `topk` classes of each image in the request, or its embedding."""
        start, status = time.perf_counter(), 500
        try:
            response = await _respond(request, service, limits, bodies)
            status = response.status_code
            return response
        finally:
            service.metrics.requests.labels(status).inc()
            service.metrics.seconds.observe(time.perf_counter() - start)

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def page() -> Response:
        headers = {"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff"}
        return HTMLResponse(_read_page(), headers=headers)

    @app.get("/live")
    async def live() -> dict[str, str]:
        """Answers as long as the process works."""
        return {"status": "ok"}

    @app.get("/ready", responses={503: {"description": "requests are not answered"}})
    async def ready() -> Response:
        """Returns 200 if requests are answered, otherwise 503."""
        return JSONResponse({"status": "ok"}) if service.ready else _error(503, "the service is not running")

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Describes the model and the limits of a request."""
        description, embeds = service.predictor.description, service.predictor.embeds
        return {
            "status": "ok",
            "model": description.Global.model_name,
            "embedding_size" if embeds else "classes": description.width if description.width > 0 else None,
            "max_bytes": limits.max_bytes,
            "max_images": limits.max_images,
            "timeout": limits.timeout,
        }

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Returns metrics for Prometheus."""
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return Response(service.metrics.as_text(), media_type=kind)

    @app.exception_handler(HTTPException)
    async def report_http_error(_request: Request, error: HTTPException) -> Response:
        response = _error(error.status_code, str(error.detail))
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(Exception)
    async def report_failure(_request: Request, _failure: Exception) -> Response:
        return _error(500, "the server failed; see its log")

    return app


class _RejectAmbiguousLength:
    """Rejects requests with Content-Length and Transfer-Encoding, and closes their connection.

    Proxies disagree on where such a request ends, so attackers use it to smuggle a second one (RFC 9112).
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        names = {name for name, _ in scope.get("headers", ())}
        app = self._app
        if {b"content-length", b"transfer-encoding"} <= names:
            reason = "expected either Content-Length or Transfer-Encoding, got both"
            app = _error(400, reason, headers={"Connection": "close"})
        await app(scope, receive, send)


class AllowedHosts:
    """Rejects requests to names that are not this server's, so that no web page can reach it under its name.

    In such an attack (DNS rebinding), the page's own name resolves to the server's address. Addresses as
    names are always allowed, because they resolve to nothing else.

    Args:
        app: The application.
        names: Names of the server; ``*`` allows any.
    """

    def __init__(self, app: ASGIApp, names: Iterable[str]) -> None:
        self._app, self._names = app, {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or answers 400."""
        app = self._app
        if scope["type"] == "http" and not self._allows(Headers(scope=scope).get("host", "")):
            reason = "the host of the request is not a name of this server; add it with --allowed-hosts"
            app = _error(400, reason, headers={"Connection": "close"})
        await app(scope, receive, send)

    def _allows(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if not host or name in self._names or "*" in self._names:
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return True


async def _respond(
    request: Request, service: InferenceService, limits: RequestLimits, bodies: AdmissionLimit
) -> Response:
    try:
        return JSONResponse(await _predict(request, service, limits, bodies))
    except RequestError as error:
        return _error(error.status, error.reason, error.images)
    except BusyError as error:
        return _error(503, str(error), headers={"Retry-After": "1"})
    except asyncio.TimeoutError:
        return _error(504, f"no answer within {limits.timeout:g} s")
    except UserError as error:
        return _error(500, str(error))
    except ClientDisconnect:
        return Response(status_code=_CLIENT_GONE)


async def _predict(
    request: Request, service: InferenceService, limits: RequestLimits, bodies: AdmissionLimit
) -> dict[str, Any]:
    topk = _read_topk(request.query_params.getlist("topk"), service)
    with ExitStack() as held:

        def acquire(count: int) -> None:
            held.enter_context(bodies.acquire(count))

        images = await read_images(request.headers, request.stream(), limits, acquire)
        answers = await asyncio.wait_for(service.predict(images, topk), limits.timeout)
    return {
        "model": service.predictor.description.Global.model_name,
        "results": [_as_json(answer) for answer in answers],
    }


def _read_topk(values: list[str], service: InferenceService) -> int | None:
    """Returns the parameter ``topk``, or None if it is not set."""
    if not values:
        return None
    (text, *more) = values
    if more or not (text.isascii() and text.isdecimal()) or len(text) > 6 or int(text) == 0:
        raise RequestError(400, f"topk: expected one integer > 0, got {', '.join(values)[:80]!r}")
    if service.predictor.embeds:
        raise RequestError(400, "topk: this model returns embeddings, not classes")
    classes = service.predictor.description.width
    if int(text) > classes:
        raise RequestError(422, f"topk: expected at most {classes}, the number of classes, got {text}")
    return int(text)


def _as_json(answer: Prediction) -> dict[str, Any]:
    if isinstance(answer, Embedding):
        return answer.as_tree()
    names = answer.names or (None,) * len(answer.class_ids)
    rows = zip(answer.class_ids, names, answer.scores, strict=True)
    return {"predictions": [{"class_id": index, "name": name, "score": score} for index, name, score in rows]}


def _error(
    status: int,
    reason: str,
    images: dict[int, str] | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    tree: dict[str, Any] = {"error": reason}
    if images:
        tree["images"] = [{"image": index, "reason": text} for index, text in images.items()]
    return JSONResponse(tree, status_code=status, headers=headers)


@cache
def _read_page() -> str:
    return Path(__file__).with_name("page").joinpath("index.html").read_text(encoding="utf-8")
