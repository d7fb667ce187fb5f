"""The process of a server: its socket, its end."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from ppcls.errors import UserError

_STOP = (signal.SIGTERM, signal.SIGINT)


def bind(host: str, port: int) -> socket.socket:
    """Takes an address before the model is loaded, which takes longer.

    Args:
        host: Name or number.
        port: 0 for any that is free.

    Raises:
        UserError: It can't be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        taken = socket.socket(family, kind, protocol)
        try:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(address)
        except OSError:
            taken.close()
            raise
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"can't serve on {host}:{port}: {reason}; set --host or --port") from None
    return taken


def address_of(taken: socket.socket) -> str:
    """Returns a socket's address as a browser takes it."""
    host, port = taken.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(app: FastAPI, taken: socket.socket, patience: float, ready: Callable[[], None]) -> None:
    """Serves until SIGTERM or Ctrl-C; then takes no more requests, and answers those that it has.

    Args:
        app: What answers.
        taken: The socket.
        patience: Seconds that the last requests have.
        ready: Is called when requests are taken.
    """
    config = uvicorn.Config(
        app,
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=int(patience) + 1,
    )
    server = _Server(config, ready)
    with _ended_quietly():
        server.run(sockets=[taken])


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()


@contextmanager
def _ended_quietly() -> Iterator[None]:
    """Has uvicorn's repetition of the signal that ended it do nothing: all is answered."""
    before = {number: signal.signal(number, lambda *_: None) for number in _STOP}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
