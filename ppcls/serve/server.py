"""The process of a server: its socket, its TLS files and its shutdown."""

from __future__ import annotations

import os
import resource
import signal
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from ppcls.errors import UserError
from ppcls.serve.connections import (
    MAX_HEADER_BYTES,
    LimitedListener,
    LimitedProtocol,
    OpenConnections,
    ServerLoop,
)
from ppcls.serve.request_log import write_if_possible

_HEADER_TIMEOUT = 10.0  # seconds within which a client must send headers
_BACKLOG = 100  # maximum number of connections that asyncio accepts at once, before it can close any
_JOIN_SECONDS = 3.0  # seconds within which threads must end after the last requests


def bind(host: str, port: int, shared: bool = False) -> socket.socket:
    """Returns a bound socket. It is created before models are loaded, so that errors are reported early.

    Args:
        host: Host name or address.
        port: Port, or 0 for any free port.
        shared: Whether several processes listen on the port. The system assigns each connection to one of
            them.

    Raises:
        UserError: The address is not available.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(shared))
            bound.bind(address)
        except OSError:
            bound.close()
            raise
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot serve on {host}:{port}: {reason}; set --host or --port") from None
    return bound


@dataclass(frozen=True)
class TlsFiles:
    """Files for HTTPS, in PEM format.

    Attributes:
        certificate: File with the certificate of the server, followed by the certificates of its issuers.
        key: File with the private key; None if the key is in the file of the certificate.
    """

    certificate: Path
    key: Path | None

    def check(self) -> None:
        """Checks that certificate and key can be read and match.

        Raises:
            UserError: They cannot be read or do not match.
        """
        try:
            # With an empty password, OpenSSL does not ask for the password of an encrypted key.
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(self.certificate, self.key, password="")
        except OSError as error:  # includes ssl.SSLError
            names = f"--tls-cert {self.certificate}" + (f" --tls-key {self.key}" if self.key else "")
            raise UserError(
                f"{names}: expected a certificate and its private key without a password, in PEM format: "
                f"{error.strerror or error}"
            ) from None


def address_of(bound: socket.socket, tls: bool = False) -> str:
    """Returns the URL of a socket, such as ``http://127.0.0.1:8000``."""
    host, port = bound.getsockname()[:2]
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def run(
    app: ASGIApp,
    bound: socket.socket,
    grace: float,
    max_connections: int,
    on_ready: Callable[[], None],
    tls: TlsFiles | None = None,
) -> None:
    """Serves until SIGTERM or Ctrl-C. After the signal, it rejects new requests and answers the current ones.

    If threads of the application do not end, the process exits nevertheless.

    Args:
        app: Application.
        bound: Bound socket. It is closed at the end.
        grace: Seconds to answer the current requests after the signal.
        max_connections: Maximum number of connections. It is reduced to half the number of files that the
            process can open, if this is smaller.
        on_ready: Function to call when the server accepts requests.
        tls: Files for HTTPS; None for HTTP.
    """
    limit = max(1, min(max_connections, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2))
    connections = OpenConnections(limit, min(grace, _HEADER_TIMEOUT), grace)
    config = uvicorn.Config(
        app,
        http=partial(LimitedProtocol, connections),  # type: ignore[arg-type]
        loop=f"{ServerLoop.__module__}:{ServerLoop.__qualname__}",
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        ws="none",
        backlog=_BACKLOG,
        access_log=False,
        log_config=None,  # see `ppcls.serve.request_log`
        log_level="warning",
        ssl_certfile=tls.certificate if tls is not None else None,
        ssl_keyfile=tls.key if tls is not None else None,
        server_header=False,
        timeout_graceful_shutdown=int(grace) + 1,
    )
    # After a graceful shutdown, uvicorn raises the signal again. It is ignored, because all requests are
    # answered.
    stop_signals = (signal.SIGTERM, signal.SIGINT)
    handlers = {number: signal.signal(number, lambda *_: None) for number in stop_signals}
    server = _NotifyingServer(config, on_ready)
    try:
        with LimitedListener(bound, connections) as listener:
            server.run(sockets=[listener])
    finally:
        if not server.force_exit:  # after a second Ctrl-C, threads may still run
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
    text = (
        f"error: threads did not end within {seconds:g} s after the signal; the process exits nevertheless\n"
    )
    write_if_possible(text)
    os._exit(1)
