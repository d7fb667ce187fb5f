"""The process of a server: its socket and its shutdown."""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial

import uvicorn
from starlette.types import ASGIApp

from ppcls.errors import UserError
from ppcls.serve.connections import LimitedProtocol, OpenConnections

_HEADER_TIMEOUT = 10.0  # seconds
_BACKLOG = 100  # connections that are accepted at once, before any of them can be closed
_JOIN_SECONDS = 3.0  # for threads to end after the last requests


def bind(host: str, port: int) -> socket.socket:
    """Returns a socket that is bound before the slow loading of the model.

    Args:
        host: Name or address.
        port: Port, or 0 for any free one.

    Raises:
        UserError: If the address is not available.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot serve on {host}:{port}: {reason}; set --host or --port") from None
    return bound


def address_of(bound: socket.socket) -> str:
    """Returns the address of a socket as browsers expect it."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(
    app: ASGIApp, bound: socket.socket, grace: float, max_connections: int, on_ready: Callable[[], None]
) -> None:
    """Serves until SIGTERM or Ctrl-C. It then accepts no more requests and answers the current ones.

    If threads of the application do not end, the process exits nevertheless.

    Args:
        app: The application.
        bound: The socket.
        grace: Seconds to answer the last requests.
        max_connections: Maximum number of connections; fewer if the process may open few files.
        on_ready: Called when the server accepts requests.
    """
    limit = max(1, min(max_connections, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2))
    connections = OpenConnections(limit, min(grace, _HEADER_TIMEOUT), grace)
    config = uvicorn.Config(
        app,
        http=partial(LimitedProtocol, connections),  # type: ignore[arg-type]
        ws="none",
        backlog=_BACKLOG,
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=int(grace) + 1,
    )
    # After a graceful shutdown uvicorn raises the signal again. All requests are answered, so ignore it.
    stop_signals = (signal.SIGTERM, signal.SIGINT)
    handlers = {number: signal.signal(number, lambda *_: None) for number in stop_signals}
    server = _NotifyingServer(config, on_ready)
    try:
        server.run(sockets=[bound])
    finally:
        if not server.force_exit:  # after a second Ctrl-C, threads are still at work
            server.exit_timer.cancel()
        for number, handler in handlers.items():
            signal.signal(number, handler)


class _NotifyingServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        seconds = (config.timeout_graceful_shutdown or 0) + _JOIN_SECONDS
        self.exit_timer = threading.Timer(seconds, _exit_at_once, [seconds])
        self.exit_timer.daemon = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.exit_timer.start()
        await super().shutdown(sockets)


def _exit_at_once(seconds: float) -> None:
    text = f"error: threads did not end within {seconds:g} s after the signal; exiting without them\n"
    sys.stderr.write(text)
    sys.stderr.flush()
    os._exit(1)
