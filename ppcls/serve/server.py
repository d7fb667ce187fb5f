"""The process of a server: its socket and its shutdown."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI

from ppcls.errors import UserError


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


def run(app: FastAPI, bound: socket.socket, grace: float, on_ready: Callable[[], None]) -> None:
    """Serves until SIGTERM or Ctrl-C. It then accepts no more requests and answers the current ones.

    Args:
        app: The application.
        bound: The socket.
        grace: Seconds to answer the last requests.
        on_ready: Called when the server accepts requests.
    """
    config = uvicorn.Config(
        app,
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=int(grace) + 1,
    )
    # After a graceful shutdown uvicorn raises the signal again. All requests are answered, so ignore it.
    stop_signals = (signal.SIGTERM, signal.SIGINT)
    handlers = {number: signal.signal(number, lambda *_: None) for number in stop_signals}
    try:
        _NotifyingServer(config, on_ready).run(sockets=[bound])
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


class _NotifyingServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()
