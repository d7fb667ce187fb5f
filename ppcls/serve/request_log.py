"""Identifiers of requests, and the server's log in text or JSON format."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
import uuid
from contextvars import ContextVar
from datetime import datetime, timezone
from typing import Any, Literal

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LogFormat = Literal["text", "json"]
_HEADER = "X-Request-ID"
_VALID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
_ACCESS = logging.getLogger("ppcls.serve.access")


class RequestLog:
    """Assigns an identifier to each request, returns it as header ``X-Request-ID``, and logs the request.

    An identifier that the client sends in this header is used if it consists of 1 to 64 letters, digits,
    dots, dashes and underscores.

    Args:
        app: Application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request to the application, and logs it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        requested = Headers(scope=scope).get(_HEADER, "")
        identifier = requested if _VALID.fullmatch(requested) else uuid.uuid4().hex
        _request_id.set(identifier)  # each request has its own task, and so its own context
        start = time.perf_counter()
        status = 500

        async def send_with_identifier(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[_HEADER] = identifier
            await send(message)

        try:
            await self._app(scope, receive, send_with_identifier)
        finally:
            # The path remains percent-encoded, so that it cannot contain line breaks.
            path = scope.get("raw_path", b"").decode("ascii", "backslashreplace")
            client = scope["client"][0] if scope.get("client") else ""
            seconds = round(time.perf_counter() - start, 4)
            fields = {
                "method": scope["method"],
                "path": path,
                "status": status,
                "seconds": seconds,
                "client": client,
            }
            text = "%(method)s %(path)s: %(status)s in %(seconds)s s for %(client)s"
            _ACCESS.info(text, fields, extra={"fields": fields})


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = f"{record.levelname}: {super().format(record)}"
        identifier = _request_id.get()
        return text if identifier is None else f"{text} [request {identifier}]"


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time_of = datetime.fromtimestamp(record.created, timezone.utc)
        tree: dict[str, Any] = {
            "time": time_of.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            "request_id": _request_id.get(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            tree["exception"] = self.formatException(record.exc_info)
        return json.dumps(tree)


def configure_log(kind: LogFormat, requests: bool) -> None:
    """Configures logging to standard error: warnings, errors and, if ``requests``, one line per request.

    Args:
        kind: Format of the lines.
        requests: Whether to log each request.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if kind == "json" else _TextFormatter())
    for name in ("uvicorn", "ppcls.serve", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
    _ACCESS.setLevel(logging.INFO if requests else logging.WARNING)
