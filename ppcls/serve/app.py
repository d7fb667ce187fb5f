"""The server's addresses: /predict, the page that asks it, /health and /metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from ppcls import __version__
from ppcls.deploy.results import Answer, Embedding
from ppcls.errors import UserError
from ppcls.serve.room import BusyError, Room, Share
from ppcls.serve.service import Service
from ppcls.serve.uploads import Limits, RefusedError, read_images

_BODIES = 16  # times the largest body that all requests together may hold in memory
_CLIENT_GONE = 499  # nobody reads it
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {"type": "object", "additionalProperties": {"type": "string", "format": "binary"}}
            },
            "image/*": {"schema": {"type": "string", "format": "binary"}},
        },
    },
    "parameters": [
        {"name": "topk", "in": "query", "schema": {"type": "integer", "minimum": 1}, "required": False}
    ],
}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    400: {"description": "there is no image, or the form or topk can't be read"},
    408: {"description": "the body did not arrive in time"},
    413: {"description": "larger, or more images, than is taken"},
    415: {"description": "another type of body"},
    422: {"description": "no images that the model takes; each is named with the reason"},
    503: {"description": "too busy; try again"},
    504: {"description": "no answer in time"},
}
# Nothing is fetched from elsewhere: the browser is told so as well.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def build_app(service: Service, limits: Limits) -> FastAPI:
    """Returns the server's application.

    Args:
        service: Predicts; begins and ends with the application.
        limits: Of each request.
    """

    @asynccontextmanager
    async def running(_app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await service.stop()

    # FastAPI's pages of documentation fetch their scripts from elsewhere; /openapi.json needs nothing.
    app = FastAPI(title="ppcls", version=__version__, docs_url=None, redoc_url=None, lifespan=running)
    bodies = Room(_BODIES * limits.max_bytes, "bytes")

    @app.post("/predict", responses=_RESPONSES, openapi_extra=_BODY)
    async def predict(request: Request) -> Response:
        """Classes of the images of a request, the best first, `topk` of each; or their embeddings."""
        began, status = time.perf_counter(), int(HTTPStatus.INTERNAL_SERVER_ERROR)
        try:
            response = await _respond(request, service, limits, bodies)
            status = response.status_code
            return response
        finally:
            service.figures.requests.labels(status).inc()
            service.figures.seconds.observe(time.perf_counter() - began)

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def page() -> Response:
        return HTMLResponse(
            _page(), headers={"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff"}
        )

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """The model, and what a request may bring."""
        description, embeds = service.predictor.description, service.predictor.embeds
        width = description.width if description.width > 0 else None
        return {
            "status": "ok",
            "model": description.Global.model_name,
            "embedding_size" if embeds else "classes": width,
            "max_bytes": limits.max_bytes,
            "max_images": limits.max_images,
            "timeout": limits.timeout,
        }

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Counters, for Prometheus."""
        return Response(service.figures.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.exception_handler(HTTPException)
    async def refuse(_request: Request, error: HTTPException) -> Response:
        response = _refusal(error.status_code, str(error.detail))
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(Exception)
    async def fail(_request: Request, _error: Exception) -> Response:
        return _refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "the server failed; its log says where")

    return app


async def _respond(request: Request, service: Service, limits: Limits, bodies: Room) -> Response:
    try:
        return JSONResponse(await _answer(request, service, limits, bodies))
    except RefusedError as error:
        return _refusal(error.status, error.reason, error.images)
    except BusyError as error:
        refusal = _refusal(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        refusal.headers["Retry-After"] = "1"
        return refusal
    except asyncio.TimeoutError:
        return _refusal(HTTPStatus.GATEWAY_TIMEOUT, f"no answer within {limits.timeout:g} s")
    except UserError as error:
        return _refusal(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
    except ClientDisconnect:
        return Response(status_code=_CLIENT_GONE)


async def _answer(request: Request, service: Service, limits: Limits, bodies: Room) -> dict[str, Any]:
    topk = _topk(request.query_params.getlist("topk"))
    if topk is not None and service.predictor.embeds:
        raise RefusedError(400, "topk: the model gives embeddings, no classes")
    with Share(bodies) as share:
        images = await read_images(request.headers, request.stream(), limits, share)
        answers = await asyncio.wait_for(service.predict(images), limits.timeout)
    return {
        "model": service.predictor.description.Global.model_name,
        "results": [_told(each, topk) for each in answers],
    }


def _topk(given: list[str]) -> int | None:
    if not given:
        return None
    (text, *more) = given
    if more or not (text.isascii() and text.isdecimal()) or len(text) > 6 or int(text) == 0:
        raise RefusedError(400, f"topk: expected one whole number > 0, got {', '.join(given)[:80]!r}")
    return int(text)


def _told(answer: Answer, topk: int | None) -> dict[str, Any]:
    if isinstance(answer, Embedding):
        return answer.as_tree()
    names = answer.names or (None,) * len(answer.class_ids)
    rows = list(zip(answer.class_ids, names, answer.scores, strict=True))[:topk]
    return {
        "predictions": [
            {"class_id": class_id, "name": name, "score": score} for class_id, name, score in rows
        ]
    }


def _refusal(status: int, reason: str, images: dict[int, str] | None = None) -> Response:
    told: dict[str, Any] = {"error": reason}
    if images:
        told["images"] = [{"image": at, "reason": why} for at, why in images.items()]
    return JSONResponse(told, status_code=status)


@cache
def _page() -> str:
    return Path(__file__).with_name("page").joinpath("index.html").read_text(encoding="utf-8")
