"""Limits the number of connections and the time to send headers and to read responses.

uvicorn has no such limits. They are built on what asyncio, uvicorn and h11 document: an accepted socket, the
callbacks of a protocol, and `h11.Connection.trailing_data`. docs/architecture.md compares other servers.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import sys
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_HEADER_BYTES = 16_384  # maximum size of the headers of a request
_LOG = logging.getLogger("uvicorn.error")
_LOG_INTERVAL = 10.0  # minimum seconds between two log lines about the same event
_HEADERS = re.compile(rb".*?(?:\r\n\r\n|\n\n|\n\r\n|\Z)", re.DOTALL)
_BARE_LINE_FEED = re.compile(rb"(?<!\r)\n")
_HANDSHAKE_SECONDS = 10.0  # seconds within which a client must complete the TLS handshake
_CLOSING_SECONDS = 1.0  # seconds within which a client must answer that its TLS connection is closed


class OpenConnections:
    """Counts the connections of a server, and limits their number.

    Args:
        limit: Maximum number of connections. A single address may have at most half of them.
        header_timeout: Seconds within which a client must send the headers of a request.
        response_timeout: Seconds within which a client must read a response.
    """

    def __init__(self, limit: int, header_timeout: float, response_timeout: float) -> None:
        self.limit = limit
        self.header_timeout = header_timeout
        self.response_timeout = response_timeout
        self._by_address = Counter[str]()
        self._logged: dict[str, float] = {}

    def add(self, address: str) -> bool:
        """Counts a new connection, and returns whether it is within the limits."""
        self._by_address[address] += 1
        # One client must not occupy the whole server.
        share = max(1, self.limit // 2)
        if self._by_address.total() > self.limit:
            self.log(f"more than {self.limit} connections (--max-connections): new connections are closed")
        elif self._by_address[address] > share:
            self.log(f"more than {share} connections from one address: new connections are closed", address)
        else:
            return True
        return False

    def remove(self, address: str) -> None:
        """Removes a closed connection from the count."""
        self._by_address[address] -= 1
        self._by_address += Counter()  # removes addresses without connections

    def log(self, event: str, address: str = "") -> None:
        """Logs an event as a warning, but the same event at most once in ten seconds."""
        now = time.monotonic()
        if now - self._logged.get(event, -_LOG_INTERVAL) >= _LOG_INTERVAL:
            self._logged[event] = now
            _LOG.warning("%s%s", event, f" (now {address})" if address else "")


class LimitedListener(socket.socket):
    """A listening socket that closes each connection that is above the limits when it accepts it.

    Connections count from this moment, also those whose TLS handshake never begins. So a server cannot run
    out of file descriptors. If it did, asyncio would log an error for each attempt to accept a connection.

    Args:
        bound: Bound socket. Its descriptor belongs to this object afterwards.
        connections: All connections of the server.
    """

    def __init__(self, bound: socket.socket, connections: OpenConnections) -> None:
        super().__init__(bound.family, bound.type, bound.proto, fileno=bound.detach())
        self._connections = connections

    def accept(self) -> tuple[socket.socket, Any]:
        """Returns a connection and the address of its client.

        Raises:
            ConnectionAbortedError: The connection is above the limits, and was closed. asyncio then waits for
                the next one.
        """
        accepted, address = super().accept()
        connection = _CountedSocket(accepted, self._connections, address[0])
        if not connection.is_allowed:
            connection.close()
            raise ConnectionAbortedError
        return connection, address


class _CountedSocket(socket.socket):
    def __init__(self, accepted: socket.socket, connections: OpenConnections, address: str) -> None:
        super().__init__(accepted.family, accepted.type, accepted.proto, fileno=accepted.detach())
        self._connections: OpenConnections | None = connections
        self._address = address
        self.is_allowed = connections.add(address)

    def close(self) -> None:
        super().close()
        if self._connections is not None:
            self._connections.remove(self._address)
            self._connections = None


class ServerLoop(asyncio.SelectorEventLoop):
    """Event loop whose servers wait only shortly for clients that do not answer in TLS.

    By default, asyncio waits a minute for a handshake, and 30 seconds for the answer to the end of a
    connection. A client that does nothing would delay the end of the server as long. With Python 3.10, which
    has no such setting, it delays the end until the time that the server grants to requests is over.
    """

    async def create_server(self, *arguments: Any, **settings: Any) -> asyncio.Server:
        """Creates a server; see asyncio."""
        if settings.get("ssl") is not None:
            settings["ssl_handshake_timeout"] = _HANDSHAKE_SECONDS
            if sys.version_info >= (3, 11):
                settings["ssl_shutdown_timeout"] = _CLOSING_SECONDS
        return await super().create_server(*arguments, **settings)


class StrictConnection(h11.Connection):
    """The HTTP state of a connection. It rejects header lines that end with LF only.

    Proxies disagree on such lines, so attackers could use them to hide a request from a proxy.
    """

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Returns the next event.

        Raises:
            h11.RemoteProtocolError: The client violates HTTP.
        """
        if self.their_state is h11.IDLE:
            data, _ = self.trailing_data
            headers = _HEADERS.match(data)
            # h11 checks the size only while headers are incomplete, not if they arrive at once.
            if headers is not None and len(headers[0]) > MAX_HEADER_BYTES:
                raise h11.RemoteProtocolError(f"expected headers of at most {MAX_HEADER_BYTES} bytes")
            if headers is not None and _BARE_LINE_FEED.search(headers[0]):
                raise h11.RemoteProtocolError("expected lines that end with CR LF")
        return super().next_event()


class LimitedProtocol(H11Protocol):
    """A connection with time limits for sending headers and for reading responses.

    Header lines must end with CR LF.

    Args:
        connections: All connections of the server.
        **settings: Arguments of uvicorn's protocol.
    """

    def __init__(self, connections: OpenConnections, **settings: Any) -> None:
        super().__init__(**settings)
        self._connections = connections
        self._address = ""
        self._request_deadline: asyncio.TimerHandle | None = None
        self._response_deadline: asyncio.TimerHandle | None = None
        self.conn = StrictConnection(h11.SERVER, MAX_HEADER_BYTES)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Sets the deadline for the first request."""
        super().connection_made(transport)
        # pause_writing is called when data waits for the client. With limit 0, asyncio's TLS never resumes.
        transport.set_write_buffer_limits(1 if transport.get_extra_info("sslcontext") else 0)
        self._address = self.client[0] if self.client else ""
        self._set_request_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancels the time limits."""
        self._cancel_request_deadline()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Handles data. Sets a deadline while headers, or the body of an answered request, are incomplete."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE or self.conn.our_state is h11.DONE:
            self._set_request_deadline()
        else:
            self._cancel_request_deadline()

    def pause_writing(self) -> None:
        """Sets the deadline by which the client must read the response."""
        super().pause_writing()
        if self._response_deadline is None:
            seconds = self._connections.response_timeout
            event = f"a client did not read a response within {seconds:g} s: the connection is closed"
            self._response_deadline = self.loop.call_later(seconds, self._close, event)

    def resume_writing(self) -> None:
        """Cancels the deadline, because the client has read the whole response."""
        super().resume_writing()
        if self._response_deadline is not None:
            self._response_deadline.cancel()
            self._response_deadline = None

    def send_400_response(self, msg: str) -> None:
        """Responds to invalid HTTP, and prevents the application from responding to the same request."""
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        headers = [
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Connection", "close"),
            ("X-Content-Type-Options", "nosniff"),
        ]
        response = h11.Response(status_code=400, reason=b"Bad Request", headers=headers)
        # An error means that a response has started, or must have no content (HEAD).
        with suppress(h11.LocalProtocolError):
            for event in (response, h11.Data(data=msg.encode()), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _set_request_deadline(self) -> None:
        if self._request_deadline is None:
            seconds = self._connections.header_timeout
            event = f"a client did not send a complete request within {seconds:g} s: the connection is closed"
            self._request_deadline = self.loop.call_later(seconds, self._close, event)

    def _cancel_request_deadline(self) -> None:
        if self._request_deadline is not None:
            self._request_deadline.cancel()
            self._request_deadline = None

    def _close(self, event: str) -> None:
        self._connections.log(event, self._address)
        self.transport.abort()
