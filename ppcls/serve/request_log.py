"""Identifiers of requests, and the server's log in text or JSON format."""

from __future__ import annotations

import io
import json
import logging
import os
import queue
import re
import select
import sys
import threading
import time
import uuid
from contextlib import suppress
from contextvars import ContextVar
from datetime import datetime, timezone
from typing import Any, Literal, TextIO

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ppcls.files import escape_controls
from ppcls.runtime.native_errors import wrap_native_lines

LogFormat = Literal["text", "json"]
_HEADER = "X-Request-ID"
_VALID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
_MAX_LINES = 10_000  # maximum number of lines that wait for the reader of standard error
_CLOSE_SECONDS = 1.0  # a reader that has stopped must not keep the server from ending
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


class TextFormatter(logging.Formatter):
    """Formats a line of the log as text, with the identifier of the request."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line, without characters that control a terminal."""
        text = f"{record.levelname}: {super().format(record)}"
        identifier = _request_id.get()
        line = text if identifier is None else f"{text} [request {identifier}]"
        return escape_controls(line)  # a header of a client, such as X-Forwarded-For, can contain any byte


def json_record(seconds: float, level: str, message: str) -> dict[str, Any]:
    """Returns the fields that each line of a log in JSON has.

    Args:
        seconds: Time in seconds since 1970.
        level: Level of the line, such as ``warning``.
        message: Text.
    """
    time_of = datetime.fromtimestamp(seconds, timezone.utc)
    return {
        "time": time_of.isoformat(timespec="milliseconds"),
        "level": level,
        "message": message,
        "request_id": _request_id.get(),
    }


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        tree = json_record(record.created, record.levelname.lower(), record.getMessage())
        tree.update(getattr(record, "fields", {}))
        if record.exc_info:
            tree["exception"] = self.formatException(record.exc_info)
        return json.dumps(tree)


def write_if_possible(text: str) -> None:
    """Writes text to standard error, or drops it if nobody reads the pipe behind standard error."""
    descriptor = _descriptor(sys.stderr)
    if descriptor is None:
        sys.stderr.write(escape_controls(text))
        return
    _, writable, _ = select.select([], [descriptor], [], 0)
    if writable:
        _write(descriptor, escape_controls(text).encode("utf-8", "backslashreplace")[: select.PIPE_BUF])


class BackgroundHandler(logging.Handler):
    """Writes log lines to standard error from a thread, so that the server never waits for their reader.

    Lines are dropped while many of them wait. A pipe that nobody reads would otherwise stop the event loop.

    Args:
        formatter: Formatter of the lines. It is called in the thread that logs.
    """

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._stream = sys.stderr
        self._lines: queue.Queue[str | None] = queue.Queue(_MAX_LINES)
        self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queues a line, or drops it if too many lines wait."""
        with suppress(queue.Full):
            self._lines.put_nowait(self.format(record) + "\n")

    def close(self) -> None:
        """Waits until all lines are written, but at most a second for a reader that does not read."""
        with suppress(queue.Full):
            self._lines.put_nowait(None)
        self._thread.join(_CLOSE_SECONDS)
        super().close()

    def _write_all(self) -> None:
        while (line := self._lines.get()) is not None:
            descriptor = _descriptor(self._stream)
            if descriptor is None:
                self._stream.write(line)
            else:
                # Not through the stream, whose lock Python needs at its end, when this thread may still wait.
                _write(descriptor, line.encode(self._stream.encoding, "backslashreplace"))


def _descriptor(stream: TextIO) -> int | None:
    """Returns the file descriptor of a stream, or None for a stream without one, as in tests."""
    try:
        return stream.fileno()
    except (AttributeError, OSError, ValueError):  # io.UnsupportedOperation is both of the latter
        return None


def _write(descriptor: int, data: bytes) -> None:
    """Writes data. Drops it if that fails, because no place is left to report it."""
    with suppress(OSError):
        while data:
            data = data[os.write(descriptor, data) :]


def configure_log(kind: LogFormat, requests: bool) -> None:
    """Configures logging to standard error: warnings, errors and, if ``requests``, one line per request.

    Args:
        kind: Format of the lines.
        requests: Whether to log each request.
    """
    is_json = kind == "json"
    handler = BackgroundHandler(_JsonFormatter() if is_json else TextFormatter())
    names = ["uvicorn", "ppcls.serve", "asyncio"]
    if is_json:
        logging.captureWarnings(True)
        names.append("py.warnings")
    for name in names:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
    _ACCESS.setLevel(logging.INFO if requests else logging.WARNING)


class LoggedStream(io.TextIOBase):
    """Replaces standard error, and logs the text that Python writes to it, such as errors and tracebacks."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._incomplete = ""

    def fileno(self) -> int:
        """Returns the file descriptor of standard error."""
        return self._descriptor

    def writable(self) -> bool:
        """Returns True."""
        return True

    def write(self, text: str) -> int:
        """Logs text when its last line is complete."""
        self._incomplete += text
        if self._incomplete.endswith("\n"):
            message = self._incomplete.rstrip()
            self._incomplete = ""
            level = logging.ERROR if message.startswith(("error:", "Traceback ")) else logging.WARNING
            if message:
                logging.getLogger("ppcls.serve").log(level, "%s", message)
        return len(text)


def log_everything_as_json(requests: bool) -> None:
    """Makes each line that this process writes to standard error from now on a JSON object.

    Args:
        requests: Whether to log each request.
    """
    wrap_native_lines()
    configure_log("json", requests)
    descriptor = _descriptor(sys.stderr)
    if descriptor is not None:  # None in tests
        sys.stderr = LoggedStream(descriptor)
