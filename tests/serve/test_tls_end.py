"""The end of TLS connections whose clients do not answer."""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from pathlib import Path

import pytest
from certificates import write_certificate
from runs import GUARD

from ppcls.serve.connections import ServerLoop

pytestmark = pytest.mark.hostile
DEFAULT = 30.0  # seconds for which asyncio waits


class Closing(asyncio.Protocol):
    """Closes each connection at its first byte."""

    def __init__(self) -> None:
        self.transport: asyncio.BaseTransport | None = None
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 waits for the client")
def test_client_that_does_not_answer_the_end_of_tls_is_not_awaited(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*write_certificate(tmp_path))
    trusting = ssl.create_default_context()
    trusting.check_hostname = False
    trusting.verify_mode = ssl.CERT_NONE

    def connect(port: int) -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", port), timeout=GUARD)
        client = trusting.wrap_socket(plain)
        client.sendall(b"x")
        return client

    async def serve() -> float:
        protocol = Closing()
        server = await asyncio.get_running_loop().create_server(lambda: protocol, "127.0.0.1", 0, ssl=context)
        client = await asyncio.to_thread(connect, server.sockets[0].getsockname()[1])
        started = asyncio.get_running_loop().time()
        await asyncio.wait_for(protocol.lost.wait(), GUARD)
        client.close()
        server.close()
        return asyncio.get_running_loop().time() - started

    loop = ServerLoop()
    try:
        assert loop.run_until_complete(serve()) < DEFAULT / 2
    finally:
        loop.close()
