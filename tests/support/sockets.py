"""Sends bytes to a server that no HTTP client would send."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from runs import GUARD


def connect(address: str) -> socket.socket:
    """Returns a connection to the server with this URL."""
    where = urlsplit(address)
    return socket.create_connection((where.hostname, where.port), timeout=GUARD)


def exchange(address: str, request: bytes) -> bytes:
    """Sends a request, and returns all bytes until the server closes the connection."""
    with connect(address) as connection:
        connection.sendall(request)
        return receive(connection)


def receive(connection: socket.socket) -> bytes:
    """Returns all bytes until the server closes the connection."""
    parts = []
    try:
        while part := connection.recv(1000):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)
